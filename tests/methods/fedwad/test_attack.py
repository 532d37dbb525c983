"""What an interpolating measure gives away, and when it does not: the attack itself."""

import pytest
import torch

from anabranch import Federation, Silo
from anabranch.errors import QuorumError, RefusedError
from anabranch.federation import Envelope
from anabranch.methods.fedwad import Interpolate, WadSettings, distance
from anabranch.transport import nearest


def secret_points():
    return torch.randn(64, 3, generator=torch.Generator().manual_seed(7))


def answer(silo, support, exact=False, t=0.3):
    xi = torch.randn(1, support, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weight = torch.full((1, support), 1 / support, dtype=torch.float64)
    question = Interpolate(xi, weight, "points", 2.0, exact, 10**6, False, t)
    return xi[0], silo.answer(Envelope("run", 1, 1, question))


def rebuilt(xi, reply, t=0.3):
    """What a server that knows t makes of an answer: x = (answer − t ξ) / (1 − t), for every atom of ξ it might be."""
    guesses = (reply.points[0][:, None] - t * xi[None]) / (1 - t)
    return guesses.reshape(-1, 3)


def worst(points, guesses):
    """The distance from the worst hidden point to its nearest guess."""
    return float((2 * nearest(points.double(), guesses).value).sqrt().max())


def test_an_exact_measure_gives_every_point_away():
    x = secret_points()
    xi, reply = answer(Silo("a", x, smallest_part=1), 8, exact=True)
    assert worst(x, rebuilt(xi, reply)) < 1e-6


def test_as_many_atoms_as_points_give_every_point_away():
    x = secret_points()
    xi, reply = answer(Silo("a", x, smallest_part=1), 64)
    assert worst(x, rebuilt(xi, reply)) < 1e-6


def test_few_atoms_give_means_away_and_no_point():
    x = secret_points()
    xi, reply = answer(Silo("a", x), 8)
    guesses = ((reply.points[0] - 0.3 * xi) / 0.7).reshape(-1, 3)  # each atom is at its own place in the answer
    apart = (2 * nearest(x.double(), guesses).value).sqrt()
    among = torch.cdist(x, x).fill_diagonal_(torch.inf).min(1).values
    assert float(apart.median()) > float(among.median())  # no nearer than another person's point
    assert torch.allclose(guesses.mean(0), x.double().mean(0), atol=1e-6)  # but the mean is known


@pytest.mark.parametrize(("support", "exact"), [(17, False), (64, False), (4, True)])
def test_a_silo_refuses_what_would_give_points_away(support, exact):
    silos = [Silo(name, secret_points()) for name in ("a", "b")]
    settings = WadSettings(support=support, exact=exact, bounds=False)
    with pytest.raises(QuorumError, match="gives no answer in"):
        distance(Federation(silos), "a", "b", settings)


def test_an_atom_so_light_that_one_point_stands_behind_it_is_refused():
    weight = torch.tensor([[1 / 64, 63 / 64]], dtype=torch.float64)
    question = Interpolate(torch.zeros(1, 2, 3, dtype=torch.float64), weight, "points", 2.0, False, 0, False, 0.3)
    with pytest.raises(RefusedError, match="in 64 parts"):
        Silo("a", secret_points()).answer(Envelope("run", 1, 1, question))


def test_the_largest_support_allowed_is_answered():
    silos = [Silo(name, secret_points()) for name in ("a", "b")]
    assert distance(Federation(silos), "a", "b", WadSettings(support=16, rounds=2, bounds=False)).value >= 0


def test_a_place_that_the_silo_draws_is_not_the_servers_to_know():
    answers = [answer(Silo("a", secret_points(), secret=secret), 8, t=None)[1].points for secret in (1, 2)]
    assert not torch.equal(*answers)
