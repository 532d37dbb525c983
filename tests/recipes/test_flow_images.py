"""The study of image flows: cells are runs that go on, and samples are compared with both splits."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from anabranch.errors import ExhaustedError, UsageError
from anabranch.methods.ffm import FlowServer
from anabranch.metrics import Inception
from anabranch.recipes import recipe, recipes
from anabranch.recipes._study import StudyCell, StudyRun
from anabranch.recipes.studies import _flow_images_eyes as eyes_module
from anabranch.recipes.studies import _flow_images_memory as memory
from anabranch.recipes.studies import _flow_images_precision as precision
from anabranch.recipes.studies import _flow_images_projection as projection
from anabranch.recipes.studies import _flow_images_sampling as sampling
from anabranch.recipes.studies import _flow_images_tables as tables
from anabranch.recipes.studies import flow_images as study
from anabranch.runs import Notes, RunFolder, device_of, from_dict, images_of, merged

TINY = {
    "nfe": [1, 2],
    "flow": {"rounds": 2, "batch": 4, "warm_up": 0},
    "images": {"channels": 4},
    "data": {"images": 90},
    "semidiscrete": {"rounds": 30, "count": 32, "noises": 128, "block": 32},
    "potential": {"batch": 8},
    "coupling": {"candidates": 8},
    "sampling": {"count": 12, "batch": 5},
    "memorised": True,
    "adaptive": True,
    "precise": {"nfe": 2, "count": 7},
}
PAPERS = ["ffm-cifar10", "ffm-cifar10-32", "ffm-ablation"]
METHODS = ["vanilla", "lot", "got", "got-balanced", "sd"]


def cell(out: Path, method: str, **options) -> StudyCell:
    chosen = merged(recipe("ffm-fashion").options("digits", method, "smoke"), TINY, options)
    folder = out / "digits" / method / "seed-0"
    folder.mkdir(parents=True, exist_ok=True)
    return StudyCell("digits", method, 0, "smoke", chosen, folder, 1)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    out = tmp_path_factory.mktemp("flows")
    rows = []
    for method in METHODS:
        run = StudyRun("flow_images", cell(out, method))
        run.run()
        rows += run.rows()
    return out, rows


def test_every_method_has_every_figure(everything):
    _, rows = everything
    for method in METHODS:
        own = [row for row in rows if row["method"] == method]
        usual = {"pixels_train", "pixels_test", "seconds_50k"}
        euler = [row for row in own if "solver" not in row]
        beside = {f"{side}_pixels_{split}" for side in ("rounded", "precise") for split in ("train", "test")}
        for nfe, more in (
            (1, set()),
            (2, {"memorised_pixels", "pixels_change", *beside}),
        ):  # copies: of the best samples
            assert {row["metric"] for row in euler if row["nfe"] == nfe} == usual | more
        adaptive = [row for row in own if row.get("solver") == "dopri5"]
        assert {row["metric"] for row in adaptive} == usual and all(row["nfe"] > 6 for row in adaptive)
        once = {row["metric"]: row["value"] for row in own if row["nfe"] is None}
        assert {"megabytes_up", "megabytes_down"} <= once.keys() and (once["silos"], once["flow_rounds"]) == (3, 2)
        assert all(np.isfinite(row["value"]) for row in own)


def test_methods_share_the_network_the_training_and_the_noise(everything):
    out, _ = everything
    configs = [study.config_of(cell(out, method)) for method in METHODS]
    assert len({config.images for config in configs}) == 1
    assert len({config.flow for config in configs}) == 1
    assert [config.coupling.name for config in configs] == [
        "independent",
        "minibatch",
        "potential",
        "balanced",
        "semidiscrete",
    ]


def test_training_images_are_closer_to_themselves_than_to_test_images(everything):
    out, _ = everything
    one = cell(out, "vanilla")
    config = study.config_of(one)
    eyes = study.Eyes(one.options, config, device_of(config))
    data = images_of(config.data)
    rows = eyes.compare(eyes.features(data.bytes.reshape(-1, *data.shape)))
    found = {row["metric"]: row["value"] for row in rows}
    assert found["pixels_train"] == pytest.approx(0, abs=1e-6) and found["pixels_test"] > 0.1
    assert [(row["images"], row["real"]) for row in rows] == [(90, 90), (90, 359)]


@pytest.mark.parametrize("real", [0, 40])
def test_training_images_are_copies_and_test_images_are_not(everything, real):
    """All training images are looked at, also where distances are taken to fewer."""
    out, _ = everything
    one = cell(out, "vanilla", real=real)
    config = study.config_of(one)
    eyes = study.Eyes(one.options, config, device_of(config))
    images = images_of(config.data).bytes.reshape(-1, 1, 8, 8)
    copies = eyes.memorised(eyes.features(images))
    assert copies == {"metric": "memorised_pixels", "value": 1.0, "images": 90, "real": 90}
    fresh = eyes.memorised(eyes.features(255 - images))  # negatives are near nothing
    assert fresh["value"] == 0.0


def test_samples_do_not_depend_on_how_many_are_drawn_at_once(everything):
    """Batches have their own noise, so it is the flow that must not mix rows."""
    out, _ = everything
    one = cell(out, "lot")
    config = study.config_of(one)
    velocity, device = study.velocity_of(one.folder / study.RUN, config)
    images = study.sampled(velocity, config, 0, one.options["sampling"], 2, device).images
    assert images.shape == (12, 1, 8, 8) and images.dtype == torch.uint8
    fewer = {**one.options["sampling"], "count": 5}
    assert torch.equal(images[:5], study.sampled(velocity, config, 0, fewer, 2, device).images)


def test_dopri5_counts_its_evaluations_and_agrees_with_many_steps(everything):
    out, _ = everything
    config = study.config_of(one := cell(out, "lot"))
    velocity, device = study.velocity_of(one.folder / study.RUN, config, precise=True)
    calls = []

    def counted(x, t):
        calls.append(len(x))
        return velocity(x, t)

    adaptive = study.sampled(counted, config, 0, one.options["sampling"], None, device)
    assert adaptive.evaluations == pytest.approx(sum(calls) / 12)
    many = study.sampled(velocity, config, 0, {**one.options["sampling"], "solver": "rk4"}, 80, device)
    assert (adaptive.images.int() - many.images.int()).abs().max() <= 1


def test_dopri5_is_computed_in_32_bits_whatever_the_flow_was_trained_in(everything, monkeypatch):
    out, _ = everything
    config = study.config_of(one := cell(out, "lot", flow={"precision": "bfloat16"}))
    asked = []
    real = FlowServer.velocity_of
    monkeypatch.setattr(
        FlowServer,
        "velocity_of",
        staticmethod(lambda settings, *rest: asked.append(settings.flow.precision) or real(settings, *rest)),
    )
    for precise in (False, True):
        study.velocity_of(one.folder / study.RUN, config, precise)
    assert asked == ["bfloat16", "float32"]


def test_a_cell_goes_on_with_its_run(everything):
    out, _ = everything
    folder = RunFolder(out / "digits" / "vanilla" / "seed-0" / study.RUN)
    before = (folder.path / "metrics.jsonl").read_bytes()
    study.run(cell(out, "vanilla"))
    assert (folder.path / "metrics.jsonl").read_bytes() == before  # nothing was trained again


def test_tables_and_pictures(everything, tmp_path):
    out, rows = everything
    found = dict(study.tables(rows))
    lines = found["digits: distance of pixels, test images"]
    assert [line[0] for line in lines] == ["method", *METHODS]
    assert lines[0][1:] == ["1 step", "2 steps", "dopri5", "dopri5, evaluations"]
    title = "digits: memorised (pixels), 2 steps, 12 samples beside 90 training images"
    assert found[title][0] == ["method", "memorised (pixels)", "distance of pixels, test images"]
    drawn = study.draw(rows, sorted(out.glob("*/*/seed-*")), tmp_path)
    assert {path.name for path in drawn.values()} == {"steps-digits.png", "samples-digits.png"}
    assert all(path.stat().st_size > 5000 for path in drawn.values())


def cells_of(name: str) -> list[StudyCell]:
    """Every cell of every scale, and of every problem and method that a scale could be asked for."""
    found = recipe(name)
    return [
        StudyCell(problem, method, seed, scale, found.options(problem, method, scale), Path(), 1)
        for scale in found.values["scales"]
        for problem, method, seed in dict.fromkeys(
            [*found.cells(scale), *found.cells(scale, methods=found.methods, problems=found.problems)]
        )
    ]


@pytest.mark.parametrize("name", [*PAPERS, "ffm-fashion", "ffm-cifar10-alone"])
def test_every_cell_of_every_scale_is_a_valid_config(name):
    for one in cells_of(name):
        config = study.config_of(one)
        assert from_dict(config.to_dict()) == config
        cifar = config.data.target == "cifar10"
        assert config.images.shape == ((3, 32, 32) if cifar else config.images.shape)
        assert config.federation.count <= (1 if config.data.pooled else config.data.silos)
        assert set(one.options) >= {"nfe", "real", "sampling", "inception"}
        assert one.options["sampling"].keys() == {"count", "batch", "solver"}


@pytest.mark.parametrize("name", PAPERS)
def test_methods_of_a_recipe_share_network_and_training(name):
    shared = {}
    for one in cells_of(name):
        config = study.config_of(one)
        potential = config.potential if config.coupling.name in ("potential", "entropic", "balanced") else None
        mine = (config.images, config.flow, config.federation, config.data.silos, config.data.alpha)
        others = shared.setdefault((one.scale, one.problem), (set(), set()))
        others[0].add(repr(mine))
        others[1].add(repr(potential)) if potential else None
    assert all(len(everything) == 1 and len(potentials) <= 1 for everything, potentials in shared.values())


def test_the_papers_scale_is_the_papers():
    def of(name, problem, method):
        found = recipe(name)
        return study.config_of(
            StudyCell(problem, method, 0, "paper", found.options(problem, method, "paper"), Path(), 1)
        )

    got = of("ffm-cifar10", "alpha-0.1", "got")
    assert (got.flow.rounds, got.flow.warm_up, got.flow.average, got.flow.rate) == (400_000, 5000, 0.9999, 2e-4)
    assert (got.flow.batch, got.data.silos, got.data.alpha, got.images.channels) == (128, 3, 0.1, 128)
    assert (got.coupling.name, got.coupling.transform, got.coupling.candidates) == ("potential", "descent", 128)
    assert (got.coupling.descent_steps, got.coupling.descent_rate, got.potential.rate) == (5, 0.5, 1e-4)
    pooled = of("ffm-cifar10", "alpha-0.3", "pooled")
    assert pooled.data.pooled and pooled.coupling.name == "minibatch"
    many = of("ffm-cifar10-32", "32-silos-alpha-0.5", "lot")
    assert (many.data.silos, many.data.alpha) == (32, 0.5)
    assert (many.federation.participation, many.federation.count) == ("random", 3)
    for method, steps, pool in [("got descent 20", 20, 128), ("got pool 512", 5, 512)]:
        found = of("ffm-ablation", method.split()[1], method)
        assert (found.coupling.name, found.coupling.transform) == ("potential", "descent")
        assert (found.coupling.descent_steps, found.coupling.candidates) == (steps, pool)
        assert found.flow.rounds == 200_000


@pytest.mark.parametrize(("name", "count"), [("ffm-cifar10", 91), ("ffm-cifar10-32", 30), ("ffm-ablation", 40)])
def test_published_figures_are_of_cells_that_exist(name, count):
    found = recipe(name)
    assert len(found.published) == count
    cells = {(problem, method) for problem, method, _ in found.cells("paper")}
    for row in found.published:
        assert (row["problem"], row["method"]) in cells and row["value"] > 0 and row["where"].startswith("Table ")
        once = row["metric"] == "flow_seconds" or row.get("solver") == "dopri5"
        assert once == ("nfe" not in row)
        assert once or row["nfe"] in found.options(row["problem"], row["method"], "paper")["nfe"]
    keys = [
        (row["problem"], row["method"], row["metric"], row.get("nfe"), row.get("solver")) for row in found.published
    ]
    assert len(set(keys)) == len(keys)


def test_checks_name_methods_and_steps_that_are_run():
    for name in PAPERS:
        found = recipe(name)
        for check in found.values["checks"]:
            right = check.get("right", [])
            right = right if isinstance(right, list) else [right]
            for scale in check["scales"]:
                places = check.get("problems", found.scale(scale)["problems"])
                cells = {(problem, method) for problem, method, _ in found.cells(scale)}
                for problem in places:
                    assert {(problem, method) for method in [check["left"], *right]} <= cells
                    run = found.options(problem, check["left"], scale)["nfe"]
                    assert set(check["nfe"]) <= ({max(run)} if check["metric"] == "memorised" else set(run))
                    if check["metric"] == "fid_change":
                        assert check["nfe"] == [found.options(problem, check["left"], scale)["precise"]["nfe"]]


def test_no_two_recipes_publish_figures_of_one_problem():
    """Tables find the paper's figures by the problem's name."""
    owners = {}
    for found in recipes().values():
        if found.study == tables.STUDY and found.published:
            for problem in found.problems:
                owners.setdefault(problem, set()).add(found.name)
    figures = {row["problem"] for row in tables.published()}
    assert figures and all(len(owners[problem]) == 1 for problem in figures)


def test_tables_show_the_papers_figures_beside_ours():
    row = {"problem": "alpha-0.3", "seed": 0, "metric": "fid_test"}
    values = {("got", 2): 30.0, ("got", 3): 20.0, ("sd", 2): 25.0, ("sd", 3): 16.0}
    rows = [{**row, "method": method, "nfe": nfe, "value": value} for (method, nfe), value in values.items()]
    shown = dict(study.tables(rows))
    assert shown["alpha-0.3: FID, test images (paper: Table 1)"] == [
        ["method", "2 steps", "3 steps", "3 steps, paper"],
        ["got", "30", "20", "18.15"],
        ["sd", "25", "16", "–"],
    ]
    (title, training), (last, scores) = list(shown.items())[1:]
    assert title.startswith("alpha-0.3: training (paper: Table 5") and training[1][-2:] == ["–", "1.89e+05"]
    assert "not comparable" in last and scores[0][1] == "3 steps, paper" and scores[1][:2] == ["vanilla", "1.9"]


def test_where_the_papers_versions_differ_both_are_shown(monkeypatch):
    row = {"problem": "p", "method": "lot", "metric": "fid_test", "nfe": 4}
    theirs = [{**row, "value": 43.7, "where": "Table 2, earlier"}, {**row, "value": 41.0, "where": "Table 4"}]
    monkeypatch.setattr(tables, "published", lambda: theirs)
    (title, lines), *_ = study.tables([{**row, "seed": 0, "value": 50.0}])
    assert title == "p: FID, test images (paper: Table 2, earlier; Table 4)"
    assert lines == [["method", "4 steps", "4 steps, paper"], ["lot", "50", "43.7 / 41"]]


def test_dopri5_stands_behind_the_steps_beside_the_papers():
    row = {"problem": "alpha-0.3", "method": "lot", "seed": 0, "metric": "fid_test", "value": 40.0, "nfe": 50}
    adaptive = {**row, "solver": "dopri5", "nfe": 134, "value": 39.0}
    found = dict(study.tables([row, {**row, "nfe": 134, "value": 38.0}, adaptive]))
    assert found["alpha-0.3: FID, test images (paper: Table 1; Table 7, α not said)"] == [
        ["method", "50 steps", "50 steps, paper", "134 steps", "dopri5", "dopri5, paper", "dopri5, evaluations"],
        ["lot", "40", "5.38", "38", "39", "3.57", "134"],
    ]


def test_tables_show_means_over_seeds_and_how_many_there_are():
    row = {"problem": "p", "method": "sd", "seed": 0, "metric": "fid_test", "nfe": 3, "value": 10.0}
    rows = [row, {**row, "seed": 1, "value": 12.0}, {**row, "method": "got", "value": 20.0}]
    (_, lines), *_ = study.tables(rows)
    assert lines == [["method", "seeds", "3 steps"], ["sd", "2", "11"], ["got", "1", "20"]]


def test_dopri5_is_for_table_7_and_not_at_small():
    found = recipe("ffm-cifar10")
    for scale, expected in (
        ("smoke", {"vanilla", "lot"}),
        ("small", set()),
        ("paper", {"vanilla", "lot", "got", "pooled"}),
    ):
        places = found.cells(scale)
        assert {m for p, m, _ in places if found.options(p, m, scale).get("adaptive", False)} == expected
    printed = {row["method"] for row in found.published if row.get("solver") == "dopri5"}
    assert printed == {"vanilla", "lot", "got", "pooled"}


@pytest.mark.parametrize("name", [*PAPERS, "ffm-fashion", "ffm-imagenet64"])
def test_on_a_gpu_checkpoints_go_by_the_clock(name):
    for one in cells_of(name):
        config = study.config_of(one)
        by_the_clock = config.run.checkpoint_every > config.flow.rounds and config.run.checkpoint_minutes > 0
        assert by_the_clock == (one.scale != "smoke")


def test_local_ot_and_sd_have_two_seeds_at_small():
    cells = recipe("ffm-cifar10").cells("small")
    assert {method for _, method, seed in cells if seed == 1} == {"lot", "sd"}
    assert {method for _, method, seed in cells if seed == 0} == set(recipe("ffm-cifar10").methods)


CURVE = {"minutes": [1e-9, 2e-9, 500], "nfe": 2, "count": 10}


def test_a_curve_is_measured_while_the_flow_trains(tmp_path):
    one = cell(tmp_path, "vanilla", curve=CURVE)
    rows = [row for row in study.run(one) if row["metric"].startswith("curve_")]
    assert [(row["metric"], row["minutes"]) for row in rows] == [
        (f"curve_pixels_{split}", minutes) for minutes in (1e-9, 2e-9) for split in ("train", "test")
    ]  # the run is over before 500 minutes are
    assert all(row["round"] == 1 and row["seconds"] > 0 and row["images"] == 10 for row in rows)
    assert rows[0]["value"] == rows[2]["value"]  # both after the first round
    figure = study.draw(rows, [], tmp_path)["digits: distance of pixels, test images against minutes of training"]
    assert figure.stat().st_size > 5000
    title, lines = study.tables(rows)[1]
    assert title == "digits: distance of pixels while training, test images, 2 steps, 10 samples"
    assert lines[0] == ["method", "1e-09 min", "2e-09 min"]


def test_a_curve_that_ends_with_training_ends_in_the_final_figure(tmp_path):
    """The last point of the curve and the table's figure are of one flow: equal samples, equal distance."""
    changes = {"flow": {"rounds": 10**6}, "run": {"minutes": 0.02}, "curve": {"minutes": [0.02], "nfe": 2, "count": 12}}
    rows = study.run(cell(tmp_path, "vanilla", **changes))
    value = {row["metric"]: row["value"] for row in rows if row["nfe"] == 2 and "solver" not in row}
    assert value["curve_pixels_test"] == value["pixels_test"]
    rounds = [row["value"] for row in rows if row["metric"] == "flow_rounds"]
    assert rounds == [row["round"] for row in rows if row["metric"] == "curve_pixels_test"] and rounds[0] < 10**6


