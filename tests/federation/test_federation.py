"""`Federation.ask` and `mean`: order, failures by name, quorum."""

import re

import pytest
import torch

from anabranch.errors import DataError, QuorumError, UsageError
from anabranch.federation import Federation, Participation, Silo, size
from tests.federation.counting import (
    QUESTION,
    Count,
    Counted,
    Unheard,
    behave,
    fail,
    linger,
    nonsense,
    not_a_number,
    opened,
    silo,
    three,
)


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
        with pytest.raises(
            QuorumError, match=r"2 silos answered in round 0, and 3 are needed.*is gone\. Resume .*with a lower quorum"
        ):
            self.mean(silos, fused=False, quorum=3)

    def test_when_nobody_answers_the_round_stops(self):
        silos = three()
        for each in silos:
            behave(each, fail)
        with pytest.raises(QuorumError, match="No silos answered in round 0, and 1 is needed") as found:
            self.mean(silos, fused=False)
        assert "lower quorum" not in str(found.value)  # it is 1

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
        with pytest.raises(QuorumError, match="'b' raised") as found:
            opened(silos, quorum=3).everyone(QUESTION)
        assert silos[1].calls == 3 and "lower quorum" not in str(found.value)  # which would still ask for everyone

    def test_who_takes_part_follows_from_seed_and_round(self):
        def seen(federation):
            for number in range(20):
                federation.start_round(number)
                yield tuple(federation.chosen())

        one, two = (list(seen(opened(three(), participation=Participation("random", 2)))) for _ in range(2))
        assert one == two and len(set(one)) == 3
