from itertools import pairwise

import pytest
import torch
from scene import HELD, NOVEL, corner_silos, opened

from anabranch.data.attributes import CORNERS, AttributeSpace
from anabranch.errors import DataError, UsageError
from anabranch.federation import size
from anabranch.methods.dcfm import (
    COMPOSITIONS,
    Composition,
    CompositionServer,
    check_stages,
    composition,
    survey,
    train_composition,
)
from anabranch.methods.experts import Expert

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
        found = survey(opened(corner_silos(count=30)))
        assert found.counts["a"].tolist() == [15, 15, 0, 0] and found.novel.tolist() == [NOVEL]

    def test_silos_may_know_parts_of_the_space(self):
        north = AttributeSpace((("horizontal", ("left",)), ("vertical", ("top", "bottom"))))
        silos = corner_silos(count=30)
        silos[0].space, silos[0].data.label[:] = north, silos[0].data.label
        found = survey(opened(silos))
        assert found.space.sizes == (2, 2) and int(found.total.sum()) == 60

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
            check_stages(method, composition(method, **sections))
        check_stages(method, composition(method))

    @pytest.mark.parametrize(
        ("section", "values"),
        [
            ("peers", {"penalty": -1.0}),
            ("peers", {"order": "random"}),
            ("student", {"penalty": float("nan")}),
            ("student", {"novel": 2.0}),
            ("mixture", {"router": "random"}),
            ("mixture", {"temperature": -1.0}),
            ("federated", {"rounds": -1}),
            ("student", {"stepps": 3}),
        ],
    )
    def test_sections_that_cannot_be(self, section, values):
        with pytest.raises(UsageError):
            composition("ddm", **{section: values})

    def test_settings_of_ones_own_take_no_sections(self):
        with pytest.raises(UsageError, match="change those"):
            train_composition(corner_silos(), Composition(), student={"steps": 1})
