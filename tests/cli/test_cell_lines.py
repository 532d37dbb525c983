"""What a long reproduction writes where nobody watches a bar."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from anabranch.cli import _show
from anabranch.recipes import cells_of, recipe
from anabranch.recipes.studies.flow_images import RUN


@dataclass
class Made:
    name: str
    path: Path
    done: float = 0.0

    def share(self):
        return self.done

    def finish(self):
        self.path.mkdir()
        (self.path / "results.json").write_text("{}")


@pytest.fixture
def lines(monkeypatch):
    said = []
    monkeypatch.setattr(_show.console, "print", lambda sentence, **how: said.append(sentence))
    return said


def test_a_line_where_a_cell_begins_ends_or_fails(tmp_path, lines, monkeypatch):
    a, b, c = cells = [Made(name, tmp_path / name) for name in "abc"]
    clock = iter(range(0, 10**6, 30))
    monkeypatch.setattr(_show.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(_show, "SELDOM", 10**9)
    a.finish()
    watch = _show.CellLines("table").watch
    watch(cells, [])
    watch(cells, [b, c])
    b.finish()
    watch(cells, [c])
    watch(cells, [])
    watch(cells, [])
    begins, ends = ["table: b begins", "table: c begins"], "table: c failed; the reason follows at the end"
    assert lines[:3] == ["table: 3 cells, 1 of them finished before", *begins]
    assert lines[3].startswith("table: b finished after ") and lines[3].endswith(" min, 2/3 cells")
    assert lines[4:] == [ends]  # once


def test_now_and_then_how_far_each_is(tmp_path, lines, monkeypatch):
    cell = Made("a", tmp_path / "a", 0.426)
    monkeypatch.setattr(_show, "SELDOM", 0.0)
    watch = _show.CellLines("table").watch
    watch([cell], [])
    watch([cell], [cell])
    watch([cell], [cell])
    assert lines[-1] == "table: a 43 %"


def test_a_cell_of_images_tells_how_much_of_its_training_is_done(tmp_path):
    (cell,) = cells_of(recipe("ffm-fashion"), "smoke", tmp_path, None, ["vanilla"], ["digits"])
    assert cell.share() == 0
    run = cell.path / RUN
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text(json.dumps({"round": 75, "phase": "flow"}) + "\n")
    assert cell.share() == pytest.approx(0.45)  # half of 150 rounds; what follows them counts as a tenth
