"""The page says what the rows say, stands alone, and survives whatever a run folder may hold."""

import json
import re
import shutil
from html.parser import HTMLParser

import matplotlib
import numpy as np
import pytest
import torch

from anabranch.errors import RunFolderError, UsageError
from anabranch.report import comparison, figure_columns, summary_table, table, write_report
from anabranch.report._style import looks, style
from anabranch.report._training import training_figure
from anabranch.report._words import failures, findings
from anabranch.runs import RunFolder, from_dict, train
from tests.runs.composing import composing

NASTY = r'a <b>&"$\frac$</title><script>alert(1)</script>'
TINY = {
    "flow": {"source": "8gaussians", "rounds": 12, "batch": 32, "hidden": 16, "layers": 2},
    "data": {"target": "moons", "points": 60, "groups": [[0], [1]]},
    "semidiscrete": {"rounds": 20, "count": 64, "noises": 256, "block": 128},
    "evaluation": {"nfe": [1, 3], "points": 64, "batches": 2, "certify": 2},
    "run": {"log_every": 2, "threads": 1},
}


def tiny(method, coupling, seed=0, **changes):
    values = json.loads(json.dumps(TINY))
    values |= {"problem": "p", "method": method, "seed": seed, "coupling": {"name": coupling}}
    for section, settings in changes.items():
        values[section] = values[section] | settings if isinstance(settings, dict) else settings
    return from_dict(values)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two federated methods, one of them with two seeds, and a pooled baseline."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    configs = {
        "lot-0": tiny("lot", "minibatch"),
        "lot-1": tiny("lot", "minibatch", seed=1),
        "sd": tiny("sd", "semidiscrete"),
        "icfm": tiny("icfm", "independent", data={"pooled": True}),
    }
    for name, config in configs.items():
        train(config, folder / name)
    return {name: folder / name for name in configs}


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("page") / "new" / "report.html"
    checks = [
        {"name": "SD < LOT", "value": 0.5, "limit": 0.7, "ok": True},
        {"name": "no figure", "value": None, "limit": 1, "ok": False},
    ]
    assert write_report(list(runs.values()), out, checks) == out
    return out


class Reader(HTMLParser):
    """Collects tags, text and attributes, and checks that tags close in order."""

    VOID = frozenset({"meta", "img", "br", "path", "use", "rect"})

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], ""
        self.feed(text)
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        self.text += data


