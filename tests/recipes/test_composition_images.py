"""The study `composition_images`: its images, that stages are shared, what is counted, and what a picture shows."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from anabranch.data.attributes import COLORS, Coverage
from anabranch.errors import UsageError
from anabranch.methods.dcfm import COMPOSITIONS, CompositionServer
from anabranch.recipes import recipe, run_checks
from anabranch.recipes._study import StudyCell, StudyRun
from anabranch.recipes.studies import _composition_images_data as data
from anabranch.recipes.studies import _composition_images_pictures as pictures
from anabranch.recipes.studies import composition_images as study
from anabranch.recipes.studies._composition_images_metrics import eyes
from anabranch.recipes.studies._composition_images_training import settings_of
from anabranch.runs import merged

TINY = {
    "samples": 60,
    "unconditional": 20,
    "others": {"samples": 20},
    "every": 2,
    "silos": 3,
    "budget": 8,
    "experts": {"network": "conditional-unet", "channels": 2, "batch": 4, "precision": "float32"},
    "federated": {"rounds": 2},
    "peers": {"rounds": 2, "steps": 2},
    "student": {"steps": 4, "batch": 4, "trajectories": 8, "path_steps": 3, "refresh": 2},
    "sampling": {"batch": 50, "nfe": 2},
    "judge": {"images": 600, "epochs": 1, "batch": 64},
    "inception": {"use": False},
}
METHODS = ["fedflow", "fedflow+l", "ddm", "ddm+l", "dfd", "dfd+l", "dcfm-a", "dcfm-b", "additive", "hybrid"]


def cell(out: Path, method: str, problem="digits-iid", name="dcfm-cmnist", **options) -> StudyCell:
    chosen = merged(recipe(name).options(problem, method, "smoke"), TINY, options)
    chosen["experts"].pop("steps", None)  # where a recipe has them, instead of a budget
    folder = out / problem / method / "seed-0"
    folder.mkdir(parents=True, exist_ok=True)
    return StudyCell(problem, method, 0, "smoke", chosen, folder, 1)


def values(rows):
    return {row["metric"]: row["value"] for row in rows}


def without_seconds(found):
    return {metric: value for metric, value in found.items() if "seconds" not in metric}


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Rows of all methods, by method, and where they lie."""
    out = tmp_path_factory.mktemp("images")
    found = {}
    for method in ["real", *METHODS]:
        run = StudyRun("composition_images", cell(out, method))
        run.run()
        found[method] = run.rows()
    return out, found


def test_shapes_are_where_and_as_large_as_their_labels_say():
    made = data.shapes("train", 3000, 0)
    kind, scale, place = made.codes.T
    light = (made.x.reshape(-1, 12, 12) + 1) / 2
    axis = torch.arange(12.0)
    mass = light.sum((1, 2))
    down, across = (light.sum(2) * axis).sum(1) / mass, (light.sum(1) * axis).sum(1) / mass
    assert torch.equal((down > 5.5).long() * 2 + (across > 5.5).long(), place)
    for shape in range(3):
        sizes = [float(mass[(kind == shape) & (scale == level)].mean()) for level in range(3)]
        assert sizes[0] < 0.7 * sizes[1] < 0.7 * 0.7 * sizes[2]
    # At equal area, a square reaches least far from its centre and a diamond furthest.
    reach = [float(light[(kind == shape) & (scale == 2)].amax(2).gt(0.5).sum(1).float().mean()) for shape in range(3)]
    assert reach[0] < reach[1] < reach[2]


def test_shapes_show_observed_combinations_only_and_follow_from_the_seed():
    made = data.shapes("train", 500, 3, "minimal")
    coverage = Coverage.of(data.DRAWN, {"all": made.label})
    assert coverage.share == coverage.minimum and bool(coverage.determined.all())
    assert torch.equal(made.x, data.shapes("train", 500, 3, "minimal").x)
    assert not torch.equal(made.x, data.shapes("test", 500, 3, "minimal").x)
    with pytest.raises(UsageError, match="0 shapes were asked for"):
        data.shapes("train", 0, 0)


def test_a_scene_has_known_and_novel_test_images_and_silos_that_hold_known_ones_alone(tmp_path):
    found = data.scene(cell(tmp_path, "ddm", "digits-dirichlet"))
    held = torch.cat([part.label for part in found.silos.values()])
    assert found.observed.float().mean() == 0.5 and bool(found.observed[held].all())
    digit, color = found.space.combinations().T
    assert torch.equal(found.observed, (digit + color) % 10 < 5)
    assert bool(found.observed[found.real["known"].label].all()) and not found.observed[found.real["novel"].label].any()
    assert len(found.real["novel"]) == TINY["samples"]


def test_the_recipe_lists_the_colours():
    assert recipe("dcfm-cmnist").values["colors"] == {name: list(rgb) for name, rgb in COLORS.items()}