def test_what_a_curve_has_is_not_measured_again(tmp_path, monkeypatch):
    one = cell(tmp_path, "vanilla", curve=CURVE)
    config, folder = study.config_of(one), RunFolder(one.folder / study.RUN)
    looked = []
    curve = study.Curve(one, config, folder, lambda: looked.append(1) or study.Eyes(one.options, config, "cpu"))

    def kill(progress, federation):
        if progress.round == 2:
            raise SystemExit

    with pytest.raises(SystemExit):
        study.train(config, folder.path, Notes(progress=kill, looks=curve.looks))
    assert len(looked) == 2 and curve.looks.after == [500 * 60.0]
    study.train(config, folder.path, Notes(looks=curve.looks))
    assert len(looked) == 2 and len(curve.rows) == 4


@pytest.mark.parametrize("curve", [{"minutes": [1], "nfe": 2}, {"minutes": [0], "nfe": 2, "count": 3}])
def test_a_curve_that_cannot_be_is_refused(tmp_path, curve):
    with pytest.raises(UsageError, match="needs minutes, nfe and count"):
        study.run(cell(tmp_path, "vanilla", curve=curve))


@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
def test_alone_the_curve_ends_with_the_minutes(scale):
    found = recipe("ffm-cifar10-alone")
    for problem, method, _ in found.cells(scale):
        options = found.options(problem, method, scale)
        assert options["curve"]["minutes"][-1] == options["run"]["minutes"] and options["alone"]
        assert options["sampling"]["count"] == (300 if scale == "smoke" else 50_000)


