"""`Federation.ask` and `mean`: order, failures by name, quorum, repeats, limits, fusing."""

import re
import time
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from anabranch.errors import DataError, QuorumError, RefusedError, UsageError
from anabranch.federation import (
    Clip,
    Envelope,
    Federation,
    LocalEngine,
    Message,
    Noise,
    Participation,
    Silo,
    answers,
    answers_together,
    size,
)


@dataclass(frozen=True)
class Count(Message, kind="test.federation.count"):
    """Asks for a number that grows with every call.

    Reveals: nothing; it belongs to the tests.
    """

    scale: Tensor
    asked: int = 1

    def answers(self):
        return self.asked


@dataclass(frozen=True)
class Counted(Message, kind="test.federation.count.reply"):
    """The silo's number times the scale.

    Reveals: nothing; it belongs to the tests.
    """

    value: Tensor
    calls: int


@dataclass(frozen=True)
class Unheard(Message, kind="test.federation.unheard"):
    """A question that nobody answers.

    Reveals: nothing; it belongs to the tests.
    """


def value_of(silo, question):
    return question.scale * float(silo.data.x[0, 0])


@answers(Count)
def count(silo, question) -> Counted:
    silo.calls = getattr(silo, "calls", 0) + 1
    if hasattr(silo, "behaviour"):
        return silo.behaviour(question)
    return Counted(value_of(silo, question), silo.calls)


@answers_together(Count)
def count_together(silos, question, weights):
    for silo in silos:
        silo.fused = getattr(silo, "fused", 0) + 1
    behaviours = [s.behaviour(question).value for s in silos if hasattr(s, "behaviour")]
    values = [value_of(silo, question) for silo in silos if not hasattr(silo, "behaviour")]
    mean = (weights[:, None] * torch.stack(values + behaviours)).sum(0)
    return Counted(mean, 0)


QUESTION = Count(torch.tensor([1.0, 2.0]))


def silo(name, number=1.0, count=10, **options):
    options.setdefault("secret", ord(name[:1] or "?"))
    return Silo(name, torch.full((count, 2), float(number)), **options)


def three(**options):
    return [silo("a", 1, 10, **options), silo("b", 2, 20, **options), silo("c", 4, 10, **options)]


def opened(silos, **options):
    federation = Federation(silos, **options)
    federation.open("test", seed=3)
    return federation


def behave(silo, behaviour):
    silo.behaviour = behaviour


def fail(question):
    raise RuntimeError("the disk is gone")


def not_a_number(question):
    return Counted(question.scale * float("nan"), 0)


def nonsense(question):
    return 42


def linger(question):
    time.sleep(0.05)
    return Counted(question.scale, 0)


class TestOpen:
    def test_learns_sizes_dimension_and_numbers(self):
        federation = opened(three())
        assert federation.weight == {"a": 0.25, "b": 0.5, "c": 0.25} and federation.dimension == 2
        assert federation.numbers.shape == (3,) and len(set(federation.numbers.tolist())) == 3

    def test_the_numbers_follow_from_secrets_not_from_the_seed(self):
        one, two = (opened([silo("a", secret=secret)]).numbers for secret in (1, 2))
        again = opened([silo("a", secret=1)]).numbers
        assert torch.equal(one, again) and not torch.equal(one, two)

    def test_silos_of_different_dimension_are_refused_by_name(self):
        with pytest.raises(DataError, match=r"'b' has points in 3 dimensions, 'a' in 2"):
            opened([silo("a"), Silo("b", torch.zeros(5, 3))])

    def test_two_silos_of_one_name_are_refused(self):
        with pytest.raises(UsageError, match="same name"):
            Federation([silo("a"), silo("a")])

    def test_no_silo_is_refused(self):
        with pytest.raises(UsageError, match="at least one silo"):
            Federation([])

    @pytest.mark.parametrize("quorum", [0, 4])
    def test_an_impossible_quorum_is_refused(self, quorum):
        with pytest.raises(UsageError, match=f"quorum of {quorum}.*3 silos"):
            Federation(three(), quorum=quorum)

    @pytest.mark.parametrize("name", ["", "a/b", ".hidden"])
    def test_a_name_that_cannot_be_a_folder_is_refused(self, name):
        with pytest.raises(UsageError, match="cannot be a silo's name"):
            silo(name)

    def test_opening_again_with_another_seed_reaches_the_silos(self):
        silos = three()
        federation = opened(silos)
        federation.open("test", seed=4)
        assert [s.seed for s in silos] == [4, 4, 4]


