"""What a site refuses: kinds, rounds, too many answers, too few points."""

import pytest

from anabranch.errors import UsageError
from anabranch.federation import AuditLog, Join, Joined, Policy, Refused, decode
from tests.federation.adding import Sum, question, site


class TestPolicy:
    def refusal(self, one, data):
        reply = decode(one.answer(data))
        assert isinstance(reply, Refused)
        return reply.sentence

    def test_a_kind_that_is_not_listed_is_refused(self):
        assert "does not list it" in self.refusal(site(kinds=("join",)), question())

    def test_a_round_beyond_the_limit_is_refused(self):
        assert isinstance(decode(site().answer(question(round=10))), Sum)
        assert "up to round 10" in self.refusal(site(), question(round=11))

    def test_answers_are_limited(self):
        one = site(limits={"test.site.add": 2})
        for sequence in (1, 2):
            assert isinstance(decode(one.answer(question(sequence=sequence))), Sum)
        assert "at most 2 answers" in self.refusal(one, question(sequence=3))

    def test_a_restart_does_not_refill_a_limit(self, tmp_path):
        for sequence in (1, 2):
            log = AuditLog(tmp_path / "log")
            one = site(limits={"test.site.add": 2}, log=log)
            assert isinstance(decode(one.answer(question(Join(1), sequence=9))), Joined)
            assert isinstance(decode(one.answer(question(sequence=sequence))), Sum)
            log.close()
        one = site(limits={"test.site.add": 2}, log=AuditLog(tmp_path / "log"))
        assert "at most 2 answers" in self.refusal(one, question(sequence=3))
        assert isinstance(decode(one.answer(question(run="another"))), Sum)

    def test_too_few_points_are_not_answered_for(self):
        assert "would rest on 5" in self.refusal(site(smallest_group=6), question(Join(1)))

    def test_a_site_withdraws_and_returns(self, tmp_path):
        one = site(withdrawn=tmp_path / "WITHDRAWN")
        (tmp_path / "WITHDRAWN").touch()
        assert "has withdrawn" in self.refusal(one, question())
        (tmp_path / "WITHDRAWN").unlink()
        assert isinstance(decode(one.answer(question())), Sum)

    @pytest.mark.parametrize("wrong", [{"rounds": 0}, {"smallest_group": 0}, {"limits": {"join": -1}}])
    def test_a_policy_that_cannot_be_is_refused(self, wrong):
        with pytest.raises(UsageError):
            site(**wrong)

    def test_kinds_that_nobody_asks_are_found(self):
        assert Policy(("join", "jion"), 1).unknown_kinds() == ["jion"]
