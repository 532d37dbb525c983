"""`anabranch site …` as a person types it: what is printed, what is written, and the exit codes."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from anabranch.cli._verbs import app
from anabranch.errors import DataError
from anabranch.federation import Envelope, Join, encode_question
from anabranch.methods.ffm import Histograms
from anabranch.sites import open_site, read_site, view_log


def run(*words):
    result = CliRunner().invoke(app, ["site", *(str(word) for word in words)])
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture
def asked(tmp_path, lab):
    """A site that has met four questions."""
    import torch

    folder = lab.site(tmp_path / "north")
    site = open_site(folder)
    site.answer(encode_question(Envelope("first", 0, 1, Join(1))))
    site.answer(encode_question(Envelope("second", 0, 1, Join(1))))
    histograms = Histograms(torch.ones(1, 2), torch.tensor([[0.0]]))
    site.answer(encode_question(Envelope("second", 10**9, 1, histograms)))
    site.answer(b"?")
    return folder


class TestInit:
    def test_it_makes_a_folder_that_a_check_accepts(self, tmp_path, lab):
        data = lab.table(tmp_path / "rows.csv", count=200)
        code, output = run("init", tmp_path / "north", "--data", data, "--columns", "age, ward", "--held-out", 0.5)
        assert code == 0 and "site check" in output
        assert sorted(path.name for path in (tmp_path / "north").iterdir()) == ["secret", "site.toml", "state"]
        settings = read_site(tmp_path / "north")
        assert (settings.name, settings.data.columns, settings.data.held_out) == ("north", ("age", "ward"), 0.5)
        assert (tmp_path / "north" / "secret").read_text().strip() not in output
        code, output = run("check", tmp_path / "north")
        assert code == 0 and "This site can take part." in output and "age (numeric), ward (categorical)" in output

    def test_it_does_not_overwrite(self, tmp_path, lab):
        data = lab.table(tmp_path / "rows.csv")
        words = ["init", tmp_path / "north", "--data", data]
        assert run(*words)[0] == 0
        code, output = run(*words)
        assert code == 2 and "already" in output

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (["--data", "nothing.csv"], "There is no file or folder nothing.csv"),
            (["--data", "rows.csv", "--method", "lott"], "did you mean 'lot'"),
            (["--data", "rows.csv", "--held-out", "1.5"], "a share lies in"),
            (["--data", "rows.csv", "--name", "a/b"], "cannot be a site's name"),
            (["--data", "rows.csv", "--name", "two words"], "'two words' cannot be a site's name"),
            (["--data", "rows.csv", "--name", "Admin"], "'Admin' is taken"),
            (["--data", "rows.csv", "--columns", "age,wrd"], "did you mean 'ward'? Known: age, stay, ward."),
            (["--data", "rows.txt"], "ends in .csv"),
        ],
    )
    def test_wrong_usage_gets_a_sentence(self, tmp_path, lab, monkeypatch, words, sentence):
        monkeypatch.chdir(tmp_path)
        lab.table(tmp_path / "rows.csv")
        lab.table(tmp_path / "rows.txt")
        code, output = run("init", tmp_path / "north", *words)
        assert code == 2 and sentence in output and not (tmp_path / "north").exists()

    def test_data_that_a_check_would_refuse_is_refused_at_once(self, tmp_path):
        arrays = {"color": np.array(["red", "blue"] * 15), "digit": np.arange(30) % 3}
        np.savez(tmp_path / "a.npz", x=np.zeros((30, 2)), **arrays)
        code, output = run("init", tmp_path / "north", "--data", tmp_path / "a.npz", "--method", "lot")
        assert code == 1 and "it must hold x, or images, and may hold" in output and not (tmp_path / "north").exists()
        assert run("init", tmp_path / "north", "--data", tmp_path / "a.npz", "--method", "ddm")[0] == 0


class TestCheck:
    def test_a_recipe_is_estimated(self, tmp_path, lab):
        folder = lab.site(tmp_path / "north")
        words = ["check", folder, "--recipe", "ffm-2d", "--scale", "smoke"]
        code, output = run(*words, "--set", "rounds=70")
        assert code == 0 and "70 rounds" in output and "ms to answer" in output
        code, output = run(*words, "--method", "sd")
        assert code == 1 and "cannot take part" in output and "'ffm.lookup', which policy.kinds does not list" in output

    def test_a_run_of_ones_own_is_estimated(self, tmp_path, lab):
        (tmp_path / "run.toml").write_text('method = "lot"\n[flow]\nrounds = 33\nbatch = 32\n')
        code, output = run("check", lab.site(tmp_path / "north"), "--recipe", tmp_path / "run.toml")
        assert code == 0 and "33 rounds" in output

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (["--set", "rounds=3"], "name it with --recipe"),
            (["--recipe", "ffm2d"], "did you mean 'ffm-2d'"),
            (["--recipe", "x.toml", "--problem", "moons"], "has one problem"),
        ],
    )
    def test_wrong_usage_gets_a_sentence(self, tmp_path, lab, words, sentence):
        code, output = run("check", lab.site(tmp_path / "north"), *words)
        assert code == 2 and sentence in output

    def test_missing_data_has_exit_code_1(self, tmp_path, lab):
        folder = lab.site(tmp_path / "north")
        (folder / "points.npy").unlink()
        code, output = run("check", folder)
        assert code == 1 and "cannot be read" in output


class TestLog:
    def test_everything_is_shown_and_counted(self, asked):
        code, output = run("log", asked)
        assert code == 0 and "4 questions" in output and "2 answered, 0 repeated, 2 refused" in output
        assert "The chain of all 4 lines is whole." in output and "bytes refused: Bytes arrived" in output

    @pytest.mark.parametrize(
        ("words", "count"),
        [
            (["--run", "sec"], 2),
            (["--kind", "join"], 2),
            (["--refused"], 2),
            (["--refused", "--run", "second"], 1),
            (["--last", 0], 4),
        ],
    )
    def test_a_part_is_chosen(self, asked, words, count):
        code, output = run("log", asked, "--json", *words)
        found = json.loads(output)
        assert code == 0 and found["questions"] == len(found["entries"]) == count and found["lines"] == 4

    def test_the_newest_are_shown_and_all_are_counted(self, asked):
        view = view_log(asked, last=1)
        assert [entry["verdict"] for entry in view.entries] == ["refused"] and view.questions == 4
        assert view.bytes_in == sum(entry["bytes_in"] for entry in view_log(asked).entries)

    def test_a_changed_log_is_an_error(self, asked):
        path = asked / "audit.jsonl"
        path.write_text(path.read_text().replace('"first"', '"frist"'))
        code, output = run("log", asked)
        assert code == 1 and "the log was changed" in output
        with pytest.raises(DataError, match="Line 2"):
            view_log(asked, kind="no such kind")

    def test_a_log_that_is_not_there_yet_is_empty(self, tmp_path, lab):
        code, output = run("log", lab.site(tmp_path / "north"))
        assert code == 0 and "0 questions" in output


def test_withdraw_and_return(tmp_path, lab):
    folder = lab.site(tmp_path / "north")
    for verb, words, there in (
        ("withdraw", "Withdrawn: nothing is answered", True),
        ("withdraw", "Withdrawn already: nothing is answered", True),
        ("return", "Back: questions are answered", False),
        ("return", "It had not withdrawn: questions are answered", False),
    ):
        code, output = run(verb, folder)
        assert code == 0 and output.startswith(words) and (folder / "WITHDRAWN").exists() == there


@pytest.mark.parametrize("verb", ["check", "log", "withdraw", "return"])
def test_a_folder_that_is_none_gets_a_sentence(tmp_path, verb):
    code, output = run(verb, tmp_path)
    assert code == 2 and "site init" in output


@pytest.mark.parametrize("verb", ["init", "check", "log", "withdraw", "return"])
def test_help_teaches(verb):
    code, output = run(verb, "--help")
    assert code == 0 and len(output) > 150