class TestAsk:
    def test_replies_are_sorted_and_do_not_depend_on_the_order_of_silos(self):
        one, two = (opened(silos).ask(QUESTION) for silos in (three(), three()[::-1]))
        assert list(one.answers) == list(two.answers) == ["a", "b", "c"]
        assert all(torch.equal(one.answers[n].value, two.answers[n].value) for n in one.answers)

    def test_a_question_of_its_own_for_each(self):
        replies = opened(three()).ask({"c": Count(torch.tensor([10.0])), "a": Count(torch.tensor([1.0]))})
        assert {name: float(reply.value) for name, reply in replies.answers.items()} == {"a": 1.0, "c": 40.0}

    def test_only_those_named_are_asked(self):
        silos = three()
        opened(silos).ask(QUESTION, to=["b"])
        assert [getattr(s, "calls", 0) for s in silos] == [0, 1, 0]

    def test_one_by_one_each_answers_before_the_next_is_asked(self):
        federation, asked = opened(three()), []
        ask = federation.engine.ask
        federation.engine.ask = lambda envelopes, timeout=None: asked.append(list(envelopes)) or ask(envelopes, timeout)
        replies = federation.ask(QUESTION, one_by_one=True)
        assert asked == [["a"], ["b"], ["c"]] and list(replies.answers) == ["a", "b", "c"]

    @pytest.mark.parametrize(
        ("behaviour", "sentence"),
        [
            (fail, r"'b' raised RuntimeError: the disk is gone"),
            (not_a_number, "value that are not finite"),
            (nonsense, "with a int"),
        ],
    )
    def test_a_failing_silo_is_named_and_the_others_answer(self, behaviour, sentence):
        silos = three()
        behave(silos[1], behaviour)
        replies = opened(silos).ask(QUESTION)
        assert list(replies.answers) == ["a", "c"] and list(replies.failures) == ["b"]
        assert re.search(sentence, replies.failures["b"])

    def test_a_late_silo_is_named(self):
        silos = three()
        behave(silos[1], linger)
        replies = opened(silos).ask(QUESTION, timeout=0.02)
        assert list(replies.answers) == ["a", "c"] and "'b' answered after" in replies.failures["b"]

    def test_a_question_without_an_answer_is_refused(self):
        replies = opened(three()).ask(Unheard())
        assert "knows no answer to 'test.federation.unheard'" in replies.failures["a"]

    def test_bytes_are_counted_each_way(self):
        federation = opened(three())
        before = federation.ledger.bytes()
        replies = federation.ask(QUESTION)
        expected = 3 * size(QUESTION) + sum(size(reply) for reply in replies.answers.values())
        assert federation.ledger.bytes() - before == expected

    def test_a_type_that_the_wire_does_not_know_fails_its_silo_alone(self):
        silos = three()
        behave(silos[1], lambda question: Counted(torch.zeros(2, dtype=torch.int16), 0))
        assert "b" in opened(silos).ask(QUESTION).failures

    def test_a_reply_of_another_kind_fails_its_silo_alone(self):
        silos = three()
        behave(silos[1], lambda question: Unheard())
        assert opened(silos, fused=False).mean(QUESTION).answered == ["a", "c"]


class TestRepeats:
    def test_the_same_place_returns_the_stored_reply_untouched(self):
        asked = silo("a")
        engine = LocalEngine([asked])
        first = engine.ask({"a": Envelope("run", 1, 1, QUESTION)}).answers["a"]
        again = engine.ask({"a": Envelope("run", 1, 1, QUESTION)}).answers["a"]
        assert again is first and asked.calls == 1

    @pytest.mark.parametrize("place", [("other", 1, 1), ("run", 2, 1), ("run", 1, 2)])
    def test_another_place_is_another_question(self, place):
        asked = silo("a")
        engine = LocalEngine([asked])
        engine.ask({"a": Envelope("run", 1, 1, QUESTION)})
        assert engine.ask({"a": Envelope(*place, QUESTION)}).answers["a"].calls == 2

    def test_a_failure_is_not_stored(self):
        asked = silo("a")
        engine = LocalEngine([asked])
        behave(asked, fail)
        assert engine.ask({"a": Envelope("run", 1, 1, QUESTION)}).failures
        del asked.behaviour
        assert not engine.ask({"a": Envelope("run", 1, 1, QUESTION)}).failures

    def test_every_question_of_a_round_has_a_place_of_its_own(self):
        asked = silo("a")
        federation = opened([asked], fused=False)
        for _ in range(2):
            federation.ask(QUESTION)
            federation.mean(QUESTION)
        federation.start_round(1)
        federation.ask(QUESTION)
        assert asked.calls == 5


