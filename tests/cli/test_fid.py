"""`anabranch fid` as a person types it: folders, archives and sets give the distance of their pictures."""

import json

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from anabranch.cli._fid import fid
from anabranch.data import load_images
from anabranch.metrics import FeatureStatistics, Inception, frechet_distance

app = typer.Typer()
app.command()(fid)


class Eye(nn.Module):
    """Sees means of quarters of each colour, and nothing else."""

    def forward(self, x):
        return nn.functional.pad(nn.functional.adaptive_avg_pool2d(x, 2).flatten(1), (0, 2048 - 12))


@pytest.fixture(autouse=True)
def eye(monkeypatch, tmp_path):
    found = Inception(Eye())
    monkeypatch.setattr(Inception, "load", classmethod(lambda cls, **options: found))
    monkeypatch.setenv("ANABRANCH_DATA", str(tmp_path / "cache"))
    return found


def pictures(seed, count=30):
    return np.random.default_rng(seed).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)


def folder(path, images):
    path.mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(path / f"{number:03d}.png")
    return path


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.filterwarnings("ignore:A Fréchet distance from")
def test_folders_and_archives_give_the_distance_of_their_pictures(tmp_path, eye):
    made, real = pictures(1), pictures(2, 40)
    np.savez(tmp_path / "made.npz", images=made)
    sides = [
        FeatureStatistics.of(eye.features(torch.from_numpy(one.transpose(0, 3, 1, 2).copy()))) for one in (real, made)
    ]
    expected = frechet_distance(*sides)
    for place in (tmp_path / "made.npz", folder(tmp_path / "made", made)):
        result = run(place, folder(tmp_path / f"real{place.suffix}", real), "--json")
        assert result.exit_code == 0, result.output
        rows = {row["metric"]: row for row in json.loads(result.stdout.splitlines()[-1])["rows"]}
        assert rows["fid_real"]["value"] == pytest.approx(expected, rel=1e-6)
        assert (rows["fid_real"]["images"], rows["fid_real"]["real"]) == (30, 40)
    table = run(tmp_path / "made.npz", tmp_path / "real").stdout
    assert "FID" in table and "KID" in table and "40" in table


@pytest.mark.filterwarnings("ignore:A Fréchet distance from")
def test_a_sets_own_pictures_are_at_no_distance(tmp_path):
    own = load_images("digits", "test").images.permute(0, 2, 3, 1).numpy()
    np.savez(tmp_path / "own.npz", images=own)
    result = run(tmp_path / "own.npz", "digits:test", "--json")
    rows = json.loads(result.stdout.splitlines()[-1])["rows"]
    assert abs(rows[0]["value"]) < 1e-4 and rows[0]["real"] == len(own)


@pytest.mark.filterwarnings("ignore:A Fréchet distance from")
def test_a_set_is_read_once(tmp_path, monkeypatch):
    np.savez(tmp_path / "made.npz", images=pictures(0))
    read = []
    for module in ("anabranch.data", "anabranch.metrics._reference"):
        monkeypatch.setattr(f"{module}.load_images", lambda *names: (read.append(names), load_images(*names))[1])
    assert run(tmp_path / "made.npz", "digits:test").exit_code == 0 and read == [("digits", "test")]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nothing", "digits:test"), "'nothing' is no folder"),
        (("x.npz", "digits:test"), "holds x, and no array 'images'"),
        (("x.npz", "digit:test"), "did you mean 'digits'"),
        (("x.npz", "digits:tset"), "did you mean 'test'"),
        (("one.npz", "digits:test"), "'one.npz' holds 1 picture; a distance needs two"),
    ],
)
def test_what_holds_no_pictures_is_said(tmp_path, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", x=np.zeros((3, 2)))
    np.savez("one.npz", images=pictures(0, 1))
    result = run(*words)
    assert result.exit_code in (1, 2) and sentence in " ".join(result.output.split())


def test_both_sides_are_found_before_the_long_look_at_one(tmp_path, monkeypatch, eye):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Inception, "features", lambda *looked: pytest.fail("looked already"))
    assert "'made' is no folder" in run("made", "digits:test").output


@pytest.mark.filterwarnings("ignore:A Fréchet distance from")
def test_pictures_of_different_sizes_are_told_of(tmp_path):
    np.savez(tmp_path / "made.npz", images=pictures(1)[:, :4])
    said = "".join(run(tmp_path / "made.npz", "digits:test").output.split())  # a console divides long paths, too
    assert "made.npz'holdspicturesof4x8,'digits:test'of8x8.Howsharp" in said


def test_memory_that_runs_out_is_said_with_what_to_lower(tmp_path, monkeypatch):
    def full(*asked, **named):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Inception, "features", full)
    np.savez(tmp_path / "made.npz", images=pictures(1))
    for batch, way in ((32, "give a smaller --batch, or have other programs"), (1, "have other programs")):
        said = " ".join(run(tmp_path / "made.npz", "digits:test", "--batch", batch).output.split())
        assert f"while pictures were looked at, {batch} at a time; {way} leave more memory." in said
    monkeypatch.setattr(Inception, "load", full)
    said = " ".join(run(tmp_path / "made.npz", "digits:test").output.split())
    assert "while pictures and the network were read; give fewer pictures, or" in said
