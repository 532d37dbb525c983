"""Training: phases, participation, local steps, failures, and going on from any round to the same bits."""

import pytest
import torch
from torch.func import functional_call

from anabranch.coupling import MinibatchOT
from anabranch.data import Cloud
from anabranch.errors import QuorumError, RefusedError, UsageError
from anabranch.federation import Envelope, Federation, Participation, Silo
from anabranch.flow import network
from anabranch.methods.ffm import (
    CouplingSettings,
    FlowMatching,
    FlowServer,
    FlowSettings,
    Gradient,
    Histograms,
    LocalSteps,
    PotentialGradient,
    PotentialSettings,
    SemiDiscreteSettings,
    half_of,
)
from anabranch.methods.ffm._settings import COUPLINGS
from anabranch.metrics import projection_counts
from anabranch.seeds import generator

NAMES = ["independent", "minibatch", "potential", "entropic", "balanced", "semidiscrete", "semidiscrete in groups"]


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def stumbling(silo, kind, times=10**9, after=False):
    """Makes a silo fail at questions of a kind: before it looks at them, or after it has acted on them."""
    plain, left = silo.answer, [times]

    def answer(envelope):
        hit = isinstance(envelope.question, kind) and left[0] > 0
        if hit:
            left[0] -= 1
        if hit and not after:
            raise OSError("no route to host")
        reply = plain(envelope)
        if hit:
            raise OSError("the reply was lost")
        return reply

    silo.answer = answer


class TestPhases:
    @pytest.mark.parametrize("name", NAMES)
    def test_rounds_are_counted_through_all_phases(self, lab, name):
        server = lab.server(lab.settings(name), lab.silos())
        seen = list(server.run())
        assert [p.round for p in seen] == list(range(1, server.rounds + 1))
        phases = {"p": ["potential"], "s": ["duals", "assign"], "e": ["potential"], "b": ["potential"]}
        assert list(dict.fromkeys(p.phase for p in seen)) == [*phases.get(name[0], []), "flow"]
        assert all(torch.isfinite(torch.as_tensor(float(v))) for p in seen for v in p.metrics.values())

    @pytest.mark.parametrize("name", NAMES)
    def test_some_silos_a_round_are_enough(self, lab, name):
        server = lab.server(lab.settings(name), lab.silos(), participation=Participation("random", 2))
        seen = [p for p in server.run() if p.phase == "flow"]
        assert [p.metrics["answered"] for p in seen] == [2] * 4

    @pytest.mark.parametrize("name", ["independent", "minibatch", "balanced", "semidiscrete"])
    def test_training_lowers_the_loss(self, lab, name):
        server = lab.server(lab.settings(name, rounds=150, rate=5e-3), lab.silos())
        losses = [float(p.metrics["loss"]) for p in server.run() if p.phase == "flow"]
        assert sum(losses[-20:]) < 0.85 * sum(losses[:20])

    def test_a_potential_that_goes_on_learning_is_updated_every_so_often(self, lab):
        server = lab.server(lab.settings("potential", every=2), lab.silos())
        assert ["semidual" in p.metrics for p in server.run() if p.phase == "flow"] == [False, True, False, True]

    def test_the_finished_potential_is_given_to_every_silo(self, lab):
        silos = lab.silos()
        server = lab.ready(lab.settings("potential"), silos)
        for silo in silos:
            mine = dict(half_of(silo).potential.named_parameters())
            assert equal({n: p.detach() for n, p in mine.items()}, server.potential.parameters)

    def test_the_potential_ascends(self, lab):
        """Its semi-dual, on one and the same batch, is larger after some updates than before."""
        server = lab.server(lab.settings("balanced", potential={"before": 60}), lab.silos())

        def value():
            server.federation.start_round(1000)
            return float(server.federation.mean(PotentialGradient(server.potential.parameters)).reply.value)

        before = value()
        for number in range(60):
            server.federation.start_round(number)
            server.potential.update()
        assert value() > before

    def test_velocities_come_from_the_averaged_parameters(self, lab):
        server = lab.server(lab.settings(), lab.silos())
        lab.train(server)
        x, t = torch.ones(3, 2), torch.tensor(0.5)
        for averaged, parameters in ((True, server.average.parameters), (False, server.parameters)):
            assert torch.equal(server.velocity(averaged)(x, t), functional_call(server.network, parameters, (x, t)))

    def test_a_source_of_points_reaches_the_silos(self, lab):
        federation = Federation(silos := lab.silos())
        federation.open("run", 0)
        points = torch.randn(64, 2, generator=generator(0))
        lab.train(FlowServer(lab.settings(), federation, points))
        source = half_of(silos[0]).source
        assert isinstance(source, Cloud) and torch.equal(source.x, points)


