"""The semi-discrete exchange: who wins a noise, what is refused, what travels, and what protects."""

import pytest
import torch

from anabranch.errors import QuorumError, RefusedError
from anabranch.federation import Clip, Envelope, Federation, Silo, tensors_of
from anabranch.methods.ffm import PRESETS, Award, FlowServer, Histograms, Lookup, dual_of, half_of, place, train_flow
from anabranch.methods.ffm._semidiscrete import noises_won, shared_noise
from anabranch.seeds import generator
from anabranch.transport import SemiDual, bisect, lookup


def spied(server):
    """Every message between server and silos as (silo, message), in order."""
    seen, ask = [], server.federation.engine.ask

    def listen(envelopes, timeout=None):
        replies = ask(envelopes, timeout)
        seen.extend((name, envelope.question) for name, envelope in envelopes.items())
        seen.extend(replies.answers.items())
        return replies

    server.federation.engine.ask = listen
    return seen


def stumbling(silo, kind, after):
    """The silo fails once at a question of this kind: before it acts, or after, when its reply is lost."""
    plain, hits = silo.answer, []

    def answer(envelope):
        hit = isinstance(envelope.question, kind) and not hits
        if hit:
            hits.append(1)
            if not after:
                raise OSError("no route to host")
        reply = plain(envelope)
        if hit:
            raise OSError("the reply was lost")
        return reply

    silo.answer = answer


def duals(silos):
    return {silo.name: dual_of(silo, half_of(silo)) for silo in silos}


def ask(silo, question, sequence=900):
    return silo.answer(Envelope("run", silo.round, sequence, question))


