"""Real images are looked at once: what is kept, for whom, and what happens where it cannot be."""

import json

import pytest
import torch
from torch import nn

from anabranch.data import load_images
from anabranch.errors import DataError, UsageError
from anabranch.metrics import FeatureStatistics, Inception, Reference, reference, reference_statistics
from anabranch.seeds import generator


class Rows(nn.Module):
    """The first numbers of each resized image, times a weight; it counts the images that it has seen."""

    def __init__(self, weight=1.0):
        super().__init__()
        self.register_buffer("weight", torch.tensor(weight))
        self.seen = 0

    def forward(self, x):
        self.seen += len(x)
        return x.flatten(1)[:, :2048] * self.weight


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ANABRANCH_DATA", str(tmp_path))
    return tmp_path / "references"


@pytest.fixture
def images():
    return torch.randint(0, 256, (30, 1, 8, 8), generator=generator(0, "images"), dtype=torch.uint8)


def test_images_are_looked_at_once(images, folder):
    inception = Inception(Rows())
    first = reference("mine", "train", inception, images=images)
    again = reference("mine", "train", Inception(inception.module), images=images, batch=7)
    assert inception.module.seen == 30
    expected = inception.features(images)
    assert torch.equal(first.features, expected) and torch.equal(again.features, expected)
    for found in (first, again):
        assert found.statistics.count == 30
        torch.testing.assert_close(found.statistics.covariance, FeatureStatistics.of(expected).covariance)
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".npy", ".npz"]


def test_statistics_alone_keep_no_features_and_are_the_same(images, folder, monkeypatch):
    monkeypatch.setattr("anabranch.metrics._reference._STRETCH", 8)
    inception, told = Inception(Rows()), []
    found = reference_statistics(
        "mine", "test", inception, images=images, batch=5, progress=lambda *step: told.append(step)
    )
    assert not list(folder.glob("*.npy")) and told[:3] == [(5, 30), (8, 30), (13, 30)] and told[-1] == (30, 30)
    full = reference("mine", "test", inception, images=images)
    assert inception.module.seen == 60 and full.features is not None
    assert torch.equal(full.statistics.mean, found.mean)
    torch.testing.assert_close(found.covariance, FeatureStatistics.of(full.features).covariance)
    assert reference("mine", "test", inception, images=images, features=False).features is None
    assert inception.module.seen == 60


def test_features_that_are_kept_give_the_statistics(images, folder):
    inception = Inception(Rows())
    reference("mine", "train", inception, images=images)
    next(folder.glob("*.npz")).unlink()
    assert reference_statistics("mine", "train", inception, images=images).count == 30
    assert inception.module.seen == 30


def test_what_is_kept_says_what_it_is_of(images, folder):
    facts = reference("mine", "train", Inception(Rows(), tf32=True), images=images).facts
    assert json.loads(next(folder.glob("*.json")).read_text()) == facts
    assert (facts["set"], facts["split"], facts["count"], facts["precision"]) == ("mine", "train", 30, "tf32")
    assert "TensorFlow 1" in facts["resize"] and len(facts["network"]) == 64


def test_another_network_precision_split_number_or_image_is_kept_apart(images, folder):
    other = images.clone()
    other[0, 0, 0, 0] += 1
    for name, split, inception, pixels, count in [
        ("mine", "train", Inception(Rows()), images, None),
        ("mine", "train", Inception(Rows(2.0)), images, None),
        ("mine", "train", Inception(Rows(), tf32=True), images, None),
        ("mine", "test", Inception(Rows()), images, None),
        ("mine", "train", Inception(Rows()), images, 20),
        ("mine", "train", Inception(Rows()), other, None),
        ("yours", "train", Inception(Rows()), images, None),
    ]:
        reference(name, split, inception, images=pixels, count=count)
        assert inception.module.seen == (count or 30)
    assert len(list(folder.glob("*.npz"))) == 7


def test_a_number_of_images_is_drawn_once_and_for_all(images):
    inception = Inception(Rows())
    found = reference("mine", "train", inception, images=images, count=12)
    again = reference("mine", "train", inception, images=images, count=12)
    assert torch.equal(found.features, again.features) and inception.module.seen == 12
    whole = inception.features(images)
    places = [int((whole == row).all(1).nonzero()[0, 0]) for row in found.features]
    assert places == sorted(set(places)) and places != list(range(12))


def test_a_known_set_is_loaded_by_its_name():
    pytest.importorskip("sklearn")
    found = reference("digits", "test", Inception(Rows()), count=50)
    assert found.statistics.count == 50 and found.features.shape == (50, 2048)
    assert found.facts["set"] == "digits" and len(load_images("digits", "test")) == 359
    with pytest.raises(DataError, match="anabranch data get mnist"):
        reference("mnist", "test", Inception(Rows()))


def test_what_is_damaged_is_made_again_and_told_of(images, folder):
    inception = Inception(Rows())
    expected = reference("mine", "train", inception, images=images)
    for path in (next(folder.glob("*.npy")), next(folder.glob("*.npz"))):
        path.write_bytes(path.read_bytes()[:1000])
    with pytest.warns(UserWarning) as told:
        found = reference("mine", "train", inception, images=images)
    assert [str(one.message).endswith("It is made again.") for one in told] == [True, True]
    assert inception.module.seen == 60 and torch.equal(found.features, expected.features)
    reference("mine", "train", inception, images=images)
    assert inception.module.seen == 60


def test_a_cache_that_cannot_be_written_costs_no_result(images, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ANABRANCH_DATA", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match=r"cannot be written: .* looked at again next time"):
        found = reference("mine", "train", Inception(Rows()), images=images)
    assert found.statistics.count == 30 and found.features.shape == (30, 2048)


def test_writing_to_features_does_not_reach_the_disk(images):
    reference("mine", "train", Inception(Rows()), images=images)
    found = reference("mine", "train", Inception(Rows()), images=images).features
    found += 1
    again = reference("mine", "train", Inception(Rows()), images=images).features
    torch.testing.assert_close(again + 1, found)


def test_what_cannot_be_a_reference_is_refused(images):
    inception = Inception(Rows())
    with pytest.raises(UsageError, match="give bytes"):
        reference("mine", "train", inception, images=images.float())
    for name, split in (("../mine", "train"), ("mine", "a/b"), ("", "train"), (".mine", "train")):
        with pytest.raises(UsageError, match="cannot name files"):
            reference(name, split, inception, images=images)
    for count in (1, 31):
        with pytest.raises(UsageError, match=f"{count} images of mine were asked for; train has 30"):
            reference("mine", "train", inception, images=images, count=count)


def test_moving_keeps_everything():
    features = torch.randn(9, 3, generator=generator(0))
    found = Reference.of(features, set="mine").to("cpu")
    assert found.facts == {"set": "mine"} and torch.equal(found.features, features) and found.statistics.count == 9
    assert Reference(found.statistics).to("cpu").features is None