@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
def test_silos_take_as_many_steps_for_every_method(scale):
    cmnist = recipe("dcfm-cmnist")
    for method in METHODS:
        options = cmnist.options("iid", method, scale)
        settings = settings_of(method, options, (3, 28, 28))
        federated, peers = settings.federated, settings.peers
        steps = settings.experts.steps + peers.rounds * peers.steps
        if federated.rounds:  # which has no experts of its own
            steps = federated.rounds * federated.local_steps
        assert steps == options["budget"], method


def test_a_budget_that_is_used_up_beside_peers_is_refused():
    options = merged(recipe("dcfm-cmnist").options("iid", "dcfm-a", "small"), {"budget": 1200})
    with pytest.raises(UsageError, match="budget is 1200, and 1200 steps are beside peers"):
        settings_of("dcfm-a", options, (3, 28, 28))


@pytest.mark.parametrize(
    ("method", "change", "sentence"),
    [
        ("fedflow", {"budget": 6119}, "budget is 6119, which 120 rounds of FedFlow cannot share"),
        ("fedflow", {"budget": 60}, "budget is 60, which 120 rounds of FedFlow cannot share"),
        ("ddm", {"experts": {"steps": 77}}, "and so does experts.steps"),
        ("fedflow", {"federated": {"local_steps": 7}}, "and so does federated.local_steps"),
    ],
)
def test_a_budget_that_cannot_be_shared_is_refused(method, change, sentence):
    options = merged(recipe("dcfm-cmnist").options("iid", method, "small"), change)
    with pytest.raises(UsageError, match=sentence):
        settings_of(method, options, (3, 28, 28))


def test_a_budget_counts_the_rounds_that_a_preset_has_beside_peers():
    options = recipe("dcfm-cmnist").options("iid", "dcfm-a", "small")
    settings = settings_of("dcfm-a", {**options, "peers": {}, "budget": 2000}, (3, 28, 28))
    assert settings.experts.steps + settings.peers.rounds * settings.peers.steps == 2000 > settings.experts.steps


def test_all_methods_have_one_network_and_one_penalty():
    cmnist = recipe("dcfm-cmnist")
    options = cmnist.options("iid", "ddm", "small")
    found = {method: settings_of(method, cmnist.options("iid", method, "small"), (3, 28, 28)) for method in METHODS}
    assert len({(s.experts.network, s.experts.channels, s.experts.batch) for s in found.values()}) == 1
    without = ("fedflow", "ddm", "dfd", "dcfm-b", "additive")  # students have a penalty of their own, or add up
    assert {s.experts.penalty for m, s in found.items() if m not in without} == {options["penalty"]}
    assert {found[method].experts.penalty for method in without} == {0}
    assert found["dcfm-b"].student.penalty == options["penalty"]
    assert found["dcfm-a"].peers.penalty == options["peers"]["penalty"] == 1.0  # its own, not that of Stage I
    assert found["dcfm-a"].peers.early > 0 and found["dcfm-a"].peers.held
    assert cmnist.options("iid", "dfd+l", "small")["novel"] == cmnist.options("iid", "ddm+l", "small")["novel"]
    assert found["additive"].student.penalty == found["hybrid"].student.penalty == 0
    assert found["additive"].student.additive and found["hybrid"].student.paths == "composed"
    assert {found[method].student.paths for method in ("dcfm-b", "additive")} == {"together"}
    assert not found["ddm+l"].student.steps and not found["dcfm-b"].peers.rounds
    assert found["hybrid"].peers == found["dcfm-a"].peers
    assert found["dcfm-b"].student.steps == found["additive"].student.steps == found["hybrid"].student.steps
    rate = options["experts"]["rate"]
    assert {s.experts.rate for s in found.values()} == {found["additive"].student.rate} == {rate}
    assert found["dcfm-b"].student.rate == rate / 2  # with the penalty its loss jumps at the whole rate


def test_terms_apart_have_the_weights_of_novel_samples(tmp_path, monkeypatch):
    """But for the additive student, whose novel samples are guided by one weight."""
    asked = []
    monkeypatch.setattr(study, "sampled", lambda *place: asked.append(place[-1]))
    look = SimpleNamespace(obeyed=lambda *_: {}, compare=lambda *_: {}, features=lambda x: x)
    for method, weights in (("ddm+l", [6.0, 3.0]), ("dcfm-a", [6.0, 2.0]), ("additive", [6.0, 3.0])):
        one = replace(cell(tmp_path, method), options=recipe("dcfm-cmnist").options("dirichlet", method, "small"))
        scene = SimpleNamespace(
            real={"novel": SimpleNamespace(codes=torch.zeros(9, 2))}, space=SimpleNamespace(names=())
        )
        study._other_ways(None, one, scene, look, torch.device("cpu"))
        assert [(way.how, way.weights) for way in asked[-4:]] == [
            ("composed", weights),
            ("joint", None),
            ("composed", [1.0, 1.0]),
            ("guided", [3.0]),
        ]