class TestWinners:
    def test_a_noise_goes_to_the_holder_of_the_pooled_minimum(self, lab):
        silos = lab.silos()
        server = lab.ready(lab.settings("semidiscrete", semidiscrete={"rounds": 30}), silos)
        held = duals(silos)
        atoms = torch.cat([held[s.name].atoms for s in silos])
        prices = torch.cat([held[s.name].average for s in silos])
        owner = torch.cat([torch.full((len(s),), i) for i, s in enumerate(silos)])
        numbers, settings = server.federation.numbers, server.settings.semidiscrete
        for block in range(server.semidiscrete.blocks):
            noise = shared_noise(half_of(silos[0]), numbers, "pool", block, settings.block)
            winner = owner[lookup(noise, atoms, prices).index]
            for i, silo in enumerate(silos):
                bits = silo.state[f"semidiscrete/won/{block:06d}"]
                won = torch.tensor([int(b) >> (7 - k) & 1 for b in bits for k in range(8)])[: settings.block].bool()
                assert torch.equal(won, winner == i)

    def test_every_noise_is_won_once_and_paired_with_its_pooled_argmin(self, lab):
        silos = lab.silos()
        server = lab.ready(lab.settings("semidiscrete"), silos)
        settings = server.settings.semidiscrete
        tables = [half_of(silo).coupling for silo in silos]
        assert sum(len(table.noise) for table in tables) == server.semidiscrete.blocks * settings.block
        for silo, table in zip(silos, tables, strict=True):
            assert torch.equal(table.noise[:], noises_won(silo, half_of(silo))[:])
            assert torch.equal(table.index, place(silo, table.noise[:]).index)

    def test_a_tie_goes_to_the_first_name(self, lab):
        x = torch.randn(20, 2, generator=generator(0))
        silos = [Silo(name, x) for name in "ba"]
        server = lab.server(lab.settings("semidiscrete"), silos)
        seen = spied(server)
        server.federation.start_round(1)
        server.semidiscrete.fit(1)
        won = {name: m.won for name, m in seen if isinstance(m, Award)}
        assert won["a"].all() and not won["b"].any()

    @pytest.mark.parametrize("weighting", ["size", "uniform"])
    def test_after_the_fit_every_silo_wins_its_share(self, lab, weighting):
        silos = lab.silos()
        options = {"rounds": 500, "count": 512, "noises": 20_000, "block": 10_000}
        server = lab.ready(lab.settings("semidiscrete", semidiscrete=options), silos, weighting=weighting)
        for silo in silos:
            share = len(half_of(silo).coupling.noise) / 20_000
            assert share == pytest.approx(server.federation.weight[silo.name], rel=0.05)
            usage = torch.bincount(half_of(silo).coupling.index, minlength=len(silo)) * len(silo) / (20_000 * share)
            assert usage.min() > 0.5 and usage.max() < 1.5

    def test_the_step_does_not_depend_on_how_the_points_are_divided(self, lab):
        """Otherwise silos that lie far apart take far larger steps than one holder of all points, and end worse."""
        silos = lab.silos()
        apart = lab.server(lab.settings("semidiscrete"), silos)
        together = lab.server(
            lab.settings("semidiscrete"), [Silo("all", torch.cat([s.data.x for s in silos]), secret=1)]
        )
        for server in (apart, together):
            server.federation.start_round(1)
            server.semidiscrete.fit(1)
        assert apart.semidiscrete.scale == pytest.approx(together.semidiscrete.scale, rel=0.2)

    def test_one_silo_alone_fits_as_without_a_federation(self, lab):
        silo = lab.silos((80,))[0]
        server = lab.ready(lab.settings("semidiscrete", semidiscrete={"rounds": 40}), [silo])
        half, numbers, blocks = half_of(silo), server.federation.numbers, iter(range(1, 41))
        alone = SemiDual.start(silo.data.x, torch.full((80,), 1 / 80))
        steps = server.settings.semidiscrete.first, server.settings.semidiscrete.last
        alone.fit(lambda count: shared_noise(half, numbers, "fit", next(blocks), count), 40, 128, *steps)
        assert torch.allclose(dual_of(silo, half).average, alone.average, atol=1e-9)

    def test_in_many_dimensions_a_silo_steps_by_a_unit_of_its_own_and_keeps_it(self, lab):
        drawn = torch.randn(120, 66, generator=generator(3)) * torch.linspace(1, 4, 120)[:, None]
        silos = [Silo(name, part, secret=i) for i, (name, part) in enumerate(zip("abc", drawn.split(40), strict=True))]
        options = {"rounds": 60, "count": 512, "noises": 20_000, "block": 10_000}
        lab.ready(lab.settings("semidiscrete", semidiscrete=options), silos)
        usage = torch.cat([torch.bincount(half_of(silo).coupling.index, minlength=40) for silo in silos]) / 20_000
        assert (usage - 1 / 120).square().sum() * 120 < 0.05
        units = [float(dual.unit) for dual in duals(silos).values()]
        assert units[0] < units[1] < units[2]
        for silo in silos:
            silo.cache.pop("semidual")  # as after a restart
        assert [float(dual.unit) for dual in duals(silos).values()] == units

    def test_the_reported_dual_climbs_and_the_misuse_falls(self, lab):
        server = lab.server(lab.settings("semidiscrete", semidiscrete={"rounds": 200, "count": 512}), lab.silos())
        seen = []
        for number in range(1, 201):
            server.federation.start_round(number)
            seen.append(server.semidiscrete.fit(number))
        assert sum(m["dual"] for m in seen[-20:]) / 20 > seen[0]["dual"] + 0.1
        assert sum(m["chi_square"] for m in seen[-20:]) / 20 < 0.05 * seen[0]["chi_square"]

    def test_the_misuse_of_the_right_duals_is_zero_on_average(self, lab):
        """Two points at ±1, a symmetric source: duals of zero are right, and what is left is counting noise."""
        silo = Silo("a", torch.tensor([[-1.0, 0.0], [1.0, 0.0]]), secret=1)
        server = lab.server(lab.settings("semidiscrete"), [silo])
        misuse = []
        for block in range(300):
            ask(silo, Lookup(server.federation.numbers, "fit", block, 64, False), 2 * block + 10)
            award = Award(torch.ones(64, dtype=torch.bool), "fit", block, 0.0, False, False)
            misuse.append(ask(silo, award, 2 * block + 11).chi_square)
        assert abs(sum(misuse) / 300) < 0.005  # counting alone would make 1/64


