"""Fused answers: when one pass serves all silos, when it must not, and that it makes no difference."""

import logging
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from anabranch.errors import QuorumError, RefusedError, UsageError
from anabranch.federation import Clip, LocalEngine, Message, Noise, answers_together
from tests.federation.counting import (
    QUESTION,
    Count,
    Counted,
    behave,
    count_together,
    fail,
    not_a_number,
    opened,
    silo,
    three,
)


@dataclass(frozen=True)
class Other(Message, kind="test.federation.another.reply"):
    """A reply whose name does not follow from the question's.

    Reveals: nothing; it belongs to the tests.
    """

    value: Tensor


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

    def test_why_it_is_not_one_pass_is_said_once_and_aloud(self, caplog):
        silos = three()
        behave(silos[1], fail)
        federation = opened(silos)
        with caplog.at_level(logging.INFO):
            for _ in range(3):
                federation.mean(QUESTION)
        said = [(record.levelname, record.getMessage()) for record in caplog.records if "in turn" in record.message]
        assert [level for level, _ in said] == ["WARNING", "INFO", "INFO"]
        assert "RuntimeError: the disk is gone" in said[0][1] and Count.kind in said[0][1]

    def test_what_a_silo_refuses_is_no_warning(self, caplog):
        def refuse(question):
            raise RefusedError("not today")

        silos = three()
        behave(silos[1], refuse)
        with caplog.at_level(logging.INFO):
            opened(silos).mean(QUESTION)
        assert [record.levelname for record in caplog.records if "in turn" in record.message] == ["INFO"]

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

    def test_postprocessors_beside_an_engine_are_refused(self):
        with pytest.raises(UsageError, match="brings its own guards"):
            opened(LocalEngine(three()), postprocessors=[Clip(0.001, (Counted.kind,))])