def test_stages_are_computed_once(everything):
    out, _ = everything
    names = sorted(path.name.rsplit("-", 1)[0] for path in (out / "shared").glob("*.tensors"))
    last = ["federated"] * 2 + ["judge", "peers"] + ["student"] * 3
    assert names == ["experts"] * 3 + last  # without λ, with it, and as many steps fewer as DCFM-A takes beside peers


@pytest.mark.parametrize("method", ["fedflow", "dcfm-b", "hybrid"])
def test_a_cell_that_is_sampled_anew_is_not_trained_anew(everything, tmp_path, monkeypatch, method):
    out, rows = everything
    shutil.copytree(out / "shared", tmp_path / "shared")
    monkeypatch.setattr(CompositionServer, "_distil", None)
    monkeypatch.setattr(CompositionServer, "_average", None)
    again = values(study.run(cell(tmp_path, method)))
    assert without_seconds(again) == without_seconds(values(rows[method]))
    finer = values(study.run(cell(tmp_path, method, sampling={"nfe": 4})))
    assert finer["fid_features_novel"] != again["fid_features_novel"] and finer["seconds"] == again["seconds"]


def test_every_method_has_every_figure(everything):
    _, rows = everything
    wanted = {f"{m}_features_{s}" for m in ("fid", "precision", "recall") for s in ("known", "novel", "unconditional")}
    wanted |= {
        "conformity_known",
        "error_novel",
        "conformity_novel_joint",
        "conformity_novel_guided",
        "judge_accuracy",
        "megabytes_up",
        "seconds",
    }
    for method in METHODS:
        found = values(rows[method])
        assert wanted <= found.keys() and all(np.isfinite(value) for value in found.values()), method
        assert found["error_novel"] == pytest.approx(1 - found["conformity_novel"])
    assert "fid_novel" not in values(rows["ddm"])  # that would be Inception's


def test_bytes_and_passes_are_those_of_a_run_of_its_own(everything):
    """In networks sent and received by a silo: DDM shares one, a student comes back, FedFlow 2T, DCFM-A (R + 1) N."""
    _, rows = everything
    found = {method: values(rows[method]) for method in METHODS}
    silos, rounds = TINY["silos"], TINY["peers"]["rounds"]
    size = 4 * found["ddm"]["parameters"] / 1e6
    assert size < found["ddm"]["megabytes_up"] < 2 * size  # tensors of a few numbers: their names weigh as much
    units = {method: values["theta_units"] for method, values in found.items()}
    one = units["dcfm-b"] - units["ddm"]  # the student: a message that holds a network and nothing else
    few = units["ddm"] - one  # the survey and the settings
    assert 0 < few < 0.2 * one
    assert units["fedflow"] == pytest.approx(2 * TINY["federated"]["rounds"] * one + few, rel=0.08)
    assert units["dcfm-a"] == pytest.approx((rounds + 1) * silos * one + few, rel=0.08)
    assert units["hybrid"] == pytest.approx(units["dcfm-a"] + one, rel=0.01)
    steps, student = TINY["budget"], TINY["student"]["steps"]
    assert found["ddm"]["passes_forward"] == steps and found["ddm+l"]["passes_forward"] == 4 * steps
    assert found["fedflow+l"]["passes_backward"] == 4 * steps
    beside = found["dcfm-a"]["passes_forward"] - 4 * (steps - rounds * TINY["peers"]["steps"])
    assert beside >= 4 * rounds * TINY["peers"]["steps"]  # a step has four of its own
    assert found["dcfm-b"]["passes_backward"] == steps + 4 * student  # teachers have no penalty


def test_a_finished_cell_needs_nothing_shared_and_names_no_device(everything, tmp_path):
    out, rows = everything
    shutil.copytree(out, tmp_path / "copy", ignore=shutil.ignore_patterns("shared"))
    run = StudyRun("composition_images", cell(tmp_path / "copy", "dcfm-b"))
    assert run.finished() and run.rows() == rows["dcfm-b"]
    assert run.record()["options"]["device"] == "auto" and "cuda" not in str(run.record())
    assert sum(path.stat().st_size for path in run.path.iterdir()) < 200_000


def test_the_floor_is_lower_than_what_untrained_methods_reach(everything):
    _, rows = everything
    real = values(rows["real"])
    assert real["fid_features_novel"] < values(rows["ddm"])["fid_features_novel"]
    assert real["conformity_novel"] > values(rows["ddm"])["conformity_novel"]


