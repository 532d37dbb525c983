from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from scene import corner_silos, opened

from anabranch.data.attributes import AttributeSpace
from anabranch.errors import QuorumError, RefusedError, UsageError
from anabranch.federation import Silo
from anabranch.flow.conditioning import Masking, all_masks, full_penalty, masked, masked_penalty, single_masks
from anabranch.methods.dcfm import CompositionServer, composition
from anabranch.methods.dcfm import _peers as peers
from anabranch.methods.dcfm._peers import (
    Comparison,
    PairComparison,
    Turn,
    peer_losses,
    peer_losses_everywhere,
    routed,
)
from anabranch.methods.experts import Example, Expert, ExpertSettings, example, half_of

QUICK = {"steps": 8, "batch": 32, "hidden": 16, "layers": 2}
WEIGHT = [0.7, 0.1, 0.1, 0.1]
AS_PRINTED = Comparison(single_masks(2), WEIGHT)


def stop():
    raise RefusedError("seen enough")


SCALES = (2, 3, 5)  # of the peers of the first attribute, of the second, and of none


def field(scale):
    return lambda x, t, y: x * (y.clamp_min(0) + scale).prod(1, keepdim=True) + (y < 0).sum(1, keepdim=True)


PEERS = [field(scale) for scale in SCALES]


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    settings = ExpertSettings(batch=40, full=1.0, marginal=0.0, unconditional=0.0)
    return example(
        torch.randn(99, 3, generator=generator), torch.randint(2, (99, 2), generator=generator), settings, generator
    )