def copy(run, folder, **changes):
    shutil.copytree(run, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def test_page_stands_alone(page):
    text = page.read_text()
    reader = Reader(text)
    assert "http" not in text
    assert not {"script", "link", "iframe", "object"} & set(reader.tags)
    links = [value for name, value in reader.attributes if name in ("src", "href", "xlink:href")]
    assert links and all(link.startswith(("#", "data:image/png;base64,")) for link in links)
    assert not re.search(r"url\((?!#)|@import", text)
    ids = [value for name, value in reader.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)


def test_page_shows_every_method_and_figure(page):
    reader = Reader(page.read_text())
    for name in ("lot", "sd", "icfm"):
        assert name in reader.text
    assert reader.tags.count("svg") == 4  # distance, coupling, training, wire
    assert reader.tags.count("img") == 6  # paths and one step of three methods
    figures = {path.name for path in (page.parent / "figures").iterdir()}
    assert figures == {"paths-p.png", "distance.png", "coupling.png", "training.png", "wire.png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (page.parent / "figures").iterdir())
    assert "SD < LOT" in reader.text and "1 of 2 checks hold" in reader.text and "✗ fails" in reader.text


def test_page_says_what_messages_reveal(page):
    text = " ".join(Reader(page.read_text()).text.split())
    assert "d + 1 answers in one cell determine the atom x_j exactly" in text
    assert "ffm.lookup.reply" in text and "ffm.potential" not in text  # only kinds that were sent


def test_table_holds_the_means_of_the_rows(runs, page):
    content = comparison(list(runs.values()))
    header, *lines = summary_table(content.rows, nfe=(1, 3, 100))
    assert header[:4] == ["problem", "method", "W2, 1 step", "W2, 3 steps"]  # nothing was measured at 100
    assert [line[1] for line in lines] == ["lot", "sd", "icfm (pooled)"]
    rows = [row for name in ("lot-0", "lot-1") for row in RunFolder(runs[name]).read_json("results.json")["rows"]]
    one = [row["value"] for row in rows if row["metric"] == "w2" and row["nfe"] == 1 and row["solver"] == "euler"]
    assert len(one) == 2 and lines[0][2] == f"{np.mean(one):.3f} ± {np.std(one, ddof=1):.3f}"
    up = sum(row["value"] for row in rows if row["metric"] == "bytes_up") / 2
    assert lines[0][header.index("MB up")] == f"{up / 1e6:.2f}"
    seconds = RunFolder(runs["sd"]).read_json("results.json")["seconds"]
    assert lines[1][header.index("minutes")] == f"{seconds / 60:.2f}"
    assert lines[2][header.index("MB up")] == "–"
    assert f"{np.mean(one):.3f}" in Reader(page.read_text()).text


def test_best_is_the_least_federated_value():
    def row(method, value, metric="w2", nfe=1, **more):
        return {"problem": "p", "method": method, "seed": 0, "nfe": nfe, "metric": metric, "value": value} | more

    silos = [row(m, 1.0, "bytes_up", None, silo=s, kind="k") for m, s in (("a", "1"), ("b", "1"), ("c", "pooled"))]
    ratios = [row("a", 0.8, "cost_ratio", None), row("b", 1.1, "cost_ratio", None)]
    result = table([row("a", 0.5), row("b", 0.7), row("c", 0.1), *ratios, *silos])
    best = {(result.lines[i][1], result.header[j]) for i, j in result.best}
    assert best == {("a", "W2, 1 step"), ("b", "cost ratio")}  # bytes are equal, the pooled method does not compete


def test_findings_are_computed_from_the_rows(runs, tmp_path):
    folders = []
    for name, value in (("lot-0", 1.2), ("sd", 0.3)):
        folder = copy(runs[name], tmp_path / name)
        results = json.loads((folder / "results.json").read_text())
        for row in results["rows"]:
            if row["metric"] == "w2":
                row["value"] = value
        (folder / "results.json").write_text(json.dumps(results))
        folders.append(folder)
    (text,) = findings(comparison(folders))
    assert "At one step sd is closest, at a W₂ of 0.300: 4.0× closer than lot (1.200)." in text


def test_names_are_escaped(runs, tmp_path):
    folder = copy(runs["lot-0"], tmp_path / "run", problem=NASTY, method="m<i>")
    reader = Reader(write_report([folder], tmp_path / "page.html", title="T<u>").read_text())
    assert not {"script", "b", "i", "u"} & set(reader.tags)
    assert reader.text.count(NASTY) > 2 and "m<i>" in reader.text and "T<u>" in reader.text
    assert len(list((tmp_path / "figures").iterdir())) == 5


def test_an_unfinished_run_shows_its_training_only(runs, tmp_path):
    folder = copy(runs["sd"], tmp_path / "stopped")
    for name in ("results.json", "samples.npz"):
        (folder / name).unlink()
    reader = Reader(write_report([folder], tmp_path / "page.html").read_text())
    assert "sd on p, seed 0, has not finished: its log ends at round" in reader.text
    assert reader.tags.count("svg") == 1 and "img" not in reader.tags
    (folder / "metrics.jsonl").unlink()
    reader = Reader(write_report([folder], tmp_path / "empty.html").read_text())
    assert "nothing is logged" in reader.text and "svg" not in reader.tags


def test_own_data_of_five_dimensions_without_a_target(tmp_path):
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    files = [str(tmp_path / f"site{i}.npy") for i in range(2)]
    for name in files:
        np.save(name, generator.normal(size=(40, 5)).astype(np.float32))
    data = {"files": files, "held_out": 0.25, "groups": []}
    train(tiny("own", "minibatch", data=data, flow={"source": "gaussian"}), tmp_path / "run")
    text = write_report([tmp_path / "run"], tmp_path / "page.html").read_text()
    reader = Reader(text)
    assert "The data has 5 dimensions; the first two are shown." in reader.text
    assert "sliced W₂" in reader.text and "Grey: the target" not in reader.text
    assert "as good as held-out points" in reader.text and "The noise floor is" in reader.text
    assert "site0.npy" in text and str(tmp_path) not in text  # names of files, never where they lie


def test_one_dimension_is_drawn_over_time(runs, tmp_path):
    folder = copy(runs["lot-0"], tmp_path / "run")
    arrays = {name: array[..., :1] for name, array in np.load(folder / "samples.npz").items()}
    np.savez(folder / "samples.npz", **arrays)
    before = dict(matplotlib.rcParams)
    path = write_report([folder], tmp_path)
    assert path == tmp_path / "report.html" and "time runs to the right" in Reader(path.read_text()).text
    assert dict(matplotlib.rcParams) == before


def test_failures_are_told(runs, tmp_path):
    folder = copy(runs["lot-0"], tmp_path / "run")
    with (folder / "metrics.jsonl").open("a") as log:
        log.write(json.dumps({"round": 13, "phase": "flow", "loss": 1.0, "failures": {"silo-2": "It was late."}}))
    assert "silo-2 left out of 1 logged round. It was late." in failures(comparison([folder]).runs[0])


def test_only_runs_that_differ_in_nothing_but_the_seed_are_averaged(runs, tmp_path):
    assert comparison([runs["lot-0"], runs["lot-1"], runs["lot-0"]]).methods == ["lot"]
    flow = RunFolder(runs["lot-1"]).config().to_dict()["flow"]
    other = copy(runs["lot-1"], tmp_path / "slow", flow=flow | {"rate": 1e-9})
    content = comparison([runs["lot-0"], other])
    assert content.methods == ["lot (lot-0)", "lot (slow)"]
    assert {row["method"] for row in content.rows} == set(content.methods)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="at least one run folder"):
        comparison([])
    with pytest.raises(RunFolderError, match="no run folder"):
        write_report([tmp_path], tmp_path / "page.html")


def test_many_methods_have_looks_of_their_own(runs, tmp_path):
    folders = [copy(runs["lot-0"], tmp_path / f"m{i}", method=f"m{i}") for i in range(12)]
    content = comparison([*folders, runs["icfm"]])
    found = looks(content)
    assert len({(look.color, look.dash) for look in found.values()}) == 13
    assert len({(look.color, look.marker) for look in found.values()}) == 13  # points have no dash
    assert found["icfm"].dash == "--" and content.methods[-1] == "icfm"


def test_every_phase_of_a_composition_has_a_panel_for_its_loss(tmp_path):
    """Phases in the order in which they train, whatever the order of the runs; each counts its own rounds."""
    for method in ("fedflow", "ddm", "dcfm-b", "hybrid"):
        train(composing(method), tmp_path / method)
    both = comparison([tmp_path / "dcfm-b", tmp_path / "hybrid", tmp_path / "fedflow"])
    with style():
        panels = {axes.get_title(loc="left"): axes for axes in training_figure(both, looks(both)).axes}
    assert list(panels) == ["loss, federated", "loss, experts", "loss, peers", "loss, student"]
    assert [len(axes.lines) for axes in panels.values()] == [1, 2, 1, 2]
    logged = [r["loss"] for r in RunFolder(tmp_path / "hybrid").metrics() if r["phase"] == "peers"]
    (line,) = panels["loss, peers"].lines
    assert line.get_xdata().tolist() == [1, 2] and line.get_ydata().tolist() == pytest.approx(logged)
    alone = comparison([tmp_path / "ddm"])
    with style():
        (axes,) = training_figure(alone, looks(alone)).axes
    assert axes.get_title(loc="left") == "flow-matching loss"


def test_figures_stand_to_the_right_and_names_to_the_left():
    header = ["silo", "samples", "seen", "spread", "limit", "what it is"]
    first = ["north", "120", "3 of 4", "0.6 ± 0.14", "no limit", "12 points of a plane"]
    second = ["7", "1,024", "novel", "–", "1.2 kB", "2"]
    assert figure_columns([header, first, second]) == [False, True, True, True, True, False]
    assert figure_columns([["a", "b"], ["1", "2"]], names=2) == [False, False]
    assert figure_columns([["a", "b"]]) == [False, False]
