"""Steps along means of answers: numbers that are not finite never arrive, looked at at once or late."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from anabranch.errors import QuorumError, UnsoundError
from anabranch.federation import (
    Federation,
    Following,
    LocalEngine,
    Message,
    ServerOptimizer,
    Silo,
    Verdict,
    answers,
    answers_together,
)


@dataclass(frozen=True)
class Slope(Message, kind="test.following"):
    """Asks for a gradient.

    Reveals: nothing; it belongs to the tests.
    """

    parameters: dict[str, Tensor]


@dataclass(frozen=True)
class SlopeReply(Message, kind="test.following.reply"):
    """A gradient.

    Reveals: nothing; it belongs to the tests.
    """

    gradients: dict[str, Tensor]


@answers(Slope)
def slope(silo, question) -> SlopeReply:
    """The way from the silo's own point, and a little of the round; what a test says in some rounds."""
    silo.asked.append(silo.round)
    behaviour = silo.trouble.get(silo.round)
    if behaviour == "raises":
        raise RuntimeError("the disk is gone")
    factor = float("nan") if behaviour == "nan" else 1.0
    towards = {name: p - silo.data.x[0] + 0.01 * silo.round for name, p in question.parameters.items()}
    return SlopeReply({name: factor * way for name, way in towards.items()})


@answers_together(Slope)
def slope_together(silos, question, weights):
    replies = [slope(silo, question).gradients["w"] for silo in silos]
    return SlopeReply({"w": (weights[:, None] * torch.stack(replies)).sum(0)})


class Scene:
    """Two silos and a follower; `trouble` is {silo: {round: what it does}}."""

    def __init__(self, late, trouble=None, optimizer="adam", **options):
        self.silos = [Silo(name, torch.full((4, 3), float(number)), secret=1) for number, name in enumerate("ab")]
        for silo in self.silos:
            silo.trouble, silo.asked = (trouble or {}).get(silo.name, {}), []
        self.federation = Federation(self.silos, **options)
        self.federation.open("run", 0)
        self.after = []
        state = ServerOptimizer(optimizer, 0.1).begin({"w": torch.tensor([3.0, -2.0, 1.0])})
        self.following = Following(self.federation, state, lambda: self.after.append(self.w))
        self.following.late = late
        self.failures = {}

    @property
    def w(self):
        return self.following.optimizer.parameters["w"].clone()

    def run(self, rounds=6):
        for number in range(1, rounds + 1):
            self.federation.start_round(number)
            mean = self.following.take(Slope(self.following.optimizer.parameters), self.federation.names)
            if mean is None or self.following.failures:
                self.failures[number] = dict(self.following.failures)
        self.following.settle()
        return self


TROUBLES = {
    "none": {},
    "one silo once": {"b": {3: "nan"}},
    "one silo in the last round": {"b": {6: "nan"}},
    "one silo twice in a row": {"a": {2: "nan", 3: "nan"}},
    "all in one round": {"a": {4: "nan"}, "b": {4: "nan"}},
    "each in turn": {"a": {2: "nan"}, "b": {3: "nan"}},
}


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
def test_late_steps_are_the_same_steps(trouble):
    prompt, late, plain = (
        Scene(mode == "late", trouble, fused=mode != "plain").run() for mode in ("p", "late", "plain")
    )
    assert torch.isfinite(prompt.w).all()
    assert torch.equal(prompt.w, late.w) and torch.allclose(prompt.w, plain.w, atol=1e-6)
    assert len(prompt.after) == len(late.after) and all(map(torch.equal, prompt.after, late.after))
    assert prompt.following.optimizer.steps == late.following.optimizer.steps
    moments = [scene.following.optimizer.state("x") for scene in (prompt, late)]
    assert all(torch.equal(moments[0][name], moments[1][name]) for name in moments[0])


@pytest.mark.parametrize("late", [False, True])
def test_the_silo_at_fault_is_named_and_the_others_go_on(late):
    scene = Scene(late, {"b": {3: "nan"}}).run()
    ((number, failures),) = scene.failures.items()
    assert list(failures) == ["b"] and "The answer of silo 'b' was refused" in failures["b"]
    assert number == (4 if late else 3) and len(scene.after) == 6


