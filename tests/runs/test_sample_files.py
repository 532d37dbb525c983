"""Files of samples, written as they come: archives, sheets, folders, and what an interruption leaves."""

import io
import json
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from anabranch.errors import ExhaustedError, RunFolderError, UsageError
from anabranch.flow import Flow
from anabranch.runs import (
    Computing,
    Drawing,
    RunFolder,
    Sampling,
    open_file,
    open_flow,
    train,
    write_drawing,
)
from anabranch.runs._sample_files import image_bytes
from anabranch.runs._sample_pictures import PictureFolder, draw_tiles
from tests.runs.test_images import config


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "run"
    train(config(), path)
    return path


def moved(count=10, batch=4, side=2, evaluations=3, **more):
    """Images whose pixels all have the number of their image; a later batch takes more evaluations."""

    def follow(x0, start):
        return Flow(x0 / 127.5 - 1, evaluations + (start > 0), None, torch.zeros(2))

    def noise(start, stop):
        return torch.arange(start, stop).float()[:, None].expand(-1, 3 * side * side)

    table = None
    return Drawing(count, batch, noise, follow, table, (3, side, side), **{"facts": {"seed": 0}, **more})


def put(drawing, out, watch=lambda done: None):
    with open_file(str(out), drawing) as file:
        return write_drawing(drawing, file, watch)


def numbers(folder):
    return [int(np.asarray(Image.open(path)).mean()) for path in sorted(folder.glob("*.png"))]


def test_evaluations_are_a_mean_over_samples_and_progress_is_told(tmp_path):
    told = []
    written = put(moved(10, 4), tmp_path / "x.npz", told.append)
    assert told == [4, 8, 10] and written.drawn == 10
    assert written.evaluations == pytest.approx((4 * 3 + 6 * 4) / 10)


def test_an_archive_holds_bytes_of_images_and_what_was_asked_of_them(tmp_path):
    words = {"kind": ["a"] * 9 + ["bcd"]}
    put(moved(10, 4, attributes=words), tmp_path / "new" / "x.npz")
    with np.load(tmp_path / "new" / "x.npz", allow_pickle=False) as file:
        assert sorted(file.files) == ["images", "kind"] and file["kind"].tolist() == words["kind"]
        assert file["images"].shape == (10, 2, 2, 3) and file["images"].dtype == np.uint8
        assert file["images"][:, 0, 0, 0].tolist() == list(range(10))
    with pytest.raises(UsageError, match="An attribute is called 'images'"):
        open_file(str(tmp_path / "y.npz"), moved(attributes={"images": ["a"] * 10}))


def test_colours_lie_last_and_rows_are_not_columns():
    image = torch.arange(12.0).reshape(1, 12) / 127.5 - 1  # (channel, row, column) in this order
    found = image_bytes(image, (3, 2, 2))[0]
    assert (
        found[0, 0].tolist() == [0, 4, 8] and found[0, 1].tolist() == [1, 5, 9] and found[1, 0].tolist() == [2, 6, 10]
    )


def test_rows_of_points_as_an_array_and_in_an_archive(tmp_path):
    drawing = replace(moved(10, 4), shape=())
    put(drawing, tmp_path / "x.npy")
    put(drawing, tmp_path / "x.npz")
    rows = np.load(tmp_path / "x.npy")
    assert rows.shape == (10, 12) and rows.dtype == np.float32
    assert np.allclose(rows[:, 5], np.arange(10) / 127.5 - 1)
    assert np.array_equal(np.load(tmp_path / "x.npz")["x"], rows)


def test_a_sheet_has_every_image_once_and_every_pixel_one_size():
    images = np.arange(5, dtype=np.uint8)[:, None, None, None].repeat(3, 1).repeat(2, 2).repeat(3, 3) * 40
    images[:, 0, 0] += 7
    sheet = np.asarray(Image.open(io.BytesIO(draw_tiles(images))))
    values, counts = np.unique(sheet[..., 0], return_counts=True)
    each = dict(zip(values.tolist(), counts.tolist(), strict=True))
    zoom = 800 // (3 * 2)
    for number in range(5):
        assert each[number * 40 + 7] == zoom**2 and each[number * 40] == 5 * zoom**2
    assert sheet[0].min() == 255 and len(each) == 11  # five images of two greys, and white


def test_points_without_anything_to_draw_them_by_are_no_picture():
    with pytest.raises(UsageError, match="nothing was given to draw them by"):
        open_file("x.png", replace(moved(), shape=()))


def test_an_interrupted_archive_leaves_nothing_and_what_was_there_stays(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"before")

    def stop(done):
        if done == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        put(moved(), tmp_path / "x.npz", stop)
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"] and (tmp_path / "x.npz").read_bytes() == b"before"


