"""Tables and pictures: methods down, steps across, the paper's figures beside ours."""

from anabranch.recipes.studies import flow_images as study
from anabranch.recipes.studies.flow_images import _tables as tables
from tests.recipes.flow_images.cells import METHODS


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
    assert title.startswith("alpha-0.3: training (paper: Table 5") and training[1][-2:] == ["–", "189000"]
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