class TestLosses:
    def test_with_itself_as_peer_it_is_the_local_penalty(self, batch):
        """Whoever evaluates a term, if all are the same network the gap is that of eq. (10)."""
        theirs = routed(torch.ones(40, 2, dtype=torch.bool), torch.Generator().manual_seed(0))
        step = peer_losses(field(1), [field(1)] * 3, batch, theirs, AS_PRINTED)
        assert torch.isclose(step.losses.independence, full_penalty(field(1), batch.x_t, batch.t, batch.y))

    def test_the_gap_is_eq_12(self, batch):
        theirs = routed(torch.ones(40, 2, dtype=torch.bool), torch.Generator().manual_seed(0))
        step = peer_losses(field(1), PEERS, batch, theirs, AS_PRINTED)
        total = 0.0
        for row in range(40):
            x, t, y = batch.x_t[row : row + 1], batch.t[row : row + 1], batch.y[row : row + 1]
            terms = []
            for place, mask in enumerate(([1, 0], [0, 1], [0, 0])):
                expert = PEERS[place] if theirs[row, place] else field(1)
                terms.append(expert(x, t, torch.where(torch.tensor(mask).bool(), y, -1)))
            z = terms[2] + (terms[0] - terms[2]) + (terms[1] - terms[2])
            total += float((field(1)(x, t, y) - z).square().mean()) / 40
        assert float(step.losses.independence) == pytest.approx(total, rel=1e-4)

    def test_peers_stay_as_they_are(self, batch):
        own, peer = (torch.ones((), requires_grad=True) for _ in range(2))
        theirs = routed(torch.ones(40, 2, dtype=torch.bool), torch.Generator().manual_seed(0))
        step = peer_losses(
            lambda x, t, y: own * field(1)(x, t, y),
            [lambda x, t, y: peer * field(2)(x, t, y)] * 3,
            batch,
            theirs,
            AS_PRINTED,
        )
        (step.losses.matching + step.losses.independence).backward()
        assert own.grad is not None and peer.grad is None

    def test_all_terms_its_own_is_flow_matching_on_all_masks(self, batch):
        step = peer_losses(field(1), [field(9)] * 3, batch, torch.zeros(40, 3, dtype=torch.bool), AS_PRINTED)
        by_hand = 0.0
        for weight, mask in zip(WEIGHT, ([1, 1], [1, 0], [0, 1], [0, 0]), strict=True):
            y = torch.where(torch.tensor(mask).bool(), batch.y, -1)
            by_hand += weight * (field(1)(batch.x_t, batch.t, y) - batch.u_t).square().mean()
        assert torch.isclose(step.losses.matching, by_hand)
        assert (step.forward, step.backward) == (4, 4)

    def test_every_term_is_evaluated_once(self, batch):
        theirs = routed(torch.ones(40, 2, dtype=torch.bool), torch.Generator().manual_seed(0))
        step = peer_losses(field(1), [field(2)] * 3, batch, theirs, AS_PRINTED)
        assert step.forward == 4 and step.backward == pytest.approx(4 - float(theirs.float().sum()) / 40)

    def test_terms_of_some_rows_and_the_joint_velocity_of_all(self, batch):
        theirs = routed(torch.ones(10, 2, dtype=torch.bool), torch.Generator().manual_seed(0))
        some = peer_losses(field(1), [field(2)] * 3, batch, theirs, AS_PRINTED)
        first = Example(*(part[:10] for part in (batch.x_t, batch.u_t, batch.t, batch.y)), batch.masks, batch.weight, 0)
        alone = peer_losses(field(1), [field(2)] * 3, first, theirs, AS_PRINTED)
        assert torch.isclose(some.losses.independence, alone.losses.independence)
        whole, part = ((field(1)(b.x_t, b.t, b.y) - b.u_t).square().mean() for b in (batch, first))
        assert torch.isclose(some.losses.matching - alone.losses.matching, WEIGHT[0] * (whole - part), atol=1e-5)
        assert some.forward == pytest.approx(1 + 3 * 10 / 40)

    def test_the_gap_counts_by_the_time_and_by_what_is_left_of_it(self, batch):
        theirs = routed(torch.ones(40, 2, dtype=torch.bool), torch.Generator().manual_seed(0))
        rows = []
        for row in range(40):
            one = Example(
                *(part[row : row + 1] for part in (batch.x_t, batch.u_t, batch.t, batch.y)),
                batch.masks,
                batch.weight,
                0,
            )
            gap = peer_losses(field(1), [field(2)] * 3, one, theirs[row : row + 1], AS_PRINTED).losses.independence
            t = float(batch.t[row])
            rows.append(float(gap) * t**2 * (1 - t) ** 3)
        comparison = replace(AS_PRINTED, early=3.0, late=2.0)
        step = peer_losses(field(1), [field(2)] * 3, batch, theirs, comparison)
        assert float(step.losses.independence) == pytest.approx(sum(rows) / 40, rel=1e-4)

    @pytest.mark.parametrize("routes", [peer_losses, peer_losses_everywhere])
    def test_held_the_penalty_moves_terms_and_not_the_whole_velocity(self, batch, routes):
        theirs = routed(torch.ones(40, 2, dtype=torch.bool), torch.Generator().manual_seed(0))
        values, slopes = [], []
        for comparison in (AS_PRINTED, replace(AS_PRINTED, held=True)):
            whole, part = (torch.full((), 0.5, requires_grad=True) for _ in range(2))

            def own(x, t, y, whole=whole, part=part):
                return torch.where((y >= 0).all(1, keepdim=True), whole, part) * field(1)(x, t, y)

            gap = routes(own, PEERS, batch, theirs, comparison).losses.independence
            values.append(gap.detach())
            slopes.append(torch.autograd.grad(gap, (whole, part), allow_unused=True, materialize_grads=True))
        assert torch.equal(*values)
        (moved, beside), (held, alone) = slopes
        assert moved != 0 and held == 0
        assert torch.isclose(beside, alone) and alone != 0

    @pytest.mark.parametrize(
        "comparison", [AS_PRINTED, replace(AS_PRINTED, early=2.0), replace(AS_PRINTED, early=2.0, late=1.0, held=True)]
    )
    @pytest.mark.parametrize("compared", [40, 10])
    def test_evaluated_everywhere_losses_and_slopes_are_the_same(self, batch, compared, comparison):
        """On a GPU both networks evaluate all terms; what a step does must not depend on the machine."""
        theirs = routed(torch.ones(compared, 2, dtype=torch.bool), torch.Generator().manual_seed(0))
        found = []
        for routes in (peer_losses, peer_losses_everywhere):
            own = torch.full((), 0.5, requires_grad=True)
            mine = lambda x, t, y, own=own: own * field(1)(x, t, y)  # noqa: E731
            step = routes(mine, PEERS, batch, theirs, comparison)
            both = torch.stack([step.losses.matching, step.losses.independence])
            (slope,) = torch.autograd.grad(both @ torch.tensor([1.0, 3.0]), own)
            found.append(torch.cat([both.detach(), slope[None]]))
        assert torch.allclose(*found, rtol=1e-5)
        terms = 3 * compared / 40
        assert (step.forward, step.backward) == (1 + 2 * terms, 1 + terms)  # of the last one, everywhere