def test_a_table_that_cannot_be_written_whole_leaves_the_one_that_was_there(tmp_path):
    class Torn:
        def write(self, path):
            path.write_text("x1\n0.")
            raise OSError(28, "No space left on device")

    (tmp_path / "x.csv").write_text("before")
    with pytest.raises(RunFolderError, match="No space left"):
        put(replace(moved(), table=lambda x: Torn()), tmp_path / "x.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"] and (tmp_path / "x.csv").read_text() == "before"


def test_the_archive_of_a_run_itself_is_not_written_over(images):
    before = (images / "samples.npz").read_bytes()
    with pytest.raises(UsageError, match="where the run keeps what its report shows"):
        put(moved(), images / "samples.npz")
    assert (images / "samples.npz").read_bytes() == before
    put(moved(), images / "others.npz")


# A folder -----------------------------------------------------------------------------------------------------------


def test_a_folder_is_gone_on_with_where_it_was_interrupted(tmp_path):
    def stop(done):
        if done == 8:
            raise KeyboardInterrupt

    out = tmp_path / "pictures"
    with pytest.raises(KeyboardInterrupt), open_file(f"{out}/", moved()) as file:
        write_drawing(moved(), file, stop)
    assert "8 of 10 samples are in" in file.left and numbers(out) == list(range(8))
    (out / "00006.png").unlink()
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    told = []
    written = put(moved(), out, told.append)  # an existing folder needs no stroke
    assert written.drawn == 6 and told == [8, 10] and numbers(out) == list(range(10))
    assert all((out / f"0000{n}.png").stat().st_mtime_ns == before[f"0000{n}.png"] for n in range(4))
    assert put(moved(), out).drawn == 0
    assert put(moved(13), out).drawn == 5 and numbers(out) == list(range(13))
    assert not list(out.glob(".*"))


def test_a_folder_of_other_things_or_other_samples_is_refused(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(RunFolderError, match=r"holds other files \(letter.txt\)"):
        put(moved(), tmp_path / "mine")
    put(moved(), f"{tmp_path / 'pictures'}/")
    with pytest.raises(RunFolderError, match="another value of seed"):
        put(moved(facts={"seed": 1}), tmp_path / "pictures")
    with pytest.raises(RunFolderError, match="holds 10 samples, more than the 9"):
        put(moved(9), tmp_path / "pictures")
    (tmp_path / "pictures" / "samples.json").write_text("{")
    with pytest.raises(RunFolderError, match="cannot be read"):
        put(moved(), tmp_path / "pictures")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["letter.txt"]


def test_grey_images_become_grey_pictures_and_other_colours_are_refused(images, tmp_path):
    drawing = open_flow(images, 5, Sampling(1, "euler"), Computing(2, "cpu"))
    put(drawing, f"{tmp_path / 'grey'}/")
    picture = Image.open(tmp_path / "grey" / "00004.png")
    assert picture.mode == "L" and picture.size == (8, 8)
    record = json.loads((tmp_path / "grey" / "samples.json").read_text())
    assert record["run"] == RunFolder(images).identity and record["nfe"] == 1 and record["precision"] == "float32"
    put(drawing, tmp_path / "x.npz")
    assert np.array_equal(np.load(tmp_path / "x.npz")["images"][4, :, :, 0], np.asarray(picture))
    for out in ("two/", "two.png"):
        with pytest.raises(UsageError, match="1 or 3 colours, and these images have 2"):
            open_file(out, replace(drawing, shape=(2, 8, 4)))


def test_a_disk_that_refuses_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    for name in ("x.npy", "x.npz", "x.png", "pictures/"):
        with pytest.raises(RunFolderError, match=r"not be written \((Not a directory|File exists)\)\. Choose"):
            put(moved(), f"{tmp_path}/file/{name}")


# Memory -------------------------------------------------------------------------------------------------------------


def test_out_of_memory_names_the_batch(tmp_path):
    def exhausted(x0, start):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(ExhaustedError, match=r"4 at a time. Give a smaller --batch, as in --batch 2"):
        put(replace(moved(), follow=exhausted), tmp_path / "x.npz")
    assert not list(tmp_path.iterdir())


def test_no_more_than_one_batch_waits_to_be_written(tmp_path, monkeypatch):
    finished, behind = [], []
    write = PictureFolder._write

    def slowly(self, images, first):
        time.sleep(0.02)
        write(self, images, first)
        finished.append(first)

    def follow(x0, start):
        behind.append(start // 4 - len(finished))
        return Flow(x0 / 127.5 - 1, 1, None, torch.zeros(2))

    monkeypatch.setattr(PictureFolder, "_write", slowly)
    put(replace(moved(32, 4), follow=follow), f"{tmp_path / 'pictures'}/")
    assert len(finished) == 8 and max(behind) == 1 and numbers(tmp_path / "pictures") == list(range(32))


def test_a_disk_that_is_full_half_way_stops_and_says_so(tmp_path, monkeypatch):
    def full(image):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("anabranch.runs._sample_pictures._png", full)
    with pytest.raises(RunFolderError, match=r"\(No space left on device\)\. Free some space, or"):
        put(moved(), f"{tmp_path / 'pictures'}/")
