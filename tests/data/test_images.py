"""Image sets in their usual layouts: what is read, what is refused and how."""

import bz2
import gzip
import json
import pickle
import struct

import numpy
import pytest
import torch
from PIL import Image

from anabranch.data import ImageSet, load_images
from anabranch.errors import DataError, UsageError

RANDOM = numpy.random.default_rng(0)
DSPRITES = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"


def idx(array):
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder, count=5, side=28, packed=False, labels=None):
    """Both splits, the same in each; returns images and labels."""
    images = RANDOM.integers(0, 256, (count, side, side), dtype=numpy.uint8)
    label = numpy.arange(count, dtype=numpy.uint8) % 10 if labels is None else numpy.array(labels, numpy.uint8)
    for part in ("train", "t10k"):
        for stem, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", label)):
            name, content = (f"{stem}.gz", gzip.compress(idx(array))) if packed else (stem, idx(array))
            (folder / name).write_bytes(content)
    return images, label


class Bomb:
    """Unpickled, it would make a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "kmnist"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_idx_files_are_read_as_written(tmp_path, name, packed, split):
    images, label = write_idx(tmp_path, packed=packed)
    found = load_images(name, split, tmp_path)
    assert found.images.dtype == torch.uint8 and found.label.dtype == torch.int64
    assert numpy.array_equal(found.images[:, 0].numpy(), images) and found.label.tolist() == label.tolist()
    assert len(found.classes) == 10 and found.factors is None


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda content: b"\0\0\x0d\3" + content[4:], "does not begin like an idx file"),
        (lambda content: content[:10], "does not begin like an idx file"),
        (lambda content: content[:-1], "declares 3920 bytes and holds only 3919"),
        (lambda content: content + b"x", "declares 3920 bytes and holds more"),
        (lambda content: content[:4] + b"\xff" * 12 + content[16:], "more than any such set"),
    ],
)
def test_damaged_idx_files_are_refused(tmp_path, spoil, sentence):
    write_idx(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(DataError, match=sentence):
        load_images("mnist", folder=tmp_path)


def test_a_cut_gzip_file_is_refused(tmp_path):
    write_idx(tmp_path, packed=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="cannot be read"):
        load_images("mnist", folder=tmp_path)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"labels": [0, 1]}, "5 images and 2 labels; the files do not belong together"),
        ({"labels": [0, 1, 2, 3, 10]}, "labels from 0 to 10; those of mnist are 0 to 9"),
        ({"side": 20}, r"shape \(1, 20, 20\); those of mnist are \(1, 28, 28\)"),
        ({"count": 0}, "holds no train images"),
    ],
)
def test_files_that_cannot_be_the_set_are_refused(tmp_path, options, sentence):
    write_idx(tmp_path, **options)
    with pytest.raises(DataError, match=sentence):
        load_images("mnist", folder=tmp_path)


def test_missing_files_are_listed(tmp_path):
    write_idx(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=r"lacks t10k-labels-idx1-ubyte \(or t10k-labels-idx1-ubyte.gz\)") as error:
        load_images("mnist", "test", tmp_path)
    assert "t10k-images" not in str(error.value)
    with pytest.raises(DataError, match="is not a folder; give the one that holds train-images"):
        load_images("mnist", folder=tmp_path / "nowhere")


def test_kmnist_in_npz_files_equals_kmnist_in_idx_files(tmp_path):
    images, label = write_idx(tmp_path)
    from_idx = load_images("kmnist", folder=tmp_path)
    numpy.savez_compressed(tmp_path / "kmnist-train-imgs.npz", images[::-1])
    numpy.savez_compressed(tmp_path / "kmnist-train-labels.npz", label[::-1])
    from_npz = load_images("kmnist", folder=tmp_path)
    assert from_npz.images.equal(from_idx.images.flip(0)) and from_npz.label.equal(from_idx.label.flip(0))


def test_objects_in_npz_files_are_not_unpickled(tmp_path):
    write_idx(tmp_path)
    bomb = numpy.array([Bomb(tmp_path / "exploded")], dtype=object)
    numpy.savez(tmp_path / "kmnist-train-imgs.npz", bomb)
    with pytest.raises(DataError, match="does not hold one plain array"):
        load_images("kmnist", folder=tmp_path)
    assert not (tmp_path / "exploded").exists()


def write_cifar(folder, count=3):
    """The same images as binary version and as sheets."""
    (folder / "bin").mkdir()
    (folder / "png").mkdir()
    labels = {"train": [], "test": []}
    for stem in [f"data_batch_{part}" for part in range(1, 6)] + ["test_batch"]:
        images = RANDOM.integers(0, 256, (count, 3, 32, 32), dtype=numpy.uint8)
        label = RANDOM.integers(0, 10, count, dtype=numpy.uint8)
        rows = numpy.concatenate((label[:, None], images.reshape(count, -1)), axis=1)
        (folder / "bin" / f"{stem}.bin").write_bytes(rows.tobytes())
        sheet = images.transpose(0, 2, 3, 1).reshape(count, 1024, 3)
        Image.fromarray(sheet).save(folder / "png" / f"{stem}.png")
        labels["test" if stem.startswith("test") else "train"] += label.tolist()
    for split, values in labels.items():
        (folder / "png" / f"{split}_lables.json").write_text(json.dumps(values))


@pytest.mark.parametrize(("split", "count"), [("train", 15), ("test", 3)])
def test_cifar_is_the_same_in_both_layouts(tmp_path, split, count):
    write_cifar(tmp_path)
    binary, sheets = (load_images("cifar10", split, tmp_path / kind) for kind in ("bin", "png"))
    assert len(binary) == count and binary.images.shape[1:] == (3, 32, 32)
    assert binary.images.equal(sheets.images) and binary.label.equal(sheets.label)


def test_pickled_cifar_is_refused_unopened(tmp_path):
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    with pytest.raises(DataError, match="pickled version of CIFAR-10, which is never opened"):
        load_images("cifar10", folder=tmp_path)
    assert not (tmp_path / "exploded").exists()


def test_damaged_cifar_is_refused(tmp_path):
    write_cifar(tmp_path)
    path = tmp_path / "bin" / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"data_batch_2\.bin' has 9218 bytes, not up to 10000 rows of 3073"):
        load_images("cifar10", folder=tmp_path / "bin")
    (tmp_path / "png" / "test_lables.json").write_text("[1, 2]")
    with pytest.raises(DataError, match="3 images and 2 labels"):
        load_images("cifar10", "test", tmp_path / "png")
    Image.new("RGB", (1000, 3)).save(tmp_path / "png" / "test_batch.png")
    with pytest.raises(DataError, match="is no sheet of up to 10000 rows of 1024"):
        load_images("cifar10", "test", tmp_path / "png")


@pytest.mark.parametrize("packed", [False, True])
def test_usps_values_and_labels_are_moved_to_bytes_and_digits(tmp_path, packed):
    text = "10 1:-1 2:1 3:-0.5 256:1\n\n1 256:-1\n"
    for name in ("usps", "usps.t"):
        if packed:
            (tmp_path / f"{name}.bz2").write_bytes(bz2.compress(text.encode()))
        else:
            (tmp_path / name).write_text(text)
    found = load_images("usps", "test", tmp_path)
    assert found.label.tolist() == [9, 0] and found.images.shape == (2, 1, 16, 16)
    assert found.images[0].flatten()[[0, 1, 2, 3, 255]].tolist() == [0, 255, 64, 128, 255]
    assert found.images[1, 0, 15, 15] == 0


@pytest.mark.parametrize(
    "line", ["0 1:0", "11 1:0", "1 257:0", "1 0:0", "1 1:1.5", "1 1:nan", "1 1", "one 1:0", "\x00", "1 a:0"]
)
def test_damaged_usps_is_refused_by_line(tmp_path, line):
    (tmp_path / "usps").write_text(f"1 1:0\n{line}\n")
    with pytest.raises(DataError, match=r"Line 2 of '.*usps' is not as in libsvm's USPS"):
        load_images("usps", folder=tmp_path)


def write_dsprites(folder, each=20):
    """A few rows of every shape; an image carries its row's number in binary, in its first pixels."""
    count = 3 * each
    factors = numpy.stack([numpy.zeros(count), numpy.arange(count) // each, *[numpy.arange(count) % 5] * 4], axis=1)
    images = numpy.zeros((count, 64, 64), dtype=numpy.uint8)
    images[:, 0, :8] = numpy.unpackbits(numpy.arange(count, dtype=numpy.uint8)[:, None], axis=1)
    metadata = numpy.array(Bomb(folder / "exploded"), dtype=object)
    numpy.savez_compressed(
        folder / DSPRITES, metadata=metadata, imgs=images, latents_classes=factors.astype(numpy.int64)
    )
    return factors


def test_dsprites_is_divided_by_shape_and_keeps_its_factors(tmp_path):
    factors = write_dsprites(tmp_path)
    parts = [load_images("dsprites", split, tmp_path) for split in ("train", "test")]
    numbers = []
    for part in parts:
        assert set(part.images.unique().tolist()) == {0, 255}
        rows = numpy.packbits(part.images[:, 0, 0, :8].numpy() // 255, axis=1)[:, 0]
        assert numpy.array_equal(part.factors.numpy(), factors[rows]) and part.label.equal(part.factors[:, 1])
        numbers += rows.tolist()
    assert sorted(numbers) == list(range(60))
    assert parts[1].label.bincount().tolist() == [2, 2, 2] and parts[0].label.bincount().tolist() == [18] * 3
    assert not (tmp_path / "exploded").exists()


def test_damaged_dsprites_is_refused(tmp_path):
    write_dsprites(tmp_path)
    content = (tmp_path / DSPRITES).read_bytes()
    for spoilt in (b"", content[: len(content) // 2], content.replace(b"imgs", b"igms")):
        (tmp_path / DSPRITES).write_bytes(spoilt)
        with pytest.raises(DataError, match="damaged or is not dSprites as published"):
            load_images("dsprites", folder=tmp_path)


def test_digits_are_divided_without_loss():
    datasets = pytest.importorskip("sklearn.datasets")
    values, label = datasets.load_digits(return_X_y=True)
    parts = [load_images("digits", split) for split in ("train", "test")]
    rows = torch.cat([(part.points() * 16).round() for part in parts]).numpy().astype(int)
    labels = torch.cat([part.label for part in parts]).numpy()
    together = sorted(map(tuple, numpy.column_stack((rows, labels)).tolist()))
    assert together == sorted(map(tuple, numpy.column_stack((values, label)).astype(int).tolist()))
    share = parts[1].label.bincount() / (parts[0].label.bincount() + parts[1].label.bincount())
    assert (share - 0.2).abs().max() < 0.005
    assert parts[0].label.equal(load_images("digits").label)


def test_an_image_set_is_indexed_and_flattened():
    images = torch.arange(24, dtype=torch.uint8).reshape(2, 3, 2, 2)
    whole = ImageSet(images, torch.tensor([1, 0]), ("a", "b"), torch.tensor([[1], [2]]))
    one = whole[torch.tensor([1])]
    assert len(one) == 1 and one.label.tolist() == [0] and one.factors.tolist() == [[2]]
    assert torch.equal(one.points(), torch.arange(12, 24)[None] / 255) and one.points().dtype == torch.float32
    assert images.dtype == torch.uint8 and images.max() == 23


@pytest.mark.parametrize(
    ("images", "label", "sentence"),
    [
        (torch.zeros(2, 1, 2, 2), torch.zeros(2), "must be bytes"),
        (torch.zeros(2, 2, 2, dtype=torch.uint8), torch.zeros(2), "must be bytes"),
        (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.zeros(3), "3 labels were given for 2 images"),
    ],
)
def test_image_sets_that_do_not_fit_are_refused(images, label, sentence):
    with pytest.raises(DataError, match=sentence):
        ImageSet(images, label, ("a",))


def test_unknown_names_and_splits_are_corrected(tmp_path):
    with pytest.raises(UsageError, match="no image set 'mnits'; did you mean 'mnist'"):
        load_images("mnits")
    with pytest.raises(UsageError, match="no split 'training'; did you mean 'train'"):
        load_images("digits", "training")
    with pytest.raises(UsageError, match="leave the folder out"):
        load_images("digits", folder=tmp_path)