class TestPairs:
    @pytest.fixture
    def batch(self):
        generator = torch.Generator().manual_seed(1)
        settings = ExpertSettings(batch=40, full=1.0, marginal=0.0, unconditional=0.0)
        points, labels = torch.randn(99, 3, generator=generator), torch.randint(2, (99, 4), generator=generator)
        return example(points, labels, settings, generator)

    @pytest.fixture
    def comparison(self):
        weight = Masking(0.7, 0.2, 0.1).pairs()
        return PairComparison(single_masks(4), weight).drawn(40, torch.Generator().manual_seed(2))

    def test_beside_itself_it_is_the_local_penalty_over_these_pairs(self, batch, comparison):
        theirs = comparison.routed(torch.ones(3, 40, 4, dtype=torch.bool), torch.Generator().manual_seed(0))
        step = peer_losses(field(1), [field(1)] * 3, batch, theirs, comparison)
        values = all_masks(field(1), batch.x_t, batch.t, batch.y, comparison.masks)
        assert torch.isclose(step.losses.independence, masked_penalty(values))
        assert step.losses.independence > 0

    def test_the_pair_is_its_own_and_a_peer_is_asked_about_what_it_has_met(self, comparison):
        met = torch.zeros(3, 40, 4, dtype=torch.bool)
        met[:, :, 1] = True
        theirs = comparison.routed(met, torch.Generator().manual_seed(0))
        assert not bool(theirs[:, 0].any()) and bool(theirs.any())
        second = comparison.masks[1:3, :, 1].T
        assert bool((theirs[:, 1:3] <= second).all()) and bool((theirs[:, 1:3] & second).any())

    def test_each_of_a_pairs_peers_is_asked_about_what_it_has_met_itself(self, comparison):
        met = torch.zeros(3, 40, 4, dtype=torch.bool)
        met[1] = True
        theirs = comparison.routed(met, torch.Generator().manual_seed(0))
        assert theirs.any(0).tolist() == [False, False, True, True]

    def test_a_step_takes_five_passes_whatever_k_is(self, batch, comparison):
        theirs = comparison.routed(torch.ones(3, 40, 4, dtype=torch.bool), torch.Generator().manual_seed(0))
        step = peer_losses(field(1), [field(2)] * 3, batch, theirs, comparison)
        assert step.forward == 5 and 3.4 < step.backward < 4

    def test_flow_matching_is_on_the_whole_the_pair_and_its_terms(self, batch, comparison):
        step = peer_losses(field(1), [field(9)] * 3, batch, torch.zeros(40, 4, dtype=torch.bool), comparison)
        labels = [batch.y, *masked(batch.y, comparison.masks)]
        errors = [(field(1)(batch.x_t, batch.t, y) - batch.u_t).square().mean() for y in labels]
        assert torch.isclose(step.losses.matching, torch.stack(errors) @ torch.tensor(comparison.weight))

    @pytest.mark.parametrize("held", [False, True])
    def test_evaluated_everywhere_losses_and_slopes_are_the_same(self, batch, comparison, held):
        theirs = comparison.routed(torch.ones(3, 40, 4, dtype=torch.bool), torch.Generator().manual_seed(0))
        found = []
        for routes in (peer_losses, peer_losses_everywhere):
            own = torch.full((), 0.5, requires_grad=True)
            mine = lambda x, t, y, own=own: own * field(1)(x, t, y)  # noqa: E731
            step = routes(mine, PEERS, batch, theirs, replace(comparison, held=held))
            both = torch.stack([step.losses.matching, step.losses.independence])
            (slope,) = torch.autograd.grad(both @ torch.tensor([1.0, 3.0]), own)
            found.append(torch.cat([both.detach(), slope[None]]))
        assert torch.allclose(*found, rtol=1e-5)

    def test_a_silo_compares_as_its_experts_settings_say(self):
        space = AttributeSpace.of({name: ["low", "high"] for name in "uvw"})
        passes = []
        for independence in ("all", "pairs"):
            silos = [Silo(name, torch.randn(64, 3), torch.arange(64) % 7, space=space) for name in "ab"]
            experts = {**QUICK, "independence": independence}
            server = CompositionServer(composition("dcfm-a", experts=experts, peers={"rounds": 1}), opened(silos))
            turns = [progress.metrics for progress in server.run() if progress.phase == "peers"]
            passes.append([turn["backward"] for turn in turns])
        assert max(passes[0]) < 3.3 < 3.4 < min(passes[1])  # of k + 2 = 5 all a quarter at most, and a pair is its own