def test_images_compared_with_themselves_are_at_no_distance(tmp_path):
    place = cell(tmp_path, "real")
    found = data.scene(place)
    look = eyes(place, found, torch.device("cpu"))
    same = look.compare(look.features(found.real["novel"].x), "novel", "novel")
    assert same["fid_features_novel"] == pytest.approx(0, abs=1e-6)
    assert same["precision_features_novel"] == same["recall_features_novel"] == 1
    other = look.compare(look.features(-found.real["novel"].x), "novel", "novel")
    assert other["fid_features_novel"] > 1


def test_pictures_and_tables_are_made_of_what_is_there(everything, tmp_path):
    out, rows = everything
    flat = [row for part in rows.values() for row in part]
    folders = [out / "digits-iid" / method / "seed-0" for method in rows]
    written = study.draw(flat, folders, tmp_path)
    assert len(written) == 2 and all(path.stat().st_size > 10_000 for path in written.values())
    titles = dict(study.tables(flat))
    assert [line[1] for line in titles["Settings"][1:]] == METHODS
    assert "Distance to real images, known (°) and novel (*)" not in titles


def test_the_papers_figures_stand_beside_ours():
    row = {"problem": "dirichlet", "method": "dcfm-b", "seed": 0, "nfe": None, "metric": "fid_novel", "value": 10.0}
    lines = dict(study.tables([row]))["Distance to real images, known (°) and novel (*)"]
    assert lines[1] == ["dirichlet", "dcfm-b", "10", "9.15"]
    assert len(recipe("dcfm-cmnist").published) == 3 * 2 * 8  # its figures without iid stand beside both of ours


def test_a_mosaic_frames_novel_images():
    images = np.arange(6, dtype=np.uint8)[:, None, None, None] + np.zeros((6, 1, 14, 14), dtype=np.uint8)
    novel = np.array([False, False, False, False, False, True])
    found = pictures.mosaic(images, novel, (2, 3))
    assert found.shape == (2 * 16, 3 * 16, 3)
    assert tuple(found[16, 32]) == pictures.NOVEL and tuple(found[0, 0]) == pictures.KNOWN
    assert found[8, 24].tolist() == [1, 1, 1] and found[24, 40].tolist() == [5, 5, 5]


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match="'cuba'"):
        data.chosen_device("cuba")
    if not torch.cuda.is_available():
        assert data.chosen_device("auto").type == "cpu"
        with pytest.raises(UsageError, match="there is none here"):
            data.chosen_device("cuda")


@pytest.mark.parametrize("problem", ["dirichlet", "by-digit"])
def test_the_checks_are_those_that_were_set(problem):
    """Each can fail: rows in which novel samples are as poor as the rivals' break the ones about them."""
    checks = recipe("dcfm-cmnist").values["checks"]
    ours = ["dcfm-a", "dcfm-b", "additive"]
    assert {entry["left"] for entry in checks if "small" in entry["scales"]} == set(ours)
    for entry in checks:
        right = entry.get("right", [])
        assert {entry["left"], *([right] if isinstance(right, str) else right)} <= {"real", *COMPOSITIONS}
    key = {"problem": problem, "seed": 0, "nfe": None}
    methods = ["ddm", "ddm+l", "dfd", "dfd+l", *ours]
    for share, ok in ((0.5, True), (1.0, False)):
        rows = [
            {**key, "method": m, "metric": metric, "value": size * (share if m in ours else 1.0)}
            for m in methods
            for metric, size in (("fid_known", 10.0), ("fid_novel", 20.0), ("error_novel", 0.2))
        ]
        asked = [entry for entry in checks if problem in entry.get("problems", [problem])]
        found = run_checks(asked, rows, "small")
        assert len(found) == 12 and all(check.ok for check in found) == ok
        novel = [check.ok for check in found if "known" not in check.name]
        assert novel == [ok] * len(novel)


def test_three_attributes_and_the_penalty_over_pairs(tmp_path):
    place = cell(tmp_path, "dcfm-b", "shapes-dirichlet", "dcfm-dsprites", train=300, experts={"independence": "pairs"})
    rows = values(study.run(place))
    assert rows["passes_forward"] > 0 and "conformity_novel_position" in rows
    with np.load(place.folder / "grid.npz", allow_pickle=False) as arrays:
        assert arrays["images"].shape == (36, 1, 12, 12) and arrays["novel"].sum() == 28


def test_nothing_on_the_way_needs_pot(tmp_path):
    """Where POT is missing, the recipes still run."""
    (tmp_path / "ot.py").write_text("raise ImportError('POT is not installed')")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "import test_composition_images as here\n"
        "rows = here.values(here.study.run(here.cell(Path(sys.argv[2]), 'dcfm-b')))\n"
        "here.study.draw([], [], Path(sys.argv[2]))\n"
        "assert 'conformity_novel' in rows and 'ot' not in sys.modules\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
