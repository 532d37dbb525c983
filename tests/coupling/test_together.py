"""Many holders at once get what each would get alone, and the potential is asked once for all of them."""

import pytest
import torch

from anabranch.coupling import (
    BalancedPotential,
    EntropicPotential,
    GlobalPotential,
    Independent,
    MinibatchOT,
    Noises,
    SemiDiscrete,
    Stream,
    pairs_together,
    potential_duals,
)
from anabranch.data import Pixels, shape
from anabranch.flow import network
from anabranch.seeds import generator

SHAPE, SIZE, HOLDERS = (1, 4, 4), 12, 3


class Source:
    """A Gaussian in float64."""

    def points(self, count, draws):
        return shape("gaussian", 16).points(count, draws).double()


class Counted:
    """A potential that counts how often it is evaluated, and how often its norms are taken."""

    def __init__(self):
        self.network = network("cnn-potential", 16, seed=0, shape=SHAPE, widths=(4, 6), scale=50.0).double()
        self.evaluated = self.made = 0

    def prepared(self):
        self.made += 1
        ready = self.network.prepared()

        def evaluate(x):
            self.evaluated += 1
            return ready(x)

        return evaluate


def holders():
    found = []
    for number in range(HOLDERS):
        x = torch.randint(256, (30 + number, 16), generator=generator(number), dtype=torch.uint8)
        found.append(Pixels(x, torch.arange(len(x)), SHAPE, "random", torch.float64))
    return found


def numbers(name):
    return [generator(number, name) for number in range(HOLDERS)]


def tables(f):
    stream = Stream(shape("gaussian", 16), 4)
    return [SemiDiscrete(Noises(stream, torch.arange(i, 90, 3), torch.float64), torch.arange(30)) for i in range(3)]


COUPLINGS = {
    "candidates": lambda f: [GlobalPotential(f, 20)] * HOLDERS,
    "descent": lambda f: [GlobalPotential(f, 20, "descent", steps=4, rate=0.3)] * HOLDERS,
    "entropic": lambda f: [EntropicPotential(f, 20, 0.5)] * HOLDERS,
    "balanced": lambda f: [BalancedPotential(f, weight) for weight in (0.2, 0.3, 0.5)],
    "semidiscrete": tables,
}
EVALUATIONS = {"candidates": 1, "descent": 6, "entropic": 1, "balanced": HOLDERS}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", EVALUATIONS)
def test_duals_and_their_gradients_are_those_of_each_alone(name, workers):
    potential = Counted()
    parameters, couplings = list(potential.network.parameters()), COUPLINGS[name](potential)
    together = potential_duals(couplings, holders(), Source(), SIZE, numbers("own"), generator(0), workers)
    assert (potential.made, potential.evaluated) == (1, EVALUATIONS[name])
    apart = torch.stack(
        [
            coupling.dual(data, Source(), SIZE, own, generator(0))
            for coupling, data, own in zip(couplings, holders(), numbers("own"), strict=True)
        ]
    )
    torch.testing.assert_close(together, apart, rtol=1e-10, atol=1e-10)
    weights = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((weights * values).sum(), parameters) for values in (together, apart))
    assert max(float(gradient.abs().max()) for gradient in theirs) > 1e-3
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", ["candidates", "entropic", "balanced", "semidiscrete"])
def test_pairs_are_those_of_each_alone(name, workers):
    potential = Counted()
    couplings, own = COUPLINGS[name](potential), numbers("own")
    together = pairs_together(couplings, holders(), Source(), SIZE, own, generator(0), workers)
    assert (potential.made, potential.evaluated) == ((0, 0) if name == "semidiscrete" else (1, EVALUATIONS[name]))
    for coupling, data, used, fresh, pairs in zip(couplings, holders(), own, numbers("own"), together, strict=True):
        alone = coupling.draw(data, Source(), SIZE, fresh, generator(0))
        for part in ("x0", "x1", "index0", "index1", "label"):
            assert torch.equal(getattr(pairs, part), getattr(alone, part))
        assert torch.equal(used.get_state(), fresh.get_state())  # what is drawn next is the same too


@pytest.mark.parametrize("couplings", [[Independent()] * 3, [MinibatchOT()] * 3, [Independent(), *tables(None)]])
def test_where_there_is_no_common_pass_nothing_is_drawn(couplings):
    own = numbers("own")
    assert pairs_together(couplings, holders(), Source(), SIZE, own, generator(0)) is None
    assert all(torch.equal(a.get_state(), b.get_state()) for a, b in zip(own, numbers("own"), strict=True))