@pytest.mark.parametrize("late", [False, True])
def test_a_round_without_a_sound_answer_is_skipped(late):
    scene = Scene(late, {name: {3: "nan"} for name in "ab"}).run()
    assert len(scene.after) == 5 and scene.following.optimizer.steps == 5
    assert any(set(failures) == {"a", "b"} for failures in scene.failures.values())


@pytest.mark.parametrize("late", [False, True])
def test_a_few_such_rounds_end_the_run_and_the_model_stays_as_it_was(late):
    trouble = {name: dict.fromkeys(range(3, 99), "nan") for name in "ab"}
    scene, sound = Scene(late, trouble), Scene(False)
    with pytest.raises(UnsoundError, match=r"3 rounds in a row .* silo 'a' was refused.* 'anabranch resume'"):
        scene.run(20)
    assert torch.equal(scene.w, sound.run(2).w)


def test_what_is_said_of_skipped_rounds_is_no_advice_about_quorums(caplog):
    trouble = {name: dict.fromkeys(range(3, 99), "nan") for name in "ab"}
    with pytest.raises(UnsoundError, match=r"another rate, a clip .* make another run") as caught:
        Scene(False, trouble).run(20)
    skipped = [record.getMessage() for record in caplog.records]
    assert len(skipped) == 3 and all("is skipped. The answer of silo 'a' was refused" in line for line in skipped)
    assert not any("quorum" in line for line in [*skipped, str(caught.value)])
    assert "Of 2 silos none gave finite numbers in round 5, and the quorum is" in str(caught.value.__cause__)


def test_rounds_apart_do_not_end_it():
    trouble = {name: dict.fromkeys((2, 3, 5, 6, 8), "nan") for name in "ab"}
    assert len(Scene(False, trouble).run(9).after) == 4


@pytest.mark.parametrize("late", [False, True])
def test_a_silo_that_is_always_at_fault_ends_it_and_its_rounds_were_those_of_the_others(late):
    scene = Scene(late, {"b": dict.fromkeys(range(3, 99), "nan")})
    with pytest.raises(UnsoundError, match=r"Silo 'b' gave .* 10 times in a row.*silo 'b' was refused"):
        scene.run(40)
    alone = Scene(False, {"b": dict.fromkeys(range(3, 99), "nan")}).run(11)  # nine rounds of the one without the other
    assert torch.equal(scene.w, alone.w)


@pytest.mark.parametrize("late", [False, True])
def test_a_silo_that_is_sound_in_between_does_not_end_it(late):
    trouble = {number: "nan" for number in range(2, 39) if number % 9}
    assert len(Scene(late, {"b": trouble}).run(40).after) == 40


def test_silos_that_fail_otherwise_end_it_at_once():
    with pytest.raises(QuorumError) as caught:
        Scene(True, {name: {2: "raises"} for name in "ab"}).run()
    assert not isinstance(caught.value, UnsoundError)


def test_a_late_look_asks_nobody_twice_when_all_is_well():
    scene = Scene(True).run()
    assert scene.silos[0].asked == [1, 2, 3, 4, 5, 6]


def test_what_is_open_is_settled_before_it_is_read():
    scene = Scene(True, {"b": {2: "nan"}})
    scene.run(1)
    scene.federation.start_round(2)
    scene.following.take(Slope(scene.following.optimizer.parameters), scene.federation.names)
    assert not scene.following.settle() and scene.following.settle()  # the second time nothing is open
    assert torch.equal(scene.w, Scene(False, {"b": {2: "nan"}}).run(2).w)
    assert scene.federation.round == 2


@pytest.mark.parametrize(("value", "finite"), [(1.0, True), (float("nan"), False), (float("inf"), False)])
def test_a_verdict(value, finite):
    verdict = Verdict(SlopeReply({"w": torch.zeros(3), "v": torch.tensor([1.0, value], dtype=torch.float64)}))
    assert bool(verdict) is finite and float(verdict.bad) == (not finite)


