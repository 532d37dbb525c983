"""Sites that hold pictures: the same silos as in a simulation, from a folder or an archive."""

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from anabranch.cli._verbs import app
from anabranch.data import Pixels, load_folder, save_images
from anabranch.errors import DataError, UsageError
from anabranch.methods.ffm import PRESETS
from anabranch.runs import build_silos, from_dict, merged
from anabranch.sites import SiteData, SitePolicy, SiteSettings, check_site, kinds_of, open_site, read_site, write_site

UNET = {
    "flow": {"network": "unet", "rounds": 2, "batch": 16},
    "images": {"shape": [3, 4, 4], "channels": 4, "multipliers": [1], "blocks": 1, "attention": []},
    "evaluation": {"nfe": [1], "points": 16, "dopri5": False},
}


@pytest.fixture
def scans(tmp_path):
    """Two classes of 20 pictures, of different sizes."""
    random = np.random.default_rng(0)
    for name in ("left", "right"):
        (tmp_path / "scans" / name).mkdir(parents=True)
        for number in range(20):
            pixels = random.integers(0, 256, (*random.integers(4, 9, 2), 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "scans" / name / f"{number}.png")
    return tmp_path / "scans"


def opened(folder, file, name="scans", **data):
    policy = SitePolicy(kinds_of("vanilla"), smallest_group=10)
    settings = SiteSettings(name, SiteData(file, held_out=0.25, seed=4, **data), policy)
    write_site(folder, settings)
    assert read_site(folder) == settings
    return open_site(folder).silo


def run(*words):
    result = CliRunner().invoke(app, ["site", *map(str, words)], terminal_width=200)
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.parametrize("flip", ["none", "random", "points"])
def test_a_folder_is_held_as_in_a_simulation(tmp_path, scans, monkeypatch, flip):
    monkeypatch.setenv("ANABRANCH_DATA", str(tmp_path / "cache"))
    how = {"side": 4, "flip": flip, "crop": 0.5}
    silo = opened(tmp_path / "site", f"folder:{scans}", **how)
    assert not (tmp_path / "cache").exists()  # nothing of a site's data is copied
    data = {"files": [f"folder:{scans}"], "held_out": 0.25, "seed": 4, **how}
    wanted = build_silos(from_dict({"data": data}))[0][0]
    assert silo.data.bytes.equal(wanted.data.bytes) and silo.data.label.equal(wanted.data.label)
    assert (silo.data.flip, silo.data.crop, silo.data.shape) == (flip, 0.5, (3, 4, 4))
    assert silo.held_out.equal(wanted.held_out) and len(silo.held_out) == 10  # each once, whole
    assert silo.held_out_label.equal(wanted.held_out_label)


def test_an_archive_of_images_is_held_like_the_folder(tmp_path, scans):
    found = load_folder(scans, side=4, keep=False)
    save_images(tmp_path / "scans.npz", found.pixels())
    one = opened(tmp_path / "a", f"folder:{scans}", side=4, flip="random")
    other = opened(tmp_path / "b", str(tmp_path / "scans.npz"), flip="random")
    assert isinstance(other.data, Pixels) and one.fingerprint() == other.fingerprint()
    assert one.held_out.equal(other.held_out) and one.data.label.equal(other.data.label)
    with np.load(tmp_path / "scans.npz") as file:
        assert file["images"].shape == (40, 4, 4, 3)


def test_numbers_are_neither_mirrored_nor_cropped(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((40, 48), dtype=np.float32))
    with pytest.raises(DataError, match=r"'x\.npz' holds no array 'images'"):
        opened(tmp_path / "a", str(tmp_path / "x.npz"), flip="random")


@pytest.mark.parametrize(
    ("file", "data", "sentence"),
    [
        ("scans", {}, "or a folder of pictures as 'folder:PATH'"),
        ("folder:", {}, "or a folder of pictures as 'folder:PATH'"),
        ("a.npz", {"side": 4}, "are for folders of pictures, and data.file is 'a.npz'"),
        ("a.npz", {"colours": 3}, "are for folders of pictures"),
        ("a.csv", {"flip": "random"}, "Leave both out of 'a.csv'"),
        ("a.npy", {"crop": 0.5}, "Leave both out of 'a.npy'"),
        ("a.npz", {"flip": "random", "attributes": ("digit",)}, "images without attributes"),
        ("folder:a", {"attributes": ("digit",)}, "only .npz archives have them"),
        ("folder:a", {"columns": ("age",)}, "only .csv files have them"),
        ("folder:a", {"side": -1}, "cannot be negative"),
        ("folder:a", {"flip": "randm"}, "did you mean 'random'"),
        ("folder:a", {"crop": 0.0}, "the least share of an image"),
    ],
)
def test_what_cannot_be_is_refused(file, data, sentence):
    with pytest.raises(UsageError, match=sentence):
        SiteData(file, **data)


def test_init_and_check_tell_of_a_folder(tmp_path, scans, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "north"
    code, output = run("init", folder, "--data", "scans", "--method", "vanilla")
    assert code == 1 and "give a side" in output and not folder.exists()
    ways = ("--side", 4, "--flip", "random", "--crop", 0.5)
    assert run("init", folder, "--data", "scans", "--method", "vanilla", *ways)[0] == 0
    assert f'file = "folder:{scans}"' in (folder / "site.toml").read_text()
    code, output = run("check", folder)
    assert code == 0 and "3 x 4 x 4 (colours, height, width), mirrored at random, in pieces of 0.5 or more" in output
    assert "40: 32 to train on, 8 held out" in output


def test_init_names_a_folder_inside_from_there(tmp_path, scans):
    assert run("init", tmp_path, "--data", scans, "--name", "north", "--side", 4)[0] == 0
    assert read_site(tmp_path).data.file == "folder:scans" and len(open_site(tmp_path).silo) == 32


def test_a_run_for_other_images_is_refused_by_the_site(tmp_path, scans):
    opened(tmp_path / "a", f"folder:{scans}", side=4)
    config = from_dict(merged(PRESETS["vanilla"], UNET))
    assert check_site(tmp_path / "a", config).ok
    wrong = from_dict(merged(PRESETS["vanilla"], UNET, {"images": {"shape": [12, 2, 2]}}))  # as many numbers
    found = check_site(tmp_path / "a", wrong)
    assert any(
        "images of 12 x 2 x 2 (colours, height, width), and those of silo 'scans' are 3 x 4 x 4" in o
        for o in found.obstacles
    )


def test_numbers_out_of_range_are_told(tmp_path):
    config = from_dict(merged(PRESETS["vanilla"], UNET))
    for name, high in (("a", 1.0), ("b", 255.0)):
        np.savez(tmp_path / f"{name}.npz", x=np.linspace(-1, high, 40 * 48, dtype=np.float32).reshape(40, 48))
        opened(tmp_path / name, str(tmp_path / f"{name}.npz"))
    assert not check_site(tmp_path / "a", config).warnings
    (warning,) = check_site(tmp_path / "b", config).warnings
    assert "to 255, and pictures" in warning and "an array 'images'" in warning
