from dataclasses import replace
from itertools import pairwise
from statistics import fmean

import pytest
import torch
from scene import HELD, LEFT_BOTTOM, LEFT_TOP, NOVEL, RIGHT_BOTTOM, corner_silos, opened

from anabranch.data.attributes import CORNERS, NULL, AttributeSpace
from anabranch.errors import DataError, UsageError
from anabranch.federation import size
from anabranch.methods.dcfm import (
    COMPOSITIONS,
    Composition,
    CompositionServer,
    FederatedSettings,
    MixtureSettings,
    PeerSettings,
    StudentSettings,
    composition,
    survey,
    train_composition,
)
from anabranch.methods.experts import Expert, ExpertSettings

QUICK = {"steps": 6, "batch": 16, "hidden": 8, "layers": 1}
SECTIONS = {
    "experts": QUICK,
    "student": {"trajectories": 20, "path_steps": 3},
    "mixture": {"router_steps": 3, "router_samples": 20},
    "every": 3,
}


def quick(method):
    """A method with next to no training."""
    sections = {name: dict(value) if isinstance(value, dict) else value for name, value in SECTIONS.items()}
    preset = COMPOSITIONS[method]
    if "peers" in preset:
        sections["peers"] = {"rounds": 2, "steps": 2}
    if "student" in preset:
        sections["student"]["steps"] = 5
    if "federated" in preset:
        sections["federated"] = {"rounds": 3, "local_steps": 2}
    return composition(method, **sections)


@pytest.mark.parametrize("method", COMPOSITIONS)
class TestEveryMethod:
    def test_samples_every_combination(self, method):
        server = CompositionServer(quick(method), opened(corner_silos()))
        assert [p.round for p in server.run()] == list(range(1, server.rounds + 1))
        y = CORNERS.combinations().repeat(5, 1)
        flow = server.mixture().sample(y, torch.Generator().manual_seed(0), 4, dimension=2)
        assert flow.x1.shape == (20, 2) and bool(flow.x1.isfinite().all())

    def test_goes_on_to_the_bit_from_every_round(self, method, tmp_path):
        whole = CompositionServer(quick(method), opened(corner_silos()))
        states = [(p.round, whole.state()) for p in whole.run()]
        for number in range(1, len(states)):
            silos = corner_silos()
            for silo in silos:
                silo.folder = tmp_path / str(number) / silo.name
            first = CompositionServer(quick(method), opened(silos))
            for progress in first.run():
                if progress.round == number:
                    first.federation.keep(oldest=0)
                    break
            federation = opened(silos)
            federation.rewind(number)
            second = CompositionServer(quick(method), federation)
            second.load(states[number - 1][1])
            list(second.run(number))
            end = second.state()
            assert end.keys() == states[-1][1].keys()
            # Local plain and stacked passes agree to rounding only; both are stacked here.
            assert all(torch.equal(end[name], tensor) for name, tensor in states[-1][1].items()), (number, method)


