"""Folders of pictures: what is read, how it is made to fit, what is kept, and what is refused."""

import os

import numpy
import pytest
import torch
from PIL import Image

from anabranch.data import ImageSet, load_folder, share_classes
from anabranch.data._picture import Framing
from anabranch.errors import DataError, UsageError

RANDOM = numpy.random.default_rng(0)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ANABRANCH_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def picture(path, height=6, width=6, colours=3, **options):
    """Writes a random picture; gives its bytes as (colours, height, width)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = RANDOM.integers(0, 256, (height, width, colours), dtype=numpy.uint8)
    Image.fromarray(pixels[..., 0] if colours == 1 else pixels).save(path, **options)
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


def test_classes_are_folders_in_the_order_of_their_names(tmp_path):
    names = ["cat/10.png", "cat/2.PNG", "ant/x.png", "cat/deep/er/0.png"]
    written = {name: picture(tmp_path / "set" / name) for name in names}
    (tmp_path / "set" / "cat" / "notes.txt").write_text("no picture")
    (tmp_path / "set" / "cat" / "._10.png").write_bytes(b"no picture either")
    (tmp_path / "set" / "empty").mkdir()
    found = load_folder(tmp_path / "set")
    assert found.classes == ("ant", "cat") and found.label.tolist() == [0, 1, 1, 1]
    order = ["ant/x.png", "cat/10.png", "cat/2.PNG", "cat/deep/er/0.png"]
    assert found.images.equal(torch.stack([written[name] for name in order]))


def test_a_flat_folder_is_one_class(tmp_path):
    written = [picture(tmp_path / "flat" / f"{number}.png", 4, 7, colours=1) for number in range(300)]
    found = load_folder(tmp_path / "flat")
    assert found.classes == ("flat",) and not found.label.any()
    order = sorted(range(300), key=lambda number: f"{number}.png")
    assert found.images.equal(torch.stack([written[number] for number in order]))  # across blocks, in order


@pytest.mark.parametrize(("height", "width"), [(8, 14), (14, 8), (8, 8)])
def test_the_middle_is_averaged_down(tmp_path, height, width):
    whole = picture(tmp_path / "set" / "a.png", height, width).double()
    top, left = (height - 8) // 2, (width - 8) // 2
    middle = whole[:, top : top + 8, left : left + 8]
    found = load_folder(tmp_path / "set", side=4).images[0]
    over = found - middle.unfold(1, 2, 2).unfold(2, 2, 2).mean((-1, -2))
    assert over.min() >= 0 and over.max() <= 1  # means of two along one side, then the other, each half rounded up


def test_a_jpeg_is_decoded_at_a_smaller_size_to_nearly_the_same(tmp_path):
    """Only part of a JPEG file is decoded for small sides; smooth pictures must not show it."""
    y, x = numpy.mgrid[0:160, 0:160] / 160
    smooth = numpy.stack([255 * x, 255 * y, 127 + 127 * numpy.sin(3 * x * y)], 2).astype(numpy.uint8)
    (tmp_path / "set").mkdir()
    Image.fromarray(smooth).save(tmp_path / "set" / "a.jpg", quality=98)
    found = load_folder(tmp_path / "set", side=10).images[0].double()
    averaged = torch.from_numpy(smooth.transpose(2, 0, 1)).double().unfold(1, 16, 16).unfold(2, 16, 16).mean((-1, -2))
    assert found.shape == (3, 10, 10) and (found - averaged).abs().max() < 3


def test_colours_can_be_asked_for(tmp_path):
    coloured = picture(tmp_path / "set" / "a.png").double()
    grey = picture(tmp_path / "set" / "b.png", colours=1)
    first, second = load_folder(tmp_path / "set", colours=3).images
    assert first.equal(coloured.byte()) and second.equal(grey.expand(3, 6, 6))
    first, second = load_folder(tmp_path / "set", colours=1).images
    weights = torch.tensor([0.299, 0.587, 0.114], dtype=torch.double)  # ITU-R 601-2
    assert (first[0] - (weights[:, None, None] * coloured).sum(0)).abs().max() <= 0.5 + 0.01 and second.equal(grey)


def test_modes_of_files(tmp_path):
    place = tmp_path / "set"
    plain = picture(place / "a.png").permute(1, 2, 0).numpy()
    veil = numpy.dstack([plain, RANDOM.integers(0, 256, (6, 6), dtype=numpy.uint8)])
    Image.fromarray(veil).save(place / "b.png")  # transparency is left out
    Image.fromarray(plain // 128 * 255).convert("P").save(place / "c.png")
    rotated = Image.Exif()
    rotated[0x0112] = 6  # held so that the picture must be turned to the right
    Image.fromarray(plain).save(place / "d.png", exif=rotated)
    a, b, c, d = load_folder(place).images
    assert b.equal(a) and c.shape == a.shape and d.equal(a.rot90(-1, (1, 2)))


def forbid(monkeypatch):
    def read(self, path):
        raise AssertionError(f"{path} was read again")

    monkeypatch.setattr(Framing, "read", read)


def test_the_second_time_nothing_is_read_but_what_was_kept(tmp_path, monkeypatch, cache):
    for name in ("a/1.png", "a/2.png", "b/1.png"):
        picture(tmp_path / "set" / name)
    told = []
    first = load_folder(tmp_path / "set", side=3, progress=lambda *facts: told.append(facts))
    assert told == [("reading set", 3, 3)]
    (kept,) = (cache / "folders").iterdir()
    assert kept.stat().st_mode & 0o077 == 0  # people's pictures are nobody else's
    assert sorted(path.name for path in kept.iterdir()) == ["images.npy", "label.npy", "stamp.json"]
    with monkeypatch.context() as patch:
        forbid(patch)
        again = load_folder(str(tmp_path / "set") + "/", side=3)
    assert again.images.equal(first.images) and again.label.equal(first.label) and again.classes == first.classes
    again.images.zero_()  # reaches no disk
    assert load_folder(tmp_path / "set", side=3).images.equal(first.images)
    assert load_folder(tmp_path / "set").images.shape == (3, 3, 6, 6)  # another framing is kept apart


def change(place):
    before = (place / "a" / "1.png").stat().st_mtime_ns
    picture(place / "a" / "1.png")
    os.utime(place / "a" / "1.png", ns=(before + 1, before + 1))


@pytest.mark.parametrize(
    "spoil",
    [
        change,
        lambda place: picture(place / "a" / "3.png"),
        lambda place: (place / "a" / "2.png").unlink(),
        lambda place: (place / "a" / "2.png").rename(place / "a" / "0.png"),
        lambda place: (place / "b").rename(place / "c"),
    ],
)
def test_changed_folders_are_read_again(tmp_path, spoil):
    for name in ("a/1.png", "a/2.png", "b/1.png"):
        picture(tmp_path / "set" / name)
    load_folder(tmp_path / "set")
    spoil(tmp_path / "set")
    kept, fresh = load_folder(tmp_path / "set"), load_folder(tmp_path / "set", keep=False)
    assert kept.images.equal(fresh.images) and kept.label.equal(fresh.label) and kept.classes == fresh.classes


@pytest.mark.parametrize("name", ["images.npy", "label.npy", "stamp.json"])
def test_what_was_kept_and_is_damaged_is_made_again(tmp_path, cache, name):
    picture(tmp_path / "set" / "a.png")
    first = load_folder(tmp_path / "set")
    expected = first.images.clone()
    (kept,) = (cache / "folders").iterdir()
    (kept / name).write_bytes((kept / name).read_bytes()[:-3])
    assert load_folder(tmp_path / "set").images.equal(expected)


def test_nothing_is_kept_where_that_is_not_wanted(tmp_path, cache):
    written = picture(tmp_path / "set" / "a.png")
    assert load_folder(tmp_path / "set", keep=False).images[0].equal(written) and not cache.exists()


def test_a_read_that_fails_leaves_nothing_behind(tmp_path, cache):
    picture(tmp_path / "set" / "a.png")
    (tmp_path / "set" / "b.png").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"b\.png' cannot be read as a picture"):
        load_folder(tmp_path / "set")
    assert list((cache / "folders").iterdir()) == []


def cut(place):
    path = place / "a.png"
    path.write_bytes(path.read_bytes()[:60])


def deep(place):
    Image.fromarray(RANDOM.integers(0, 60000, (6, 6)).astype(numpy.uint16)).save(place / "a.png")


@pytest.mark.parametrize(
    ("spoil", "options", "sentence"),
    [
        (lambda place: (place / "a.png").unlink(), {}, "holds no pictures: no files that end in .png, .jpg, .jpeg"),
        (cut, {}, r"a\.png' cannot be read as a picture: .*; mend it, or take it away"),
        (deep, {}, r"a\.png' has values that do not fit into bytes \(mode I;16\)"),
        (lambda place: picture(place / "b.png", 6, 7), {}, r"a\.png' is 6 x 6 .* '.*b\.png' 6 x 7; give a side"),
        (lambda place: picture(place / "b.png", colours=1), {}, r"b\.png' is grey and .*a\.png' is coloured"),
        (lambda place: picture(place / "c/b.png"), {}, r"holds pictures \('a\.png'\) beside folders of them \('c'\)"),
        (lambda place: picture(place / "b.png", 5, 9), {"side": 6}, r"b\.png' is 5 pixels on its shorter side, and 6"),
    ],
)
def test_what_cannot_be_a_set_is_refused(tmp_path, spoil, options, sentence):
    picture(tmp_path / "set" / "a.png")
    spoil(tmp_path / "set")
    with pytest.raises(DataError, match=sentence):
        load_folder(tmp_path / "set", **options)


@pytest.mark.parametrize(
    ("options", "sentence"), [({"side": -1}, "A side of -1"), ({"colours": 2}, "2 colours were given")]
)
def test_framings_that_cannot_be_are_refused(tmp_path, options, sentence):
    picture(tmp_path / "set" / "a.png")
    with pytest.raises(UsageError, match=sentence):
        load_folder(tmp_path / "set", **options)
    with pytest.raises(DataError, match="is no folder"):
        load_folder(tmp_path / "set" / "a.png")


def test_pictures_that_go_away_are_named(tmp_path):
    (tmp_path / "set" / "c").mkdir(parents=True)
    (tmp_path / "set" / "c" / "b.png").symlink_to("nowhere")
    with pytest.raises(DataError, match=r"c/b\.png' cannot be read: No such file"):
        load_folder(tmp_path / "set")


def test_labels_of_several_sets_agree():
    images = torch.zeros(3, 1, 2, 2, dtype=torch.uint8)
    label = torch.tensor([0, 1, 1])
    first, second = share_classes([ImageSet(images, label, ("ant", "dog")), ImageSet(images, label, ("cat", "dog"))])
    assert first.classes == second.classes == ("ant", "cat", "dog")
    assert (first.label.tolist(), second.label.tolist()) == ([0, 2, 2], [1, 2, 2])
