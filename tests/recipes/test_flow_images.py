"""The study of image flows: cells are runs that go on, and samples are compared with both splits."""

from pathlib import Path

import numpy as np
import pytest
import torch

from anabranch.errors import UsageError
from anabranch.methods.ffm import FlowServer
from anabranch.recipes import recipe, recipes
from anabranch.recipes._study import StudyCell, StudyRun
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
        for nfe, more in ((1, set()), (2, {"memorised_pixels"})):  # copies are counted among the best samples
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
            right = check["right"] if isinstance(check["right"], list) else [check["right"]]
            for scale in check["scales"]:
                places = check.get("problems", found.scale(scale)["problems"])
                cells = {(problem, method) for problem, method, _ in found.cells(scale)}
                for problem in places:
                    assert {(problem, method) for method in [check["left"], *right]} <= cells
                    run = found.options(problem, check["left"], scale)["nfe"]
                    assert set(check["nfe"]) <= ({max(run)} if check["metric"] == "memorised" else set(run))


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
