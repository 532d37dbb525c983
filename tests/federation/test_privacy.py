"""What happens to a reply before it leaves: bounded norms, noise of the right size that nobody else can take off."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from anabranch.errors import UsageError
from anabranch.federation import Clip, Envelope, LocalEngine, Message, Noise, Silo, answers


@dataclass(frozen=True)
class Tell(Message, kind="test.privacy.tell"):
    """Asks for what the silo has prepared.

    Reveals: nothing; it belongs to the tests.
    """

    number: int = 0


@dataclass(frozen=True)
class Told(Message, kind="test.privacy.tell.reply"):
    """Numbers of all sorts.

    Reveals: nothing; it belongs to the tests.
    """

    value: Tensor
    many: dict[str, Tensor]
    counts: Tensor
    number: float = 0.5


@answers(Tell)
def tell(silo, question):
    return silo.cache["reply"]


def told(scale=1.0, count=2):
    return Told(torch.full((count,), 3.0) * scale, {"x": torch.tensor([4.0]) * scale}, torch.arange(3), 0.5 * scale)


def silo(name="a", secret=1, reply=None, seed=0):
    made = Silo(name, torch.zeros(2, 2), secret=secret)
    made.cache["reply"], made.seed = reply or told(), seed
    return made


def ask(postprocessors, place=(1, 1), **options):
    engine = LocalEngine([made := silo(**options)], postprocessors=postprocessors)
    return engine.ask({made.name: Envelope("run", *place, Tell())}).answers[made.name]


def norm(reply):
    return float(torch.cat([reply.value, reply.many["x"], torch.tensor([reply.number])]).double().norm())


class TestClip:
    @pytest.mark.parametrize("scale", [1.0, 1e-3, 1e6])
    def test_no_reply_is_longer_than_allowed(self, scale):
        clipped = Clip(2.0, (Told.kind,))(silo(), told(scale))
        assert norm(clipped) <= 2.0 * (1 + 1e-6)
        assert norm(clipped) == pytest.approx(min(2.0, norm(told(scale))), rel=1e-6)

    def test_the_direction_is_kept_and_counts_are_left_alone(self):
        clipped = Clip(1.0, (Told.kind,))(silo(), told())
        assert torch.allclose(clipped.value / clipped.many["x"], torch.tensor(0.75))
        assert torch.equal(clipped.counts, torch.arange(3))

    def test_zeros_stay_zeros(self):
        assert norm(Clip(1.0, (Told.kind,))(silo(), told(0.0))) == 0

    @pytest.mark.parametrize("bound", [0.0, -1.0, float("nan")])
    def test_an_impossible_norm_is_refused(self, bound):
        with pytest.raises(UsageError, match="positive"):
            Clip(bound, ())


class TestNoise:
    def test_has_the_deviation_asked_for(self):
        reply = Told(torch.zeros(100_000), {"x": torch.zeros(100_000)}, torch.arange(3))
        noisy = Noise(0.3, (Told.kind,))(silo(), reply)
        for part in (noisy.value, noisy.many["x"]):
            assert float(part.mean()) == pytest.approx(0, abs=0.005) and float(part.std()) == pytest.approx(
                0.3, rel=0.01
            )
        correlation = torch.corrcoef(torch.stack([noisy.value, noisy.many["x"]]))[0, 1]
        assert abs(float(correlation)) < 0.02
        assert torch.equal(noisy.counts, torch.arange(3))

    def test_types_are_kept(self):
        reply = Told(torch.zeros(3, dtype=torch.bfloat16), {"x": torch.zeros(2, dtype=torch.float64)}, torch.arange(1))
        noisy = Noise(1.0, (Told.kind,))(silo(), reply)
        assert noisy.value.dtype == torch.bfloat16 and noisy.many["x"].dtype == torch.float64

    def test_the_same_secret_repeats_and_another_does_not(self):
        noise = [Noise(1.0, (Told.kind,))]
        one, again, other = (ask(noise, secret=secret).value for secret in (1, 1, 2))
        assert torch.equal(one, again) and not torch.equal(one, other)

    def test_it_does_not_follow_from_the_seed_of_the_run(self):
        noise = [Noise(1.0, (Told.kind,))]
        one, other = (ask(noise, seed=seed).value for seed in (0, 5))
        assert torch.equal(one, other)

    def test_two_silos_add_different_noise_even_with_one_secret(self):
        noise = [Noise(1.0, (Told.kind,))]
        assert not torch.equal(ask(noise, name="a").value, ask(noise, name="b").value)

    def test_every_round_has_noise_of_its_own(self):
        noise = [Noise(1.0, (Told.kind,))]
        assert not torch.equal(ask(noise, (1, 1)).value, ask(noise, (2, 1)).value)

    def test_a_repeated_question_gets_the_same_noise_so_that_asking_again_averages_nothing(self):
        engine = LocalEngine([silo()], postprocessors=[Noise(1.0, (Told.kind,))])
        one, two = (engine.ask({"a": Envelope("run", 1, 1, Tell())}).answers["a"] for _ in range(2))
        assert torch.equal(one.value, two.value)

    def test_two_questions_of_a_round_get_different_noise(self):
        """Otherwise the server asks twice in one round and subtracts."""
        engine, asked = LocalEngine([made := silo()], postprocessors=[Noise(1.0, (Told.kind,))]), []
        for sequence, scale in ((1, 1.0), (2, 2.0)):
            made.cache["reply"] = told(scale)
            asked.append(engine.ask({"a": Envelope("run", 1, sequence, Tell(sequence))}).answers["a"].value)
        difference = asked[1] - asked[0]
        assert not torch.allclose(difference, torch.full((2,), 3.0), atol=1e-5)

    def test_two_questions_at_one_place_of_two_sessions_get_different_noise(self):
        """Otherwise the server begins anew, asks something else at the same place, and subtracts."""
        engine, asked = LocalEngine([made := silo()], postprocessors=[Noise(1.0, (Told.kind,))]), []
        for session, scale in ((1, 1.0), (2, 2.0)):
            made.cache["reply"] = told(scale)
            asked.append(engine.ask({"a": Envelope("run", 1, 1, Tell(session), session)}).answers["a"].value)
        assert not torch.allclose(asked[1] - asked[0], torch.full((2,), 3.0), atol=1e-5)

    def test_it_covers_every_floating_point_number(self):
        assert Noise(1.0, (Told.kind,))(silo(), told()).number != 0.5

    @pytest.mark.parametrize("deviation", [-0.1, float("nan")])
    def test_an_impossible_deviation_is_refused(self, deviation):
        with pytest.raises(UsageError, match="zero or more"):
            Noise(deviation, ())


class TestEngine:
    def test_only_the_kinds_named_are_changed(self):
        assert torch.equal(ask([Noise(1.0, ("test.other",))]).value, told().value)

    def test_postprocessors_run_in_order(self):
        """Clip, then noise: the noise is not clipped away. Noise, then clip: the bound holds for what leaves."""
        clip, noise = Clip(1e-3, (Told.kind,)), Noise(1.0, (Told.kind,))
        assert norm(ask([clip, noise])) > 0.1 and norm(ask([noise, clip])) <= 1e-3 * (1 + 1e-6)

    def test_the_silo_keeps_its_own_reply_as_it_was(self):
        reply = told()
        ask([Clip(1e-3, (Told.kind,))], reply=reply)
        assert torch.equal(reply.value, told().value)