def test_samples_in_32_bits_are_of_the_same_flow_and_noise(everything, monkeypatch):
    """On a CPU all is in 32 bits, so nothing changes; a flow that was rounded changes, by what the row says."""
    out, rows = everything
    assert [row["value"] for row in rows if row["metric"] == "pixels_change"] == [0.0] * len(METHODS)
    one = cell(out, "lot")
    config = study.config_of(one)
    eyes = study.Eyes(one.options, config, device_of(config))
    velocity, device = study.velocity_of(one.folder / study.RUN, config)

    def rounded(x, t):
        return velocity(x.bfloat16().float(), t).bfloat16().float()

    drawn = study.sampled(rounded, config, 0, one.options["sampling"], 2, device)
    plans = []
    monkeypatch.setattr(precision, "sampled", lambda *given: plans.append(given[3]) or study.sampled(*given))
    found = precision.beside_precise(one, config, one.folder / study.RUN, eyes, eyes.features(drawn.images))
    assert [plan["count"] for plan in plans] == [10]  # a GPU's noise depends on how much is drawn: two whole batches
    value = {row["metric"]: row["value"] for row in found}
    expected = {row["metric"]: row["value"] for row in eyes.compare(eyes.features(drawn.images[:7]))}
    changes = []
    for metric in ("pixels_train", "pixels_test"):
        assert value[f"rounded_{metric}"] == expected[metric]
        changes.append(abs(value[f"rounded_{metric}"] - value[f"precise_{metric}"]))
    assert value["pixels_change"] == max(changes) > 0
    assert {row["images"] for row in found} == {7}