def test_an_engine_says_whether_its_mean_can_be_used():
    scene = Scene(False, {"b": {1: "nan"}})
    engine = scene.federation.engine
    assert isinstance(engine, LocalEngine)
    scene.federation.start_round(1)
    mean = scene.federation.mean(Slope({"w": torch.zeros(3)}), late=True)
    assert mean.verdict is engine.verdict and not mean.verdict
    assert scene.federation.mean(Slope({"w": torch.zeros(3)})).answered == ["a"]


@dataclass(frozen=True)
class Leaning(Message, kind="test.leaning"):
    """Asks for a gradient that rests on parameters of another follower too.

    Reveals: nothing; it belongs to the tests.
    """

    parameters: dict[str, Tensor]
    other: Tensor


@answers(Leaning)
def lean(silo, question) -> SlopeReply:
    """The way from the other's parameters; not a number where a test says so."""
    factor = float("nan") if silo.leaning.get(silo.round) else 1.0
    return SlopeReply({name: factor * (p - question.other) for name, p in question.parameters.items()})


@answers_together(Leaning)
def lean_together(silos, question, weights):
    replies = [lean(silo, question).gradients["v"] for silo in silos]
    return SlopeReply({"v": (weights[:, None] * torch.stack(replies)).sum(0)})


class Pair(Scene):
    """A second follower, whose question carries the first one's parameters; the first moves after it in a round."""

    def __init__(self, late, trouble=None, leaning=None, every=1):
        super().__init__(late, trouble)
        for silo in self.silos:
            silo.leaning = (leaning or {}).get(silo.name, {})
        state = ServerOptimizer("adam", 0.1).begin({"v": torch.tensor([0.5, 0.5, -4.0])})
        self.leaning = Following(self.federation, state, sign=1, others=[self.following])
        self.leaning.late, self.every = late, every

    def question(self):
        return Leaning(self.leaning.optimizer.parameters, self.following.optimizer.parameters["w"].clone())

    def run(self, rounds=6):
        for number in range(1, rounds + 1):
            self.federation.start_round(number)
            self.leaning.take(self.question, self.federation.names)
            self.failures[number] = dict(self.leaning.failures)
            if number % self.every == 0:
                self.following.take(Slope(self.following.optimizer.parameters), self.federation.names)
        self.leaning.settle()
        self.following.settle()
        return self


class TestTwoFollowers:
    @pytest.mark.parametrize("every", [1, 2])
    @pytest.mark.parametrize("leaning", TROUBLES.values(), ids=TROUBLES)
    @pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
    def test_late_steps_are_the_same_steps(self, trouble, leaning, every):
        prompt, late = (Pair(mode, trouble, leaning, every).run() for mode in (False, True))
        for name in ("following", "leaning"):
            one, other = (getattr(scene, name).optimizer.state("x") for scene in (prompt, late))
            assert all(torch.equal(one[key], other[key]) for key in one)

    def test_when_all_is_well_nobody_is_asked_twice(self):
        assert Pair(True).run().silos[0].asked == [1, 2, 3, 4, 5, 6]

    def test_who_was_at_fault_in_the_others_step_is_named_once_it_is_known(self):
        failures = Pair(True, {"b": {3: "nan"}}).run().failures
        assert {number: list(found) for number, found in failures.items() if found} == {4: ["b"]}


def test_a_step_up_is_a_step_down_the_negative():
    up, down = Scene(False), Scene(False)
    up.following.sign = -1
    for scene, sign in ((up, -1), (down, 1)):
        scene.federation.start_round(1)
        mean = scene.following.take(Slope(scene.following.optimizer.parameters), scene.federation.names)
        wanted = ServerOptimizer("adam", 0.1).begin({"w": torch.tensor([3.0, -2.0, 1.0])})
        wanted.step({name: sign * slope for name, slope in mean.reply.gradients.items()})
        assert torch.equal(scene.w, wanted.parameters["w"])
    assert not torch.equal(up.w, down.w)