class TestRefusals:
    def question(self, server, **changes):
        fields = {"numbers": server.federation.numbers, "purpose": "fit", "block": 1, "count": 8, "settled": False}
        return Lookup(**{**fields, **changes})

    def test_noises_without_the_silos_own_number_are_refused(self, lab):
        silos = lab.silos()
        server = lab.server(lab.settings("semidiscrete"), silos)
        others = server.federation.numbers[1:]
        with pytest.raises(RefusedError, match="lacks its own number"):
            ask(silos[0], self.question(server, numbers=others))

    def test_every_number_and_the_block_move_the_noises(self, lab):
        silos = lab.silos()
        server = lab.server(lab.settings("semidiscrete"), silos)
        half, numbers = half_of(silos[0]), server.federation.numbers
        base = shared_noise(half, numbers, "fit", 1, 4)
        for other in (numbers + torch.tensor([0, 0, 1]), numbers + torch.tensor([0, 1, 0])):
            assert not torch.equal(base, shared_noise(half, other, "fit", 1, 4))
        assert not torch.equal(base, shared_noise(half, numbers, "fit", 2, 4))
        assert not torch.equal(base, shared_noise(half, numbers, "pool", 1, 4))

    @pytest.mark.parametrize("change", [{"block": 2}, {"purpose": "pool"}, {"won": torch.ones(9, dtype=torch.bool)}])
    def test_an_award_for_another_lookup_is_refused(self, lab, change):
        silos = lab.silos()
        server = lab.server(lab.settings("semidiscrete"), silos)
        ask(silos[0], self.question(server))
        fields = {"won": torch.ones(8, dtype=torch.bool), "purpose": "fit", "block": 1}
        award = Award(**{**fields, **change}, step=1.0, average=False, store=False)
        with pytest.raises(RefusedError, match="has not answered"):
            ask(silos[0], award, 901)

    def test_an_award_without_any_lookup_is_refused(self, lab):
        silos = lab.silos()
        lab.server(lab.settings("semidiscrete"), silos)
        with pytest.raises(RefusedError, match="has not answered"):
            ask(silos[0], Award(torch.ones(8, dtype=torch.bool), "fit", 1, 1.0, False, False))

    def test_a_limit_ends_the_fit_with_the_silos_sentence(self, lab):
        server = lab.server(lab.settings("semidiscrete"), lab.silos(limits={"ffm.lookup": 3 * 128}))
        server.federation.start_round(0)
        with pytest.raises(QuorumError, match=r"at most 384 answers to 'ffm\.lookup'"):
            lab.train(server)
        assert server.federation.round == 4


class TestFailures:
    def trained(self, lab, kind=None, after=False):
        silos = lab.silos()
        server = lab.server(lab.settings("semidiscrete"), silos)
        if kind is not None:
            stumbling(silos[1], kind, after)
        lab.train(server)
        return server.parameters, {s.name: s.state["semidiscrete/duals"] for s in silos}

    @pytest.mark.parametrize(("kind", "after"), [(Lookup, False), (Lookup, True), (Award, False)])
    def test_what_failed_once_is_asked_again_and_nothing_changes(self, lab, kind, after):
        (parameters, held), (others, theirs) = self.trained(lab), self.trained(lab, kind, after)
        assert all(torch.equal(parameters[n], others[n]) for n in parameters)
        assert all(torch.equal(held[n], theirs[n]) for n in held)

    def test_an_award_whose_reply_was_lost_is_not_carried_out_twice(self, lab):
        (_, held), (_, theirs) = self.trained(lab), self.trained(lab, Award, True)
        assert all(torch.equal(held[n], theirs[n]) for n in held)