@pytest.mark.parametrize("precise", [{"nfe": 3, "count": 4}, {"nfe": 2}])
def test_32_bits_beside_nothing_are_refused(tmp_path, precise):
    chosen = cell(tmp_path, "vanilla")
    chosen.options["precise"] = precise
    with pytest.raises(UsageError, match="one of the recipe's own"):
        study.run(chosen)


def test_what_rounding_does_is_a_table():
    row = {"problem": "p", "method": "vanilla", "seed": 0, "nfe": 10, "images": 500}
    values = {"rounded_fid_test": 20.0, "precise_fid_test": 19.9, "fid_change": 0.1}
    found = dict(study.tables([{**row, "metric": metric, "value": value} for metric, value in values.items()]))
    assert found["p: what rounding does, 10 steps, 500 samples"] == [
        ["method", "FID, test images", "FID, test images, 32 bits", "largest change"],
        ["vanilla", "20", "19.9", "0.1"],
    ]


def test_what_is_ready_compiles_before_the_clock_runs(everything, monkeypatch):
    """Compiling pays for all numbers of steps together, and its pass is one of a whole batch."""
    out, _ = everything
    config = study.config_of(one := cell(out, "lot"))
    velocity, _ = study.velocity_of(one.folder / study.RUN, config)
    asked, seen = [], []
    monkeypatch.setattr(velocity, "_compile", lambda at_once: asked.append(at_once))
    monkeypatch.setattr(velocity, "_pass", lambda x, t: seen.append(len(x)) or x)
    monkeypatch.setattr("anabranch.methods.ffm._velocity.AUTO_ROWS", 12 * 5)
    for steps, expected in (([1, 3], False), ([1, 4], True), ([None], True)):
        asked.clear()
        sampling.make_ready(velocity, config, one.options["sampling"], steps)
        assert asked[0] is expected
    assert velocity.rows == 5 and seen == [5] * 3