class TestMean:
    def mean(self, silos=None, **options):
        return opened(silos or three(), **options).mean(QUESTION)

    @pytest.mark.parametrize("fused", [True, False])
    def test_is_weighted(self, fused):
        mean = self.mean(fused=fused, weighting={"a": 0.5, "b": 0.3, "c": 0.2})
        assert torch.allclose(mean.reply.value, QUESTION.scale * (0.5 * 1 + 0.3 * 2 + 0.2 * 4))
        assert mean.answered == ["a", "b", "c"] and not mean.failures

    def test_weights_are_renormalised_over_those_who_answer(self):
        silos = three()
        behave(silos[1], fail)
        mean = self.mean(silos, fused=False, weighting={"a": 0.5, "b": 0.3, "c": 0.2})
        assert torch.allclose(mean.reply.value, QUESTION.scale * (0.5 * 1 + 0.2 * 4) / 0.7)
        assert mean.answered == ["a", "c"] and list(mean.failures) == ["b"]

    def test_below_the_quorum_the_round_stops_with_a_sentence(self):
        silos = three()
        behave(silos[1], fail)
        with pytest.raises(QuorumError, match=r"only 2 silos answered, 3 are needed.*'b' raised.*lower the quorum"):
            self.mean(silos, fused=False, quorum=3)

    def test_when_nobody_answers_the_round_stops(self):
        silos = three()
        for each in silos:
            behave(each, fail)
        with pytest.raises(QuorumError, match="only 0 silos"):
            self.mean(silos, fused=False)

    def test_unbiased_shares_are_used(self):
        federation = opened(three(), participation=Participation("random", 1, unbiased=True), fused=False)
        assert torch.allclose(federation.mean(QUESTION, ["b"]).reply.value, QUESTION.scale * 2 * 0.5 * 3)

    def test_everyone_asks_again_what_is_missing_and_only_that(self):
        silos, tries = three(), []

        def stumble(question):
            tries.append(1)
            if len(tries) == 1:
                raise RuntimeError("busy")
            return Counted(question.scale, 0)

        behave(silos[1], stumble)
        replies = opened(silos).everyone(QUESTION)
        assert list(replies) == ["a", "b", "c"] and [s.calls for s in silos] == [1, 2, 1]

    def test_everyone_gives_up_by_name(self):
        silos = three()
        behave(silos[1], fail)
        with pytest.raises(QuorumError, match="'b' raised"):
            opened(silos).everyone(QUESTION)
        assert silos[1].calls == 3

    def test_who_takes_part_follows_from_seed_and_round(self):
        def seen(federation):
            for number in range(20):
                federation.start_round(number)
                yield tuple(federation.chosen())

        one, two = (list(seen(opened(three(), participation=Participation("random", 2)))) for _ in range(2))
        assert one == two and len(set(one)) == 3


class TestFusing:
    def calls(self, silos):
        return [(getattr(s, "fused", 0), getattr(s, "calls", 0)) for s in silos]

    def test_one_pass_serves_all(self):
        silos = three()
        opened(silos).mean(QUESTION)
        assert self.calls(silos) == [(1, 0)] * 3

    def test_it_can_be_turned_off(self):
        silos = three()
        opened(silos, fused=False).mean(QUESTION)
        assert self.calls(silos) == [(0, 1)] * 3

    @pytest.mark.parametrize("guard", [Clip, Noise])
    def test_a_postprocessor_of_the_reply_turns_it_off(self, guard):
        silos = three()
        opened(silos, postprocessors=[guard(1.0, (Counted.kind,))]).mean(QUESTION)
        assert self.calls(silos) == [(0, 1)] * 3

    def test_a_postprocessor_of_something_else_does_not(self):
        silos = three()
        opened(silos, postprocessors=[Clip(1.0, ("test.other",))]).mean(QUESTION)
        assert self.calls(silos) == [(1, 0)] * 3

    def test_a_limit_turns_it_off_because_answers_must_be_counted(self):
        silos = [*three()[:2], silo("c", 4, limits={Count.kind: 5})]
        opened(silos).mean(QUESTION)
        assert self.calls(silos) == [(0, 1)] * 3

    def test_bytes_are_those_of_plain_answers(self):
        fused, plain = (opened(three(), fused=fused) for fused in (True, False))
        for federation in (fused, plain):
            federation.mean(QUESTION)
        assert fused.ledger.entries() == plain.ledger.entries()

    def test_numbers_that_are_not_finite_are_asked_for_again_and_their_silo_is_named(self):
        silos = three()
        behave(silos[1], not_a_number)
        mean = opened(silos).mean(QUESTION)
        assert self.calls(silos) == [(1, 1)] * 3
        assert list(mean.failures) == ["b"] and mean.answered == ["a", "c"]
        assert torch.allclose(mean.reply.value, QUESTION.scale * (0.25 * 1 + 0.25 * 4) / 0.5)

    def test_an_error_is_repeated_plain_and_its_silo_is_named(self):
        silos = three()
        behave(silos[1], fail)
        mean = opened(silos).mean(QUESTION)
        assert list(mean.failures) == ["b"] and mean.answered == ["a", "c"]

    def test_the_quorum_holds_fused_as_plain(self):
        for fused in (False, True):
            with pytest.raises(QuorumError):
                opened(three(), quorum=2, fused=fused).mean(QUESTION, ["a"])

    def test_a_postprocessor_is_never_passed_by_whatever_the_reply_is_called(self):
        silos = three()
        behave(silos[0], lambda question: Other(question.scale * 100))
        answers_together(Count)(lambda s, question, weights: Other(question.scale * 100))
        try:
            with pytest.raises(QuorumError, match="with a Other"):  # not fused, and plain it is no fitting answer
                opened(silos, postprocessors=[Clip(1.0, (Other.kind,))]).mean(QUESTION, ["a"])
        finally:
            answers_together(Count)(count_together)

    def test_postprocessors_beside_an_engine_are_applied_or_refused(self):
        try:
            federation = opened(LocalEngine(three()), postprocessors=[Clip(0.001, (Counted.kind,))])
        except UsageError:
            return
        assert float(federation.mean(QUESTION).reply.value.norm()) <= 0.0011