class TestLocalSteps:
    def question(self, server, steps, rate):
        return LocalSteps(server.parameters, {}, steps, rate)

    def test_two_steps_are_two_steps_of_adam(self, lab):
        silos = lab.silos()
        server = lab.server(lab.settings(), silos)
        reply = server.federation.ask(self.question(server, 2, 1e-2)).answers["b"]
        field = network("mlp", 2, 0, hidden=16, layers=2)
        field.load_state_dict(server.parameters)
        optimizer, first = torch.optim.Adam(field.parameters(), lr=1e-2), None
        for step in range(2):
            sample = half_of(silos[1]).example(silos[1], step)
            loss = (field(sample.x_t, sample.t) - sample.u_t).square().mean()
            first = loss.detach() if first is None else first
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert torch.allclose(reply.loss, first)
        for name, parameter in field.named_parameters():
            assert torch.allclose(reply.gradients[name], server.parameters[name] - parameter.detach(), atol=1e-6)

    def test_the_first_step_goes_against_the_sign_of_the_gradient(self, lab):
        """Adam's first step is rate · sign(∇): one tiny local step tells the direction of the plain gradient."""
        server = lab.server(lab.settings(), lab.silos(), fused=False)
        gradient = server.federation.ask(Gradient(server.parameters, {})).answers["a"].gradients
        moved = server.federation.ask(self.question(server, 1, 1e-4)).answers["a"].gradients
        for name, g in gradient.items():
            large = g.abs() > 1e-3
            assert torch.allclose(moved[name][large] / 1e-4, g[large].sign(), atol=2e-2)

    def test_the_server_averages_the_parameters(self, lab):
        server = lab.server(lab.settings(local_steps=3, local_rate=1e-2, rounds=1), lab.silos())
        start = {name: p.clone() for name, p in server.parameters.items()}
        server.federation.start_round(1)
        replies = server.federation.ask(self.question(server, 3, 1e-2)).answers
        lab.train(server)
        for name, parameter in server.parameters.items():
            mean = sum(server.federation.weight[s] * (start[name] - r.gradients[name]) for s, r in replies.items())
            assert torch.allclose(parameter, mean, atol=1e-6)

    def test_the_questions_parameters_are_left_alone(self, lab):
        server = lab.server(lab.settings(), lab.silos())
        before = {name: p.clone() for name, p in server.parameters.items()}
        server.federation.ask(self.question(server, 3, 1e-2))
        assert equal(before, server.parameters)


class TestResume:
    """Stopped after any round of any phase and started again from disk, a run ends with the same bits."""

    @pytest.mark.parametrize(
        ("name", "options"),
        [
            ("minibatch", {}),
            ("potential", {}),
            ("potential", {"every": 2}),
            ("balanced", {}),
            ("semidiscrete", {}),
            ("semidiscrete in groups", {}),
            ("independent", {"local_steps": 2}),
        ],
    )
    def test_from_every_round(self, lab, tmp_path, name, options):
        settings = lab.settings(name, **options)
        whole = lab.server(settings, lab.silos())
        lab.train(whole)
        first = lab.server(settings, lab.silos(folder=tmp_path))
        states = {}
        for progress in first.run():
            first.federation.keep(oldest=0)
            states[progress.round] = first.state()
        assert equal(first.parameters, whole.parameters)
        for stop in range(1, whole.rounds):
            silos = lab.silos(folder=tmp_path)
            federation = Federation(silos)
            federation.open("run", 5)
            federation.rewind(stop)
            server = FlowServer(settings, federation)
            server.load(states[stop])
            lab.train(server, done=stop)
            assert equal(server.parameters, whole.parameters), f"after round {stop}"
            assert equal(server.average.parameters, whole.average.parameters)


class TestFailures:
    def test_a_silo_that_fails_is_left_out_by_name(self, lab):
        silos = lab.silos()
        server = lab.server(lab.settings(), silos, fused=False)
        stumbling(silos[1], Gradient)
        for progress in server.run():
            assert list(progress.failures) == ["b"] and "no route to host" in progress.failures["b"]
            assert progress.metrics["answered"] == 2

    def test_below_the_quorum_the_run_stops(self, lab):
        silos = lab.silos()
        server = lab.server(lab.settings(), silos, fused=False, quorum=3)
        stumbling(silos[1], Gradient)
        with pytest.raises(QuorumError, match="2 silos answered in round 1, and 3 are needed"):
            lab.train(server)

    def test_a_silo_that_fails_at_the_potential_is_named_too(self, lab):
        silos = lab.silos()
        server = lab.server(lab.settings("potential"), silos, fused=False)
        stumbling(silos[1], PotentialGradient)
        assert list(next(iter(server.run())).failures) == ["b"]

    def test_questions_before_the_settings_are_refused(self):
        silo = Silo("a", torch.zeros(3, 2))
        with pytest.raises(RefusedError, match="before it was told the settings"):
            silo.answer(Envelope("run", 1, 1, Gradient({}, {})))

    def test_training_before_the_assignment_is_refused(self, lab):
        silos = lab.silos()
        server = lab.server(lab.settings("semidiscrete"), silos)
        with pytest.raises(RefusedError, match="noises must be assigned before"):
            silos[0].answer(Envelope("run", 1, 1, Gradient(server.parameters, {})))

    def test_a_potential_is_improved_only_where_there_is_one(self, lab):
        silos = lab.silos()
        lab.server(lab.settings("minibatch"), silos)
        with pytest.raises(RefusedError, match="'minibatch' has no potential"):
            silos[0].answer(Envelope("run", 1, 1, PotentialGradient({})))


