"""`anabranch federation …` as a person types it, with a federation that is none: what is printed."""

import pytest
from typer.testing import CliRunner

from anabranch.cli._verbs import app
from anabranch.engines import nvflare


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(nvflare, "make_trial", lambda *words: None, raising=False)
    monkeypatch.setattr(nvflare, "start", lambda *words: None, raising=False)
    monkeypatch.setattr(nvflare, "read_kits", lambda folder: None, raising=False)
    monkeypatch.setattr(nvflare, "site_places", lambda folder: {}, raising=False)

    def type_in(*words):
        result = CliRunner().invoke(app, ["federation", *map(str, words)])
        return result.exit_code, " ".join(result.output.split())

    return type_in


def test_a_trial_says_how_to_train_on_its_data(run, tmp_path):
    words = ["start", tmp_path / "trial", "--only", "server"]
    recipe = ["--recipe", "ffm-2d", "--method", "lot", "--set", "points=50", "--set", "groups=[[0], [1]]"]
    _, output = run(*words, *recipe)
    line = "ffm-2d --method lot --set points=50 --set 'groups=[[0], [1]]' --engine nvflare --federation"
    assert f"Train with: anabranch train {line} {tmp_path}" in output
    assert "anabranch train RECIPE --engine nvflare" in run(*words)[1]


def test_stop_says_what_it_waits_for_and_whom_it_ended(run, monkeypatch):
    def end(kits, say):
        say("Waiting for server to end.")
        return ["server", "north"]

    monkeypatch.setattr(nvflare, "stop", end, raising=False)
    assert run("stop", "trial") == (0, "Waiting for server to end. Stopped: server, north.")
    monkeypatch.setattr(nvflare, "stop", lambda kits, say: [], raising=False)
    assert run("stop", "trial") == (0, "Nothing of trial was running on this machine.")