@dataclass(frozen=True)
class Other(Message, kind="test.federation.another.reply"):
    """A reply whose name does not follow from the question's.

    Reveals: nothing; it belongs to the tests.
    """

    value: Tensor


class TestLimits:
    def limited(self, limit=5):
        return silo("a", limits={Count.kind: limit})

    def test_answers_are_counted_as_the_question_says(self):
        asked = self.limited()
        federation = opened([asked])
        for number in (2, 3):
            assert not federation.ask(Count(QUESTION.scale, number)).failures
        refused = federation.ask(Count(QUESTION.scale, 1)).failures["a"]
        assert "at most 5 answers to 'test.federation.count'" in refused and "make it 6" in refused
        assert asked.calls == 2

    def test_a_refused_question_costs_nothing(self):
        asked = self.limited()
        federation = opened([asked])
        assert federation.ask(Count(QUESTION.scale, 6)).failures
        assert not federation.ask(Count(QUESTION.scale, 5)).failures

    def test_a_repeated_place_costs_nothing(self):
        asked = self.limited(1)
        for _ in range(3):
            asked.answer(Envelope("run", 1, 1, QUESTION))
        with pytest.raises(RefusedError):
            asked.answer(Envelope("run", 1, 2, QUESTION))

    def test_other_kinds_are_not_counted(self):
        asked = silo("a", limits={"something.else": 0})
        assert not opened([asked]).ask(QUESTION).failures

    def test_a_negative_number_of_answers_buys_nothing_back(self):
        asked = self.limited(5)
        federation = opened([asked])
        federation.ask(Count(QUESTION.scale, 5))
        federation.ask(Count(QUESTION.scale, -100))
        assert federation.ask(Count(QUESTION.scale, 1)).failures


class TestSilo:
    def test_generators_differ_by_silo_round_and_purpose_and_repeat(self):
        one, two = silo("a", secret=1), silo("b", secret=1)

        def number(each, *names):
            return float(torch.rand(1, generator=each.generator(*names)))

        assert number(one, "x") == number(one, "x") != number(one, "y")
        assert number(one, "x") != number(two, "x")
        first = number(one, "x")
        one.round = 1
        assert number(one, "x") != first

    def test_shared_numbers_are_the_same_on_every_silo(self):
        one, two = silo("a"), silo("b")
        draws = [torch.rand(3, generator=each.shared_generator("pool")) for each in (one, two)]
        assert torch.equal(*draws)

    def test_private_numbers_follow_from_the_secret_alone(self):
        one, two, again = silo("a", secret=1), silo("a", secret=2), silo("a", secret=1)
        again.seed = 99
        draws = [torch.rand(3, generator=each.private_generator("n")) for each in (one, two, again)]
        assert torch.equal(draws[0], draws[2]) and not torch.equal(draws[0], draws[1])

    def test_secrets_are_drawn_when_none_is_given(self):
        assert Silo("a", torch.zeros(2, 2)).secret != Silo("a", torch.zeros(2, 2)).secret

    def test_it_says_what_it_is_but_shows_no_point(self):
        assert repr(silo("a", 123.456)) == "Silo('a', 10 points in 2 dimensions)"

    def test_bad_points_are_refused_in_its_name(self):
        with pytest.raises(DataError, match="Silo 'a'"):
            Silo("a", torch.tensor([[0.0, float("nan")], [1.0, 2.0]]))

    def test_a_silo_without_points_says_so(self):
        with pytest.raises(DataError, match="must be encoded first"):
            _ = Silo("a", None).data