class TestWhatTravels:
    @pytest.mark.parametrize("coupling", ["semidiscrete", "semidiscrete in groups"])
    def test_neither_points_nor_duals_nor_noises_are_in_any_message(self, lab, coupling):
        silos = lab.silos()
        server = lab.server(lab.settings(coupling), silos, fused=False)
        seen, secret = spied(server), [silo.data.x.flatten() for silo in silos]
        for progress in server.run():
            if progress.phase == "duals":
                secret += [held.duals[held.duals != 0].float() for held in duals(silos).values()]
                secret += [held.average[held.average != 0].float() for held in duals(silos).values()]
        secret += [half_of(silo).coupling.noise[:].flatten() for silo in silos]
        sent = [t.detach().flatten().float() for _, m in seen for t in tensors_of(m).values()]
        numbers = [v for _, m in seen for v in vars(m).values() if isinstance(v, float)]
        found = torch.isin(torch.cat(secret), torch.cat([*sent, torch.tensor(numbers)]))
        assert found.float().mean() < 1e-3  # two float32 in many thousands may agree by chance
        kinds = {m.kind for _, m in seen}
        assert kinds == {
            "ffm.lookup",
            "ffm.lookup.reply",
            "ffm.award",
            "ffm.award.reply",
            "ffm.settle",
            "done",
            "ffm.gradient",
            "ffm.gradient.reply",
        }

    def test_a_silo_learns_only_whether_it_won(self, lab):
        silos = lab.silos()
        server = lab.server(lab.settings("semidiscrete"), silos)
        seen = spied(server)
        server.federation.start_round(1)
        server.semidiscrete.fit(1)
        awards = [m for _, m in seen if isinstance(m, Award)]
        assert all(m.won.dtype == torch.bool for m in awards)
        assert torch.equal(sum(m.won.long() for m in awards), torch.ones(128, dtype=torch.long))


