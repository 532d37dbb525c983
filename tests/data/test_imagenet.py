"""ImageNet-64: batches and folders of pictures, small ones in the same layout."""

import numpy
import pytest
import torch
from PIL import Image

from anabranch.data import CATALOGUE, get, load_images
from anabranch.data._imagenet import first_of_each, read_imagenet
from anabranch.errors import DataError

RANDOM = numpy.random.default_rng(0)
NAMES = [f"train_data_batch_{part}.npz" for part in range(1, 11)] + ["val_data.npz"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ANABRANCH_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def batches(tmp_path):
    """Three images a file, of classes 1 to 13; the folder, and by split all images and labels from 0."""
    found = {"train": ([], []), "test": ([], [])}
    (tmp_path / "batches").mkdir()
    for number, name in enumerate(NAMES):
        data = RANDOM.integers(0, 256, (3, 12288), dtype=numpy.uint8)
        labels = [1 + (3 * number + place) % 13 for place in range(3)] if number < 10 else [1, 13, 10]
        numpy.savez(tmp_path / "batches" / name, data=data, labels=labels, mean=data.mean(0))
        images, label = found["test" if number == 10 else "train"]
        images.append(data.reshape(3, 3, 64, 64))
        label += [value - 1 for value in labels]
    return tmp_path / "batches", {split: (numpy.concatenate(i), numpy.array(at)) for split, (i, at) in found.items()}


@pytest.mark.parametrize("split", ["train", "test"])
def test_batches_are_read_as_written(batches, split):
    folder, written = batches
    images, label = written[split]
    found = load_images("imagenet64", split, folder)
    assert numpy.array_equal(found.images.numpy(), images) and found.label.tolist() == label.tolist()
    assert len(found.classes) == 1000 and found.classes[0] == "1"


@pytest.mark.parametrize("split", ["train", "test"])
def test_subsets_are_the_first_classes(batches, split):
    folder, written = batches
    images, label = written[split]
    found = load_images("imagenet64-10", split, folder)
    assert numpy.array_equal(found.images.numpy(), images[label < 10]) and set(found.label.tolist()) <= set(range(10))
    assert len(found) == (label < 10).sum() < len(label)


def test_at_most_so_many_of_each_class(batches):
    folder, written = batches
    images, label = written["train"]
    found = read_imagenet(folder, "train", classes=5, each=2)
    chosen = [at for at, value in enumerate(label) if value < 5 and (label[:at] == value).sum() < 2]
    assert len(chosen) == 10 and numpy.array_equal(found.array(), images[chosen])
    assert found.label.tolist() == label[chosen].tolist()


def test_the_first_of_each_by_counting():
    label = RANDOM.integers(0, 7, 200)
    for classes, each in ((7, 0), (4, 0), (7, 5), (3, 1), (5, 1000)):
        slow = [v < classes and (not each or (label[:at] == v).sum() < each) for at, v in enumerate(label)]
        assert first_of_each(label, classes, each).tolist() == slow


def test_the_paper_takes_500_of_500_classes():
    """Of 1 300 images of each of 1 000 classes: 250 000, and from validation all 50 of each."""
    label = RANDOM.permutation(numpy.repeat(numpy.arange(1000), 60))
    options = CATALOGUE["imagenet64-500"].read_files.keywords
    assert options == {"classes": 500, "each": 500} and first_of_each(label, **options).sum() == 500 * 60
    assert first_of_each(numpy.repeat(numpy.arange(501), 501), **options).sum() == 250_000
    assert [len(CATALOGUE[f"imagenet64{name}"].classes) for name in ("", "-500", "-10")] == [1000, 500, 10]


def test_a_subset_is_kept_and_loaded_from_the_cache(batches):
    folder, written = batches
    told = []
    get("imagenet64-10", folder, lambda *facts: told.append(facts))
    images, label = written["train"]
    found = load_images("imagenet64-10")
    assert numpy.array_equal(found.images.numpy(), images[label < 10])
    assert told[-2][1:] == ((label < 10).sum(), (label < 10).sum()) and told[-1][0] == "writing test images"


def test_it_cannot_be_fetched_and_the_sentence_says_what_to_put_where():
    with pytest.raises(DataError) as error:
        get("imagenet64-500")
    assert str(error.value) == (
        "The set 'imagenet64-500' is in no package registry and cannot be fetched. Put train_data_batch_1.npz to"
        " train_data_batch_10.npz (or pictures in train/CLASS), val_data.npz (or pictures in val/CLASS) into a folder"
        " and say: anabranch data get imagenet64-500 --folder FOLDER"
    )
    with pytest.raises(DataError, match="Get it with 'anabranch data get imagenet64-10'"):
        load_images("imagenet64-10")


class Bomb:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


def rewrite(folder, **arrays):
    with numpy.load(folder / NAMES[3]) as file:
        numpy.savez(folder / NAMES[3], **{"data": file["data"], "labels": file["labels"], **arrays})


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda f: (f / NAMES[3]).unlink(), "lacks train_data_batch_4.npz; put what is missing there"),
        (lambda f: (f / NAMES[3]).write_bytes(b"PK no archive"), "train_data_batch_4.npz' does not hold a plain array"),
        (lambda f: numpy.savez(f / NAMES[3], labels=[1]), "does not hold a plain array 'data'"),
        (lambda f: rewrite(f, labels=numpy.array([0, 1, 2])), "no labels from 1 to 1000"),
        (lambda f: rewrite(f, labels=numpy.array([1, 2, 1001])), "no labels from 1 to 1000"),
        (lambda f: rewrite(f, labels=numpy.array([1.5, 2, 3])), "no labels from 1 to 1000"),
        (lambda f: rewrite(f, labels=numpy.array([1, 2])), r"shape \(3, 12288\); 2 rows of 12288"),
        (lambda f: rewrite(f, data=numpy.zeros((3, 3072), numpy.uint8)), "take those of 64 x 64"),
        (lambda f: rewrite(f, data=numpy.zeros((3, 12288))), "holds float64"),
        (lambda f: rewrite(f, data=numpy.array([Bomb(f / "exploded")] * 3)), "does not hold a plain array 'data'"),
        (lambda f: rewrite(f, labels=numpy.array([Bomb(f / "exploded")] * 3)), "a plain array 'labels'"),
    ],
)
def test_what_cannot_be_the_set_is_refused(batches, spoil, sentence):
    folder, _ = batches
    spoil(folder)
    with pytest.raises(DataError, match=sentence):
        load_images("imagenet64", folder=folder)
    assert not (folder / "exploded").exists()