class TestHistograms:
    def test_count_held_out_points_and_no_others(self):
        held_out = torch.randn(50, 2, generator=generator(1))
        silo = Silo("a", torch.full((20, 2), 100.0), held_out=held_out)
        directions, edges = torch.eye(2), torch.tensor([[-1.0, 0.0, 1.0]]).repeat(2, 1)
        counts = silo.answer(Envelope("run", 1, 1, Histograms(directions, edges))).counts
        assert torch.equal(counts, projection_counts(held_out, directions, edges)) and counts.sum(1).tolist() == [
            50,
            50,
        ]

    def test_are_refused_where_nothing_is_held_out(self):
        with pytest.raises(RefusedError, match="holds no points out"):
            Silo("a", torch.zeros(3, 2)).answer(Envelope("r", 1, 1, Histograms(torch.eye(2), torch.zeros(2, 1))))


class TestSettings:
    def test_survive_the_way_to_a_silo(self, lab):
        for name in lab.couplings:
            settings = lab.settings(name, every=3, clip=0.5)
            assert FlowMatching.from_json(settings.to_json()) == settings

    def test_unknown_keys_are_refused_with_the_nearest(self):
        with pytest.raises(UsageError, match="did you mean 'batch'"):
            FlowMatching.from_json('{"flow":{"bach":3}}')
        with pytest.raises(UsageError, match="did you mean 'flow'"):
            FlowMatching.from_json('{"flw":{}}')

    @pytest.mark.parametrize(
        "build",
        [
            lambda: CouplingSettings("semidiscret"),
            lambda: CouplingSettings(group=0),
            lambda: SemiDiscreteSettings(rounds=0),
            lambda: SemiDiscreteSettings(block=0),
            lambda: FlowMatching(FlowSettings(rounds=0)),
            lambda: FlowMatching(FlowSettings(average=1.0)),
            lambda: FlowMatching(FlowSettings(path="target"), CouplingSettings("minibatch")),
        ],
    )
    def test_what_cannot_be_is_refused(self, build):
        with pytest.raises(UsageError):
            build()

    @pytest.mark.parametrize(
        ("name", "options", "key"),
        [
            ("minibatch", {"solver": "foo"}, "solver"),
            ("minibatch", {"solver": "sinkhorn", "epsilon": 0.0}, "epsilon"),
            ("minibatch", {"epsilon": float("nan")}, "epsilon"),
            ("entropic", {"epsilon": -1.0}, "epsilon"),
            ("potential", {"transform": "wrong"}, "transform"),
            ("potential", {"transform": "descent", "descent_rate": -0.5}, "descent_rate"),
            ("balanced", {"transform": "descent", "descent_rate": float("inf")}, "descent_rate"),
            ("potential", {"transform": "descent", "descent_steps": -1}, "descent_steps"),
            ("balanced", {"candidates": 0}, "candidates"),
        ],
    )
    def test_options_of_couplings_are_refused_by_their_key_before_a_silo_is_asked(self, name, options, key):
        with pytest.raises(UsageError, match=f"coupling.{key} "):
            CouplingSettings(name, **options)
        CouplingSettings(**options)  # nobody looks at them

    def test_options_that_a_coupling_does_not_look_at_may_say_anything(self):
        one = CouplingSettings("minibatch", solver="exact", epsilon=0.0, transform="wrong", candidates=0)
        assert one.epsilon == 0.0 and COUPLINGS["minibatch"](one, 1.0) == MinibatchOT("exact", 0.0)
        other = CouplingSettings("potential", epsilon=0.0, descent_rate=-1.0, solver="foo")
        assert FlowMatching(coupling=other).coupling == other

    @pytest.mark.parametrize(
        "build",
        [
            lambda: FlowMatching(
                coupling=CouplingSettings("potential"), potential=PotentialSettings(before=0, every=0)
            ),
            lambda: FlowMatching(FlowSettings(local_steps=-1)),
            lambda: SemiDiscreteSettings(first=-1.0),
            lambda: SemiDiscreteSettings(last=0.0),
            lambda: PotentialSettings(batch=0),
        ],
        ids=["untrained potential", "negative local steps", "negative first step", "last step of zero", "empty batch"],
    )
    def test_what_cannot_be_either_is_refused(self, build):
        with pytest.raises(UsageError):
            build()