class TestSurvey:
    def test_counts_only(self):
        found, _ = survey(opened(corner_silos(count=30)))
        assert found.counts["a"].tolist() == [15, 15, 0, 0] and found.novel.tolist() == [NOVEL]

    def test_silos_may_know_parts_of_the_space(self):
        north = AttributeSpace((("horizontal", ("left",)), ("vertical", ("top", "bottom"))))
        silos = corner_silos(count=30)
        silos[0].space, silos[0].data.label[:] = north, silos[0].data.label
        found, _ = survey(opened(silos))
        assert found.space.sizes == (2, 2) and int(found.total.sum()) == 60

    def test_samples_of_which_a_silo_tells_no_count_are_known_by_their_number(self):
        silos = [*corner_silos(count=30), *corner_silos(count=31, held={"c": (3, 3, 3, 3, 2)}, smallest_group=7)]
        found, _ = survey(opened(silos))
        assert found.counts["c"].tolist() == [0, 0, 0, 25] and found.withheld == {"c": 6}
        with pytest.raises(DataError, match=r"Silos 'a', 'b' tell no count of 60 samples.*smallest_group is told as 0"):
            survey(opened(corner_silos(count=30, smallest_group=16)))[0].check()

    def test_the_shape_of_images_is_that_of_whoever_tells_it(self):
        silos = corner_silos(count=30)
        assert survey(opened(silos))[1] == ()
        silos[1].shape = (1, 2, 1)
        assert survey(opened(silos))[1] == (1, 2, 1)
        silos[0].shape = (2, 1, 1)
        with pytest.raises(DataError, match=r"Silo 'b' has images of shape \(1, 2, 1\), 'a' of \(2, 1, 1\)"):
            survey(opened(silos))
        silos[0].shape = silos[1].shape = (1, 2, 2)
        with pytest.raises(DataError, match=r"Silo 'a' says .* which are 4 numbers; it has 2 a sample"):
            survey(opened(silos))

    def test_other_attributes_are_refused_by_name(self):
        silos = corner_silos(count=30)
        silos[1].space = AttributeSpace.of({"horizontal": ["left", "right"], "height": ["top", "bottom"]})
        with pytest.raises(DataError, match=r"(?s)silo 'a'.*silo 'b'"):
            survey(opened(silos))

    def test_an_outcome_outside_the_given_space_is_refused_by_name(self):
        given = AttributeSpace.of({"horizontal": ["left", "middle"], "vertical": ["top", "bottom"]})
        with pytest.raises(DataError, match="Silo 'b' disagrees"):
            survey(opened(corner_silos(count=30)), given)

    def test_too_little_coverage_is_refused_unless_forced(self):
        silos = corner_silos(held={"a": (0,), "b": (3,)})
        with pytest.raises(DataError, match="C_min"):
            CompositionServer(quick("dcfm-b"), opened(silos))
        forced = composition(
            "dcfm-b", experts=QUICK, student={"steps": 2, "trajectories": 8, "path_steps": 2}, force=True
        )
        assert CompositionServer(forced, opened(corner_silos(held={"a": (0,), "b": (3,)}))).warnings


SILENT = {"c": (LEFT_TOP, LEFT_BOTTOM, RIGHT_BOTTOM)}  # of each less than its smallest group: it tells no count


class TestSilentSilo:
    @pytest.mark.parametrize("method", ["ddm", "ddm-learned", "dfd", "dcfm-a", "dcfm-b"])
    def test_beside_others_gets_no_weight(self, method):
        silos = [*corner_silos(count=30), *corner_silos(count=30, held=SILENT, smallest_group=12)]
        server = CompositionServer(quick(method), opened(silos))
        list(server.run())
        assert not server.coverage.counts["c"].any() and "c" in server.experts
        assert server.held.withheld == server.coverage.withheld and "c" in server.held.withheld
        y = CORNERS.combinations()
        assert bool(server.mixture().sample(y, torch.Generator().manual_seed(0), 4, dimension=2).x1.isfinite().all())
        others = server.mixture_of_experts()
        weight = others.rule(torch.zeros(4, 2), torch.tensor(0.5), y, lambda: torch.zeros(3, 4, 2))
        assert not weight[:, 2].any() and torch.allclose(weight.sum(1), torch.ones(4, dtype=weight.dtype))
        assert weight[RIGHT_BOTTOM].tolist() == [0, 1, 0]  # only b is known to have met right

    def test_among_silent_ones_experts_count_alike_and_a_student_has_nothing_to_learn(self):
        def opened_all():
            return opened(corner_silos(count=30, held=dict.fromkeys("abc", SILENT["c"]), smallest_group=12))

        server = CompositionServer(replace(quick("ddm"), force=True), opened_all())
        list(server.run())
        nothing = torch.full((2, 2), NULL)
        weight = server.mixture().rule(torch.zeros(2, 2), torch.tensor(0.5), nothing, None)
        assert torch.allclose(weight, torch.full((2, 3), 1 / 3, dtype=weight.dtype))
        with pytest.raises(DataError, match=r"No silo tells a count.*lower smallest_group"):
            CompositionServer(replace(quick("dcfm-b"), force=True), opened_all())