class TestServer:
    def test_in_turn_each_silo_sees_those_already_updated(self):
        silos = corner_silos()
        settings = composition("dcfm-a", experts=QUICK, peers={"rounds": 2, "steps": 3})
        server = CompositionServer(settings, opened(silos))
        turns = [dict(server.experts) for progress in server.run() if progress.phase == "peers"]
        assert len(turns) == 4
        handed = silos[1].gathered[Expert.kind]["a"].parameters
        assert all(torch.equal(handed[name], tensor) for name, tensor in turns[-1]["a"].items())
        moved = [
            {name for name in "ab" if any(not torch.equal(b[name][key], a[name][key]) for key in b[name])}
            for b, a in pairwise(turns)
        ]
        assert moved == [{"b"}, {"a"}, {"b"}]

    def test_every_term_has_a_peer_of_its_own(self, monkeypatch):
        """Two peers that know a half of a label each can speak together."""
        asked, handed, before = [], [], Turn.beside

        def beside(turn, peers, met):
            asked.append([int(outcomes.nonzero()[0]) for outcomes in met])  # here that tells who it is
            handed.append(list(peers))
            before(turn, peers, met)
            assert all(
                torch.equal(own[name], peer[name]) for own, peer in zip(turn.peers, peers, strict=True) for name in own
            )
            assert torch.equal(turn.met, torch.stack(met))

        monkeypatch.setattr(Turn, "beside", beside)
        space = AttributeSpace.of({"u": ["low", "high", "top"], "v": ["low", "high"]})
        silos = [
            Silo(name, torch.randn(64, 3), torch.full((64,), 2 * n + 1), space=space) for n, name in enumerate("abc")
        ]
        settings = composition("dcfm-a", experts=QUICK, peers={"rounds": 1, "steps": 30}, force=True)
        server = CompositionServer(settings, opened(silos))
        alone = [server.experts for progress in server.run() if progress.phase == "experts"][-1]
        first = asked[:30]  # in the turn of a
        for names, given in zip(first, handed, strict=False):  # outcomes are those of the peer that is asked about them
            owners = [alone["abc"[name]] for name in names]
            assert all(torch.equal(own[p], peer[p]) for own, peer in zip(owners, given, strict=True) for p in own)
        assert {tuple(sorted(set(names))) for names in first} == {(1,), (2,), (1, 2)}
        assert len({tuple(names) for names in first}) == 8

    def test_each_peer_speaks_of_its_own_term_and_of_no_other(self, monkeypatch):
        """The peers that a step was handed reach the losses in the order of the terms."""
        seen = []
        monkeypatch.setattr(peers, "peer_losses", lambda own, fields, *rest: seen.append(fields) or stop())
        silos = corner_silos()
        server = CompositionServer(composition("ddm", experts=QUICK), opened(silos))
        list(server.run())
        half, own = half_of(silos[0]), server.experts["a"]
        turn = Turn(half, own, peers.PeerSteps({}, 1, 1.0, 1e-3))
        handed = [{name: tensor + number for name, tensor in own.items()} for number in (1, 2, 3)]
        turn.beside(handed, [torch.ones(4, dtype=torch.bool)] * 3)
        with pytest.raises(RefusedError, match="seen enough"):
            turn.measure(own, torch.Generator().manual_seed(0))
        x, t, y = torch.ones(2, 2), torch.tensor([0.5, 0.5]), torch.tensor([[0, 1], [1, 0]])
        for field, parameters in zip(seen[0], handed, strict=True):
            assert torch.equal(field(x, t, y), half.field(parameters)(x, t, y))

    @pytest.mark.parametrize("broken", ["a", "ab"])
    def test_in_turn_one_may_fail_and_not_all(self, monkeypatch, broken):
        def beside(turn, peer, met):
            if silo_of[id(turn.half.x)] in broken:
                raise RefusedError("no time")
            before(turn, peer, met)

        before, silos = Turn.beside, corner_silos()
        monkeypatch.setattr(Turn, "beside", beside)
        settings = composition("dcfm-a", experts=QUICK, peers={"rounds": 2, "steps": 3})
        server = CompositionServer(settings, opened(silos))
        silo_of = {id(half_of(silo).x): silo.name for silo in silos}
        if broken == "a":
            assert [p.phase for p in server.run()].count("peers") == 4
        else:
            with pytest.raises(QuorumError, match="No silo trained beside its peers"):
                list(server.run())

    def test_at_once_all_move_in_one_round(self):
        settings = composition("dcfm-a-simultaneous", experts=QUICK, peers={"rounds": 2, "steps": 3})
        server = CompositionServer(settings, opened(corner_silos()))
        assert [p.phase for p in server.run()] == ["experts", "peers", "peers"]

    def test_at_once_a_silo_sees_its_peers_as_they_were(self):
        ends = []
        for order in ("sequential", "simultaneous"):
            settings = composition("dcfm-a", experts=QUICK, peers={"rounds": 1, "steps": 3, "order": order})
            server = CompositionServer(settings, opened(corner_silos()))
            list(server.run())
            ends.append({name: torch.cat([t.flatten() for t in own.values()]) for name, own in server.experts.items()})
        assert torch.equal(ends[0]["a"], ends[1]["a"])  # the first in turn
        assert not torch.allclose(ends[0]["b"], ends[1]["b"], atol=1e-5)  # sees what a has become, or has not

    def test_a_peer_speaks_of_outcomes_that_it_has_met_often_enough(self):
        held = {"a": (0, 0, 0, 1), "b": (1, 3)}
        for least, right in ((1, [True, False, True, True]), (100, [True, False, True, False])):
            settings = composition("dcfm-a", experts=QUICK, peers={"least": least})
            server = CompositionServer(settings, opened(corner_silos(count=200, held=held)))
            assert torch.cat(server._met("a")).tolist() == right

    def test_silos_compare_as_the_settings_say(self):
        """All ways to compare reach the silo: each alone ends elsewhere."""
        ends = []
        for changed in ({}, {"early": 2.0}, {"held": True}, {"late": 2.0}):
            settings = composition("dcfm-a", experts=QUICK, peers={"rounds": 1, "steps": 3, **changed})
            server = CompositionServer(settings, opened(corner_silos()))
            list(server.run())
            ends.append(torch.cat([tensor.flatten() for tensor in server.experts["a"].values()]))
        assert len(torch.unique(torch.stack(ends), dim=0)) == 4

    def test_a_negative_penalty_is_refused_on_arrival(self):
        from anabranch.methods.dcfm import PeerSteps

        federation = opened(corner_silos())
        list(CompositionServer(composition("ddm", experts=QUICK), federation).run())
        met = {name: torch.ones(4, dtype=torch.bool) for name in "ab"}
        assert "arrived with penalty = -5.0" in federation.ask(PeerSteps(met, 2, -5.0, 1e-3)).failures["a"]

    @pytest.mark.parametrize("name", ["early", "late"])
    @pytest.mark.parametrize("power", [-1.0, float("nan"), float("inf")])
    def test_a_power_of_time_that_is_none_is_refused(self, name, power):
        from anabranch.methods.dcfm import PeerSteps

        with pytest.raises(UsageError, match=f"peers.{name} is .*; the power of .* that counts"):
            composition("dcfm-a", peers={name: power})
        federation = opened(corner_silos())
        list(CompositionServer(composition("ddm", experts=QUICK), federation).run())
        met = {name: torch.ones(4, dtype=torch.bool) for name in "ab"}
        question = PeerSteps(met, 2, 1.0, 1e-3, **{name: power})
        assert f"arrived with {name} = " in federation.ask(question).failures["a"]

    def test_a_silo_without_peers_refuses(self):
        from anabranch.methods.dcfm import PeerSteps

        federation = opened(corner_silos())
        list(CompositionServer(composition("ddm", experts=QUICK), federation).run())
        met = {name: torch.ones(4, dtype=torch.bool) for name in "ab"}
        failures = federation.ask(PeerSteps(met, 2, 1.0, 1e-3)).failures
        assert "has no expert of any of them" in failures["a"]
        assert "not 4 truths" in federation.ask(PeerSteps({"b": torch.ones(4)}, 2, 1.0, 1e-3)).failures["a"]
