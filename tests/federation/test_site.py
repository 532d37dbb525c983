"""A site behind a wire: it answers in turn and once, and neither causes nor nonsense leave it."""

import threading
from dataclasses import replace

import pytest
import torch

from anabranch.federation import AuditLog, Noise, Refused, decode, read_log
from tests.federation.adding import AMOUNT, question, site


class TestSite:
    def test_a_repeated_question_gets_the_same_bytes_and_changes_nothing(self):
        one = site(postprocessors=[Noise(1.0, ("test.site.add.reply",))])
        first = one.answer(question())
        assert one.answer(question()) == first
        assert torch.equal(one.silo.state["sum"], AMOUNT.amount)
        assert one.answer(question(sequence=2)) != first

    def test_another_question_at_the_same_place_is_not_taken_for_a_repetition(self):
        one = site()
        one.answer(question())
        other = decode(one.answer(question(replace(AMOUNT, amount=torch.ones(2)))))
        assert isinstance(other, Refused) and "two questions at one place" in other.sentence

    def test_what_a_failure_says_stays_at_the_site(self, tmp_path):
        one = site(log=AuditLog(tmp_path / "log"))
        one.silo.trouble = "raises"
        reply = decode(one.answer(question()))
        assert isinstance(reply, Refused) and "Ada" not in reply.sentence and "ValueError" in reply.sentence
        (entry,) = read_log(tmp_path / "log")
        assert "Ada" in entry["cause"] and entry["verdict"] == "refused"

    @pytest.mark.parametrize("trouble", ["nan", "shape", "kind"])
    def test_nonsense_does_not_leave_the_site(self, trouble):
        one = site()
        one.silo.trouble = trouble
        assert isinstance(decode(one.answer(question())), Refused)

    def test_questions_that_arrive_together_are_answered_in_turn(self):
        one = site()
        threads = [threading.Thread(target=one.answer, args=(question(sequence=n),)) for n in range(1, 21)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert torch.equal(one.silo.state["sum"], 20 * AMOUNT.amount)