class TestTraffic:
    """Table 3: how often each silo sends and receives parameters."""

    def parcels(self, method, silos=3):
        held = {name: HELD["a" if number % 2 == 0 else "b"] for number, name in enumerate("abc"[:silos])}
        federation = opened(corner_silos(held=held))
        server = CompositionServer(quick(method), federation)
        list(server.run())
        theta = size(Expert(server.shared))
        kinds = ("experts.expert", "gathered", "dcfm.adopt", "experts.local", "experts.local.reply")
        total: dict[tuple[str, str], int] = {}
        for entry in federation.ledger.entries():
            if entry.kind in kinds:
                total[entry.silo, entry.direction] = total.get((entry.silo, entry.direction), 0) + entry.bytes
        return {name: [total.get((name, way), 0) / theta for way in ("up", "down")] for name in held}

    def test_of_experts_is_one(self):
        assert all(up == pytest.approx(1) and down == 0 for up, down in self.parcels("ddm").values())

    def test_of_a_student_is_two(self):
        assert all(up + down == pytest.approx(2, rel=0.1) for up, down in self.parcels("dcfm-b").values())

    def test_of_peers_is_n_a_round_and_once_before(self):
        rounds, silos = 2, 3
        for up, down in self.parcels("dcfm-a").values():
            assert up == pytest.approx(rounds + 1, rel=0.1)
            assert down == pytest.approx((rounds + 1) * (silos - 1), rel=0.2)

    def test_of_averaging_is_two_a_round(self):
        assert all(up + down == pytest.approx(6, rel=0.1) for up, down in self.parcels("fedflow").values())


def test_a_warm_up_is_the_servers_not_every_rounds():
    """FedFlow with one silo that trains for one step a round takes the same first steps as a warm-up says."""
    settings = composition(
        "fedflow",
        experts={**QUICK, "warm_up": 4, "rate": 1e-2, "schedule": "constant"},
        federated={"rounds": 4, "local_steps": 1},
    )
    server = CompositionServer(settings, opened(corner_silos(held={"a": (0, 1, 3)})))
    places = [server.shared]
    places += [server.shared for _ in server.run()]
    moved = [max(float((b[name] - a[name]).abs().max()) for name in a) for a, b in pairwise(places)]
    assert moved == pytest.approx([0.0025, 0.005, 0.0075, 0.01], rel=1e-2)  # Adam's first step is as long as the rate