class TestProtection:
    def atoms(self, silo):
        return dual_of(silo, half_of(silo)).atoms

    def test_protected_atoms_are_means_of_groups(self, lab):
        silos = lab.silos()
        server = lab.server(lab.settings("semidiscrete in groups"), silos)
        for silo in silos:
            label = bisect(silo.data.x, 5)[-1]
            means = torch.stack([silo.data.x[label == g].mean(0) for g in range(int(label.max()) + 1)])
            assert torch.allclose(self.atoms(silo), means, atol=1e-5)
            masses = dual_of(silo, half_of(silo)).masses
            expected = server.federation.weight[silo.name] * torch.bincount(label) / len(silo)
            assert torch.allclose(masses, expected.double(), atol=1e-6)

    def test_the_silos_own_bound_is_stronger_than_the_servers_wish(self, lab):
        silos = lab.silos(smallest_group=10)
        lab.server(lab.settings("semidiscrete"), silos)
        assert all(len(self.atoms(silo)) <= len(silo) // 10 for silo in silos)

    def test_points_are_still_paired_one_by_one(self, lab):
        silos = lab.silos()
        lab.ready(lab.settings("semidiscrete in groups", semidiscrete={"local_rounds": 200, "noises": 4000}), silos)
        for silo in silos:
            assert len(half_of(silo).coupling.index.unique()) == len(silo)

    def test_guards_on_scores_turn_up_in_what_the_server_sees(self, lab):
        server = lab.server(
            lab.settings("semidiscrete"), lab.silos(), postprocessors=[Clip(0.5, ("ffm.lookup.reply",))]
        )
        seen = spied(server)
        server.federation.start_round(1)
        server.semidiscrete.fit(1)
        assert all(m.values.norm() <= 0.5001 for _, m in seen if m.kind == "ffm.lookup.reply")

    def test_a_silo_with_too_few_points_for_one_group_refuses(self, lab):
        silos = [Silo("a", lab.silos((50,))[0].data.x), Silo("b", torch.zeros(3, 2))]
        server = lab.server(lab.settings("semidiscrete in groups"), silos)
        with pytest.raises(RefusedError, match="groups of 5"):
            ask(silos[1], Lookup(server.federation.numbers, "fit", 1, 8, False))

    @pytest.mark.parametrize("coupling", ["independent", "minibatch", "potential", "entropic"])
    def test_a_silo_gives_no_gradient_of_a_batch_that_is_too_small(self, lab, coupling):
        silos = [Silo(name, lab.silos((50,))[0].data.x, smallest_group=20) for name in "ab"]
        server = lab.server(lab.settings(coupling, batch=8), silos)
        with pytest.raises(QuorumError, match="would rest on 8"):
            lab.train(server)

    def test_a_silo_gives_no_potential_gradient_of_a_batch_that_is_too_small(self, lab):
        silos = [Silo(name, lab.silos((50,))[0].data.x, smallest_group=20) for name in "ab"]
        server = lab.server(lab.settings("entropic", potential={"batch": 8}), silos)
        with pytest.raises(QuorumError, match="would rest on 8"):
            lab.train(server)

    def test_a_silo_counts_no_held_out_points_that_are_too_few(self, lab):
        silo = Silo("a", lab.silos((50,))[0].data.x, held_out=torch.zeros(3, 2), smallest_group=20)
        lab.server(lab.settings(), [silo])
        with pytest.raises(RefusedError, match="would rest on 3"):
            ask(silo, Histograms(torch.ones(1, 2), torch.zeros(1, 1)))

    def test_a_protected_run_after_a_bare_one_uses_groups(self, lab):
        silos = lab.silos()
        lab.train(lab.server(lab.settings("semidiscrete"), silos, run="bare"))
        lab.server(lab.settings("semidiscrete in groups"), silos, run="protected")
        assert all(len(self.atoms(silo)) <= len(silo) // 5 for silo in silos)

    def test_training_protected_after_training_bare_uses_groups(self, lab, monkeypatch):
        quick = {"rounds": 2, "local_rounds": 2, "count": 64, "noises": 256, "block": 256}
        for method in ("sd", "sd-protected"):
            monkeypatch.setitem(PRESETS, method, {**PRESETS[method], "semidiscrete": quick})
        silos = lab.silos()
        train_flow(silos, "sd", rounds=1, batch=8)
        train_flow(silos, "sd-protected", rounds=1, batch=8)
        assert all(len(self.atoms(silo)) <= len(silo) // 20 for silo in silos)

    def test_a_run_does_not_depend_on_a_former_one(self, lab):
        settings, silos = lab.settings("semidiscrete"), lab.silos()
        lab.train(lab.server(settings, silos, run="first"))
        second, fresh = lab.server(settings, silos, run="second"), lab.server(settings, lab.silos(), run="second")
        lab.train(second)
        lab.train(fresh)
        assert all(torch.equal(p, fresh.parameters[n]) for n, p in second.parameters.items())

    def test_a_rewind_does_not_give_answers_back(self, lab, tmp_path):
        """Otherwise a server rewinds as often as it likes and a limit limits nothing."""
        silos = lab.silos(folder=tmp_path, limits={"ffm.lookup": 128})
        settings = lab.settings("semidiscrete")
        server = lab.server(settings, silos)
        server.federation.start_round(1)
        server.federation.keep(0)
        server.semidiscrete.fit(1)
        federation = Federation(silos)
        federation.open("run", 5)
        federation.rewind(1)
        again = FlowServer(settings, federation)
        with pytest.raises(QuorumError):
            again.semidiscrete.fit(1)


def test_as_many_noises_are_assigned_as_were_asked_for(lab):
    silos = lab.silos()
    lab.ready(lab.settings("semidiscrete", semidiscrete={"noises": 500, "block": 200}), silos)
    assert sum(len(half_of(silo).coupling.noise) for silo in silos) == 500