@pytest.fixture
def pictures(tmp_path):
    """Two pictures of each of eleven classes to train on, one to test; the folder, and the bytes by file."""
    written = {}
    for split, count in (("train", 2), ("val", 1)):
        for number in range(11):
            for name in range(count):
                path = tmp_path / "pictures" / split / f"n{number:08}" / f"{name}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                pixels = RANDOM.integers(0, 256, (64, 64, 3), dtype=numpy.uint8)
                Image.fromarray(pixels).save(path)
                written[split, number, name] = torch.from_numpy(pixels.transpose(2, 0, 1).copy())
    return tmp_path / "pictures", written


def test_folders_count_classes_by_name(pictures):
    folder, written = pictures
    train, test = (load_images("imagenet64-10", split, folder) for split in ("train", "test"))
    assert train.label.tolist() == [number for number in range(10) for _ in range(2)]
    assert train.images.equal(torch.stack([written["train", n, name] for n in range(10) for name in range(2)]))
    assert test.images.equal(torch.stack([written["val", n, 0] for n in range(10)]))


def test_pictures_of_any_size_and_colour_become_coloured_squares(pictures):
    folder, _ = pictures
    grey = Image.fromarray(numpy.full((20, 400), 77, numpy.uint8))
    grey.save(folder / "train" / "n00000003" / "0.png")  # smaller than 64 on one side: made larger
    found = load_images("imagenet64-10", folder=folder)
    assert found.images.shape == (20, 3, 64, 64) and (found.images[6] == 77).all()


def test_folders_that_cannot_be_the_set_are_refused(pictures):
    folder, _ = pictures
    with pytest.raises(DataError, match="holds pictures of 11 classes, and 500 are needed"):
        load_images("imagenet64-500", folder=folder)
    (folder / "val" / "n00000004").rename(folder / "val" / "other")
    with pytest.raises(DataError, match="the class 'n00000004' in only one of train and val"):
        load_images("imagenet64-10", "test", folder)