@pytest.mark.parametrize("local_steps", [10, 30, 60])
def test_a_round_has_the_mean_rate_of_as_many_steps_of_an_expert(monkeypatch, local_steps):
    """So a warm-up counts for as many steps, however long rounds are, and FedFlow trains at its rivals' rate."""
    experts = {**QUICK, "warm_up": 30, "rate": 1e-2, "schedule": "cosine"}
    settings = composition(
        "fedflow", experts=experts, federated={"rounds": 240 // local_steps, "local_steps": local_steps}
    )
    server = CompositionServer(settings, opened(corner_silos(held={"a": (0, 1, 3)})))
    asked, before = [], server.federation.mean

    def mean(question, to):
        asked.append(question.rate)
        return before(question, to)

    monkeypatch.setattr(server.federation, "mean", mean)
    list(server.run())
    alone = [settings.experts.rule(240).rate_at(step) for step in range(240)]
    assert len(asked) == 240 // local_steps and fmean(asked) == pytest.approx(fmean(alone))
    assert asked[0] == pytest.approx(fmean(alone[:local_steps])) and asked[0] < 0.8 * max(alone)


class TestRefusals:
    def test_peers_need_peers(self):
        with pytest.raises(UsageError, match="there is one silo"):
            CompositionServer(quick("dcfm-a"), opened(corner_silos(held={"a": (0, 1, 3)})))

    def test_averaging_leaves_no_experts_for_a_student(self):
        with pytest.raises(UsageError, match="no experts for peers or a student"):
            composition("fedflow", student={"steps": 3})

    def test_composed_paths_need_experts_that_compose(self):
        with pytest.raises(UsageError, match="need experts that compose"):
            composition("dcfm-b", student={"paths": "composed"})

    @pytest.mark.parametrize(
        ("method", "sections", "said"),
        [
            ("dcfm-a", {"student": {"steps": 3}}, "student.steps is 3, but 'dcfm-a' has none"),
            ("dcfm-b", {"student": {"steps": 0}}, "student.steps is 0, but 'dcfm-b' needs"),
            ("ddm", {"peers": {"rounds": 1}}, "peers.rounds is 1, but 'ddm' has none"),
        ],
    )
    def test_a_named_method_has_its_own_stages(self, method, sections, said):
        with pytest.raises(UsageError, match=said):
            composition(method, **sections)

    @pytest.mark.parametrize(
        ("section", "values"),
        [
            ("peers", {"penalty": -1.0}),
            ("peers", {"order": "random"}),
            ("student", {"penalty": float("nan")}),
            ("student", {"novel": 2.0}),
            ("mixture", {"router": "random"}),
            ("mixture", {"temperature": -1.0}),
            ("mixture", {"temperature": float("inf")}),
            ("federated", {"rounds": -1}),
            ("student", {"stepps": 3}),
        ],
    )
    def test_sections_that_cannot_be(self, section, values):
        with pytest.raises(UsageError):
            composition("ddm", **{section: values})

    @pytest.mark.parametrize(
        ("sections", "says"),
        [
            ({"experts": 3}, r"experts is 3; it is a section: give its keys, as in experts=\{'network': …\}"),
            ({"student": ["steps"]}, r"student is \['steps'\]; it is a section"),
            ({"experts": {"penalty": "5"}}, "experts.penalty is '5'; a value of type float is needed"),
            ({"experts": {"hidden": 2.5}}, "experts.hidden is 2.5; a value of type int is needed"),
            ({"experts": {"layers": "3"}}, "experts.layers is '3'; a value of type int"),
            ({"experts": {"shape": 3}}, "experts.shape is 3; a value of type tuple"),
            ({"peers": {"rounds": "2"}}, "peers.rounds is '2'; a value of type int"),
            ({"student": {"additive": 1}}, "student.additive is 1; a value of type bool"),
            ({"mixture": {"top": None}}, "mixture.top is None; a value of type int"),
            ({"every": "often"}, "every is 'often'; a value of type int"),
            ({"every": {"steps": 3}}, "every is .*; a value of type int"),
        ],
    )
    def test_values_of_another_type_are_refused_by_section_and_key(self, sections, says):
        with pytest.raises(UsageError, match=says):
            train_composition(corner_silos(), "ddm", **sections)

    @pytest.mark.parametrize(
        ("kind", "values", "says"),
        [
            (ExpertSettings, {"penalty": "5"}, "experts.penalty is '5'"),
            (FederatedSettings, {"rounds": "5"}, "federated.rounds is '5'"),
            (PeerSettings, {"steps": 1.5}, "peers.steps is 1.5"),
            (StudentSettings, {"since": "late"}, "student.since is 'late'"),
            (MixtureSettings, {"top": "all"}, "mixture.top is 'all'"),
            (Composition, {"experts": {"steps": 3}}, "experts is .*; a value of type ExpertSettings"),
        ],
    )
    def test_records_refuse_them_too(self, kind, values, says):
        with pytest.raises(UsageError, match=says):
            kind(**values)

    def test_a_method_is_a_name_or_settings(self):
        with pytest.raises(UsageError, match="method is 3; give the name of one"):
            train_composition(corner_silos(), 3)

    def test_lists_and_whole_numbers_stand_for_what_they_can_be(self):
        found = composition("ddm", experts={"multipliers": [1, 2], "penalty": 5})
        assert found.experts.multipliers == (1, 2) and found.experts.penalty == 5.0
        own = ExpertSettings(steps=3)
        assert composition("ddm", experts=own).experts is own

    def test_settings_of_ones_own_take_no_sections(self):
        with pytest.raises(UsageError, match="change those"):
            train_composition(corner_silos(), Composition(), student={"steps": 1})
