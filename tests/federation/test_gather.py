"""Gathering: every silo holds all answers, whether bytes lie between or not."""

import pytest
import torch

from anabranch.federation import Federation
from tests.federation.adding import AMOUNT, connected, site


@pytest.fixture(params=["local", "wire"])
def federation(request):
    sites = [site(name) for name in "abc"]
    if request.param == "wire":
        return connected(*sites), [one.silo for one in sites]
    federation = Federation([one.silo for one in sites])
    federation.open("run", seed=0)
    return federation, [one.silo for one in sites]


class TestGather:
    def test_every_silo_receives_all_answers(self, federation):
        joint, silos = federation
        replies = joint.gather(AMOUNT)
        for silo in silos:
            assert list(silo.gathered["test.site.add.reply"]) == ["a", "b", "c"]
            for name, reply in silo.gathered["test.site.add.reply"].items():
                assert torch.equal(reply.total, replies.answers[name].total)

    def test_who_fails_is_in_nobodys_hands(self, federation):
        joint, silos = federation
        silos[1].trouble = "nan"
        replies = joint.gather(AMOUNT)
        assert "b" in replies.failures
        assert [list(silo.gathered.get("test.site.add.reply", {})) for silo in silos] == [["a", "c"], [], ["a", "c"]]

    def test_shared_with_others_each_receives_all_but_its_own(self, federation):
        joint, silos = federation
        joint.gather(AMOUNT, share_with=["a", "b", "c"])
        held = [list(silo.gathered["test.site.add.reply"]) for silo in silos]
        assert held == [["b", "c"], ["a", "c"], ["a", "b"]]

    def test_what_is_shared_later_is_added(self, federation):
        joint, silos = federation
        joint.gather(AMOUNT, to=["a", "b"], share_with=["c"])
        before = silos[2].gathered["test.site.add.reply"]["b"].total.clone()
        joint.start_round(joint.round + 1)
        replies = joint.gather(AMOUNT, to=["a"], share_with=["b", "c"])
        there = silos[2].gathered["test.site.add.reply"]
        assert torch.equal(there["a"].total, replies.answers["a"].total) and torch.equal(there["b"].total, before)
        assert list(silos[1].gathered["test.site.add.reply"]) == ["a"] and not silos[0].gathered

    def test_nothing_gathered_reaches_into_another_run(self, federation):
        joint, silos = federation
        joint.gather(AMOUNT)
        joint.open("another", seed=0)
        assert all(not silo.gathered for silo in silos)

    def test_one_by_one_asks_in_turn(self, federation):
        joint, _ = federation
        times = []
        before = joint.engine.ask
        joint.engine.ask = lambda envelopes, timeout: times.append(list(envelopes)) or before(envelopes, timeout)
        assert list(joint.ask(AMOUNT, one_by_one=True).answers) == ["a", "b", "c"]
        assert times == [["a"], ["b"], ["c"]]