def test_where_memory_runs_out_the_recipes_option_is_named(everything, monkeypatch):
    out, _ = everything
    config = study.config_of(one := cell(out, "lot"))

    def exhausted(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(ExhaustedError, match=r"images were sampled, 5 at a time. Lower sampling.batch \(5\)"):
        study.sampled(exhausted, config, 0, one.options["sampling"], 2, device_of(config))
    eyes = study.Eyes(one.options, config, device_of(config))
    eyes.inception, eyes.batch = SimpleNamespace(features=exhausted), 250
    with pytest.raises(ExhaustedError, match=r"looked at images, 250 at a time. Lower inception.batch \(250\)"):
        eyes.features(torch.zeros(1, 1, 8, 8))
    with pytest.raises(ValueError, match="other"), memory.spared_option("a.batch", 1, "it was"):
        raise ValueError("other")


class Means(torch.nn.Module):
    """A stand-in for Inception: means of the nine parts of an image, over and over."""

    def forward(self, x):
        return torch.nn.functional.adaptive_avg_pool2d(x.mean(1, keepdim=True), 3).flatten(1).repeat(1, 228)[:, :2048]


@pytest.fixture
def inception(monkeypatch, tmp_path):
    """FID by a network that takes no time, with a cache of its own; says how often it was opened."""
    opened = []

    def load(path=None, device="cpu", tf32=False):
        opened.append(tf32)
        return Inception(Means(), device, tf32)

    monkeypatch.setenv("ANABRANCH_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(eyes_module.Inception, "load", load)
    monkeypatch.setattr(eyes_module, "_OPEN", {})
    return opened


def test_what_real_images_score_is_told_once_a_cell_and_printed(everything, inception, tmp_path):
    chosen = {"inception": {"use": True}, "data": {"images": 60}, "adaptive": False}
    with pytest.warns(UserWarning, match="FID of 12 samples is too large, by about"):
        rows = study.run(cell(tmp_path, "vanilla", **chosen))
    (sanity,) = (row for row in rows if row["metric"] == "fid_train_test")
    assert (sanity["nfe"], sanity["images"], sanity["real"]) == (None, 359, 60)
    (bias,) = (row for row in rows if row["metric"] == "fid_bias")
    assert (bias["nfe"], bias["images"], bias["real"]) == (None, 12, 60) and bias["value"] > 0
    assert {"fid_change", "fid_train", "fid_test"} <= {row["metric"] for row in rows}
    found = dict(study.tables(rows))
    assert found["digits: FID of real images"] == [
        ["FID of", "images", "training images", "FID"],
        ["test images against training images", "359", "60", f"{sanity['value']:.4g}"],
        ["samples of a perfect flow against training images, about", "12", "60", f"{bias['value']:.4g}"],
    ]
    assert not {"fid_train_test", "fid_bias"} & set(found["digits: training"][0])


def test_cells_of_one_process_share_their_eyes(inception, tmp_path):
    device = torch.device("cpu")

    def eyes(method, **options):
        one = cell(tmp_path, method, **merged({"inception": {"use": True}, "data": {"images": 60}}, options))
        return eyes_module.eyes_of(one.options, study.config_of(one), device)

    first = eyes("vanilla")
    assert (
        eyes("sd", data={"flip": "points"}) is first and eyes("lot", data={"alpha": 0.1, "silos": 2}) is first
    )  # the same images
    assert inception == [False]
    for other in ({"data": {"images": 50}}, {"real": 40}, {"inception": {"tf32": True}}):
        assert eyes("vanilla", **other) is not first
    assert inception == [False, False, False, True]
    assert len(eyes_module._OPEN) == 1  # one at a time


def test_seconds_a_round_do_not_count_what_comes_once():
    log = [(10, "duals", 5.0), (20, "duals", 5.4), (30, "flow", 70.0), (40, "flow", 72.0), (50, "flow", 74.0)]
    log += [(60, "flow", 90.0), (70, "flow", 92.0), (71, "assign", 93.0)]
    records = [{"round": number, "phase": phase, "seconds": seconds} for number, phase, seconds in log]
    assert projection.seconds_a_round(records) == {"duals": pytest.approx(0.04), "flow": pytest.approx(0.2)}


def test_hours_of_the_papers_scale_follow_from_measured_rounds():
    """Of the flow by its operations: twice the channels are nearly four times as many; of the rest as they are."""
    found = recipe("ffm-cifar10")
    cells = {
        scale: StudyCell("alpha-0.3", "sd", 0, scale, found.options("alpha-0.3", "sd", scale), Path(), 1)
        for scale in ("small", "paper")
    }
    small, paper = (projection.operations_a_round(study.config_of(cells[scale])) for scale in ("small", "paper"))
    assert 3.6 < paper / small < 4.0
    key = {"problem": "alpha-0.3", "method": "sd", "seed": 0, "nfe": None}
    values = {"flow_round_seconds": 0.02, "duals_round_seconds": 0.005, "assign_round_seconds": 0.25}
    values["round_operations"] = float(small)
    rows = [{**key, "metric": metric, "value": value} for metric, value in values.items()]
    rows += [
        {**row, "method": "vanilla"} for row in rows if row["metric"] in ("flow_round_seconds", "round_operations")
    ]
    tables = dict(study.tables(rows))
    (title,) = (title for title in tables if "hours" in title)
    assert title.startswith("alpha-0.3: hours of the scale 'paper'")
    flow, ratio = 400_000 * 0.02 * paper / small / 3600, paper / small
    rest = (8000 * 0.005 + 1048576 / 8192 * 0.25) / 3600
    assert tables[title][1:] == [
        ["sd", "20", f"{ratio:.3g}", "400000", f"{flow + rest:.3g}", "–"],
        ["vanilla", "20", f"{ratio:.3g}", "400000", f"{flow:.3g}", "38.3"],
    ]
    assert not set(values) & {column for line in tables.values() for column in line[0]}


def test_a_pooled_round_and_one_of_three_silos_count_what_is_asked():
    def of(name, problem, method):
        options = recipe(name).options(problem, method, "paper")
        return projection.operations_a_round(
            study.config_of(StudyCell(problem, method, 0, "paper", options, Path(), 1))
        )

    vanilla = of("ffm-cifar10", "alpha-0.3", "vanilla")
    assert vanilla == 3 * of("ffm-cifar10", "alpha-0.3", "pooled")
    assert vanilla == 4 * of(
        "ffm-cifar10-32", "32-silos-alpha-0.5", "vanilla"
    )  # three of 32, with a quarter of the batch


@pytest.mark.parametrize(("problem", "method"), [("alone", "sd"), ("digits", "lot"), ("alpha-0.1", "pooled")])
def test_where_there_is_no_such_run_there_are_no_hours(problem, method):
    assert projection.projection(problem, method, {"flow_round_seconds": 0.1, "round_operations": 1e9}) is None


def test_a_cell_tells_what_hours_need(everything):
    _, rows = everything
    told = {row["metric"]: row["value"] for row in rows if row["method"] == "sd" and row["nfe"] is None}
    assert told["round_operations"] > 0 and told["duals_round_seconds"] > 0
