"""One silo: its random numbers, its points, repeated questions and limits."""

import pytest
import torch

from anabranch.data.attributes import AttributeSpace
from anabranch.errors import DataError, RefusedError, UsageError
from anabranch.federation import Envelope, LocalEngine, Silo
from tests.federation.counting import QUESTION, Count, behave, fail, opened, silo


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

    def test_labels_that_name_no_combination_are_refused_in_its_name(self):
        space = AttributeSpace.of({"wind": ["weak", "strong"], "rain": ["no", "yes"]})
        with pytest.raises(UsageError, match=r"Silo 'b' holds 1 label of 3 .* the first in row 2 .*: -1\. .*leave out"):
            Silo("b", torch.zeros(3, 2), torch.tensor([0, -1, 3]), space=space)

    def test_a_silo_without_points_says_so(self):
        with pytest.raises(DataError, match="must be encoded first"):
            _ = Silo("a", None).data


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
