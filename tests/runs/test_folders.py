"""Runs on folders of pictures: one folder a silo, or one that is divided."""

import numpy
import pytest
from PIL import Image
from typer.testing import CliRunner

from anabranch.cli._verbs import app
from anabranch.data import Pixels, load_folder
from anabranch.engines._trial import write_sites
from anabranch.errors import DataError, UsageError
from anabranch.runs import build_silos, from_dict, from_toml, images_of
from anabranch.sites import open_site

RANDOM = numpy.random.default_rng(0)
TOML = """
method = "lot"
data = {{ files = ["folder:north", "folder:south"], side = 4, crop = {crop}, flip = "random", held_out = 0.2 }}
flow = {{ network = "unet", rounds = 2, batch = 4 }}
images = {{ shape = [3, 4, 4], channels = 4, multipliers = [1], blocks = 1, attention = [], dropout = 0.0 }}
evaluation = {{ points = 8, nfe = [1] }}
federation = {{ fused = {fused} }}
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Pictures of two silos, whose classes differ."""
    monkeypatch.setenv("ANABRANCH_DATA", str(tmp_path / "cache"))
    for silo, classes in (("north", "ab"), ("south", "bc")):
        for name in classes:
            (tmp_path / silo / name).mkdir(parents=True)
            for number in range(10):
                height, width = RANDOM.integers(4, 9, 2)
                pixels = RANDOM.integers(0, 256, (height, width, 3), dtype=numpy.uint8)
                Image.fromarray(pixels).save(tmp_path / silo / name / f"{number}.png")
    return tmp_path


def config(place, **data):
    return from_dict({"data": {"side": 4, **data}})


def folders(place):
    return [f"folder:{place / name}" for name in ("north", "south")]


def test_a_folder_is_a_silo_and_labels_agree(place):
    silos, encoder = build_silos(config(place, files=folders(place), flip="random", crop=0.5))
    assert [silo.name for silo in silos] == ["north", "south"] and encoder is None
    assert [silo.data.label.unique().tolist() for silo in silos] == [[0, 1], [1, 2]]
    for silo in silos:
        whole = load_folder(place / silo.name, side=4)
        assert isinstance(silo.data, Pixels) and silo.data.bytes.equal(whole.images.flatten(1))
        assert (silo.data.shape, silo.data.flip, silo.data.crop) == ((3, 4, 4), "random", 0.5)


def test_some_pictures_of_each_and_all_in_one(place):
    silos, _ = build_silos(config(place, files=folders(place), images=7))
    assert [len(silo) for silo in silos] == [7, 7]
    (pooled,), _ = build_silos(config(place, files=folders(place), pooled=True))
    assert len(pooled) == 40 and pooled.data.label.unique().tolist() == [0, 1, 2]


def test_one_folder_is_divided_by_class(place):
    silos, _ = build_silos(config(place, target=folders(place)[0]))
    assert [silo.data.label.unique().tolist() for silo in silos] == [[0], [1]] and sum(map(len, silos)) == 20
    assert len(images_of(config(place, target=folders(place)[0], images=5).data)) == 5


def test_folders_of_one_name_take_their_parents_too(place):
    for name in ("north", "south"):
        (place / "of" / name).mkdir(parents=True)
        (place / name).rename(place / "of" / name / "pictures.v2")
    files = [f"folder:{place / 'of' / name / 'pictures.v2'}" for name in ("north", "south")]
    silos, _ = build_silos(config(place, files=files))
    assert [silo.name for silo in silos] == ["north-pictures.v2", "south-pictures.v2"]


def test_the_verb_trains_and_fused_runs_agree(place):
    """Crops and flips follow each silo's own generator, so that both ways see the same pictures."""
    rows = {}
    for fused in ("true", "false"):
        (place / "run.toml").write_text(TOML.format(fused=fused, crop=0.5))
        assert from_toml(place / "run.toml").data.files == tuple(folders(place))
        out = str(place / f"run-{fused}")
        result = CliRunner().invoke(app, ["train", str(place / "run.toml"), "--out", out])
        assert result.exit_code == 0, result.output
        assert ("reading north" in result.output) == (fused == "true")  # the second time they are kept
        from anabranch.runs import RunFolder

        rows[fused] = [entry["loss"] for entry in RunFolder(place / f"run-{fused}").metrics() if "loss" in entry]
    assert rows["true"] and rows["true"] == pytest.approx(rows["false"], rel=1e-4)


@pytest.mark.parametrize(
    ("data", "kind", "sentence"),
    [
        ({"files": ["folder:a", "b.npy"]}, UsageError, "folders of pictures and other files"),
        ({"target": "digits", "colours": 3}, UsageError, 'write target = "folder:PATH"'),
        ({"target": "moons"}, UsageError, "are for images, and data.target is 'moons'"),
        ({"target": "digits", "crop": 0}, UsageError, "the least share of an image"),
        ({"target": "folder:nowhere"}, DataError, "'nowhere' is no folder"),
    ],
)
def test_what_cannot_be_is_refused(place, data, kind, sentence):
    with pytest.raises(kind, match=sentence):
        build_silos(config(place, **data))


def test_pictures_that_do_not_fit_are_refused(place):
    with pytest.raises(DataError, match="give a side"):
        build_silos(from_dict({"data": {"files": folders(place)}}))
    with pytest.raises(UsageError, match=r"data.images is 21; 'folder:.*north' has 20"):
        build_silos(config(place, files=folders(place), images=21))
    for path in (place / "south").rglob("*.png"):
        Image.open(path).convert("L").save(path)
    with pytest.raises(DataError, match=r"'north' are 3 x 4 x 4 .* 'south' 1 x 4 x 4; all"):
        build_silos(config(place, files=folders(place)))
    silos, _ = build_silos(config(place, files=folders(place), colours=1))
    assert all(silo.data.shape == (1, 4, 4) for silo in silos)


def test_sites_of_a_trial_hold_the_same_pictures(place):
    settings = config(place, files=folders(place), flip="random", crop=0.5, held_out=0.2)
    assert write_sites(settings, place / "sites") == ["north", "south"]
    for silo in build_silos(settings)[0]:
        held = open_site(place / "sites" / silo.name).silo
        assert held.data.bytes.equal(silo.data.bytes) and held.data.label.equal(silo.data.label)
        assert held.held_out.equal(silo.held_out) and (held.data.flip, held.data.crop) == ("random", 0.5)
