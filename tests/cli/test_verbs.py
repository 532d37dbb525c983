"""The verbs as a person types them: what they print, what they write, and their exit codes."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from anabranch.cli._verbs import app

QUICK = ["flow.rounds=12", "flow.batch=16", "data.points=40", "evaluation.points=64", "run.threads=1"]
CHANGES = [word for change in QUICK for word in ("--set", change)]


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "lot"
    result = run("train", "ffm-2d", "--method", "lot", "--out", folder, *CHANGES)
    assert result.exit_code == 0, result.output
    assert str(folder / "report.html") in result.output
    return folder


def test_train_writes_a_run_folder_with_a_report(trained):
    wanted = {"config.json", "environment.json", "metrics.jsonl", "results.json", "samples.npz", "report.html"}
    assert wanted <= {path.name for path in trained.iterdir()}


def test_resume_of_a_finished_run_says_so(trained):
    result = run("resume", trained)
    assert result.exit_code == 0 and "finished" in result.output


@pytest.mark.parametrize("name", ["samples.npy", "samples.csv", "samples.png"])
def test_sample_writes_every_form(trained, tmp_path, name):
    result = run("sample", trained, "--n", 9, "--nfe", 2, "--out", tmp_path / name)
    assert result.exit_code == 0 and "2 function evaluations" in result.output
    assert (tmp_path / name).stat().st_size > 100
    if name.endswith(".npy"):
        assert np.load(tmp_path / name).shape == (9, 2)


def test_samples_repeat_with_the_seed_and_differ_without(trained, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run("sample", trained, "--n", 5, "--seed", seed, "--out", tmp_path / f"{name}.npy")
    a, b, c = (np.load(tmp_path / f"{name}.npy") for name in "abc")
    assert np.array_equal(a, b) and not np.array_equal(a, c)


def test_report_compares_runs(trained, tmp_path):
    result = run("report", trained, "--out", tmp_path / "page.html")
    assert result.exit_code == 0 and "lot" in (tmp_path / "page.html").read_text()


def test_reproduce_lists_recipes():
    result = run("reproduce", "--list")
    assert result.exit_code == 0 and "ffm-2d" in result.output and "sd-protected" in result.output


def test_reproduce_prints_one_json_object_as_its_last_line(tmp_path):
    words = ["reproduce", "ffm-2d", "--scale", "smoke", "--seed", "3", "--methods", "vanilla", "--json"]
    words += ["--problems", "8gaussians-moons", "--out", tmp_path, "--jobs", "1"]
    line = [sys.executable, "-m", "anabranch", *map(str, words)]
    result = subprocess.run(line, capture_output=True, text=True, timeout=300)
    found = json.loads(result.stdout.splitlines()[-1])
    assert {"rows", "checks", "failures"} == set(found) and result.returncode == int(
        not all(c["ok"] for c in found["checks"])
    )
    assert {row["seed"] for row in found["rows"]} == {3, None} and found["checks"]
    assert all({"name", "value", "limit", "ok"} == set(check) for check in found["checks"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train", "ffm2d"], "did you mean 'ffm-2d'"),
        (["train", "ffm-2d", "--method", "lott"], "did you mean 'lot'"),
        (["train", "ffm-2d", "--problem", "moons"], "8gaussians-moons"),
        (["train", "ffm-2d", "--set", "rouns=3"], "did you mean 'rounds'"),
        (["train", "ffm-2d", "--set", "rounds=0"], "at least 1"),
        (["train", "ffm-2d", "--scale", "smal"], "did you mean 'small'"),
        (["train", "ffm-2d", "--seed", "-1"], "between 0 and"),
        (["train", "nothing.toml"], "cannot be read"),
        (["reproduce", "ffm2d"], "did you mean 'ffm-2d'"),
        (["reproduce"], "Name a recipe"),
        (["reproduce", "ffm-2d", "--methods", "lot,sdd"], "did you mean 'sd'"),
    ],
)
def test_wrong_usage_gets_a_sentence_and_exit_code_2(words, sentence):
    result = run(*words)
    assert result.exit_code == 2
    assert sentence in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--nfe", 0], "nfe = 0"),
        (["--nfe", -1], "nfe = -1"),
        (["--n", 0], "at least one"),
        (["--out", "x.jpg"], ".npy"),
    ],
)
def test_wrong_sampling_gets_a_sentence(trained, words, sentence):
    result = run("sample", trained, *words)
    assert result.exit_code == 2 and sentence in " ".join(result.output.split()).lower()


def test_no_empty_bar_is_left_above_an_error(tmp_path):
    result = run("train", "ffm-2d", "--out", tmp_path, "--set", "data.partition=ways", *CHANGES)
    assert result.exit_code == 2 and result.output.startswith("There is no partition 'ways'")


def test_failures_have_exit_code_1(trained, tmp_path):
    other = run("train", "ffm-2d", "--method", "vanilla", "--out", trained, *CHANGES)
    assert other.exit_code == 1 and "holds another run" in " ".join(other.output.split())
    assert run("resume", tmp_path / "nowhere").exit_code == 1
    assert run("sample", tmp_path / "nowhere").exit_code == 1


def test_ctrl_c_saves_and_exits_with_130(tmp_path):
    changes = [word for change in ("rounds=100000", "points=40", "threads=1") for word in ("--set", change)]
    line = [sys.executable, "-m", "anabranch", "train", "ffm-2d", "--out", str(tmp_path / "run"), *changes]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        deadline = time.monotonic() + 120
        while (
            not (tmp_path / "run" / "metrics.jsonl").exists() or not (tmp_path / "run" / "metrics.jsonl").stat().st_size
        ):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, output
    assert list((tmp_path / "run" / "checkpoints").iterdir()) and "resume" in output


def test_help_is_as_wide_as_the_terminal():
    def verbs(command):
        for each in getattr(command, "commands", {}).values():
            yield from [each, *verbs(each)]

    found = list(verbs(typer.main.get_command(app)))
    assert len(found) > 20
    assert not [verb.name for verb in found if "\n" in (verb.help or "").replace("\n\n", "")]


def test_help_teaches():
    for verb in ("demo", "train", "resume", "sample", "report", "reproduce", "bench", "fid"):
        result = run(verb, "--help")
        assert result.exit_code == 0 and len(result.output) > 200
    assert "A run folder with a checkpoint" in run("sample", "--help").output  # typer and click must fit each other
