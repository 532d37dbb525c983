"""The sources: what they draw, from what, and that training and test data have nothing in common."""

import pytest
import torch

from anabranch.data import ImageSet, damage, load_images
from anabranch.data.attributes import (
    COLORED,
    COLORS,
    CORNERS,
    Attributed,
    AttributeSpace,
    attributed,
    band,
    corner_modes,
    minimal,
    paint,
    sprite_space,
)
from anabranch.data.attributes._sprites import _labels
from anabranch.errors import DataError, UsageError

needs_sprites = pytest.mark.skipif(damage("dsprites") is not None, reason="dSprites is not on this machine")


def test_corners_are_gaussians_about_their_modes():
    data = attributed("corners", count=40_000, distance=2.0, sigma=0.25)
    for label in range(4):
        x = data.x[data.label == label]
        assert len(x) == pytest.approx(10_000, rel=0.05)
        assert torch.allclose(x.mean(0), corner_modes(2.0)[label], atol=0.02)
        assert torch.allclose(torch.cov(x.T), 0.0625 * torch.eye(2), atol=0.004)
    left, top = data.codes[:, 0] == 0, data.codes[:, 1] == 0
    assert CORNERS.describe(0) == "horizontal=left, vertical=top"
    assert bool((data.x[left, 0] < 0).all()) and bool((data.x[top, 1] > 0).all())


def test_a_seed_repeats_and_splits_differ():
    for name in ("corners", "colored-digits"):
        first, again = attributed(name, count=50, seed=3), attributed(name, count=50, seed=3)
        assert torch.equal(first.x, again.x) and torch.equal(first.label, again.label)
        assert not torch.equal(first.x, attributed(name, count=50, seed=4).x)
        assert not torch.equal(first.x, attributed(name, "test", count=50, seed=3).x)


def test_a_painted_image_is_grey_times_its_colour():
    images = load_images("digits", "test")[torch.arange(10)]
    data = paint(images, torch.arange(10))
    pixels = (data.x.reshape(10, 3, 64) + 1) / 2
    for number, rgb in enumerate(COLORS.values()):
        for channel in range(3):
            expected = images.points()[number] * rgb[channel] / 255
            assert torch.allclose(pixels[number, channel], expected, atol=1e-6)
    assert data.shape == (3, 8, 8) and torch.equal(data.codes[:, 0], images.label)
    assert torch.equal(data.codes[:, 1], torch.arange(10))


def test_colours_are_told_apart_by_direction_whatever_the_intensity():
    direction = torch.nn.functional.normalize(torch.tensor(list(COLORS.values())).double(), dim=1)
    angle = torch.rad2deg(torch.arccos((direction @ direction.T).clamp(-1, 1))).fill_diagonal_(90)
    assert len(COLORS) == 10 and float(angle.min()) > 22
    data = attributed("colored-digits", "test")
    light = ((data.x.reshape(len(data), 3, 64) + 1) / 2).sum(2).double()
    nearest = (torch.nn.functional.normalize(light, dim=1) @ direction.T).argmax(1)
    assert torch.equal(nearest, data.codes[:, 1])


def test_colours_are_uniform_among_the_observed_ones_of_a_digit():
    data = attributed("colored-digits", count=20_000, observed="band")
    counts = torch.bincount(data.label, minlength=100).reshape(10, 10)
    assert torch.equal((counts > 0).flatten(), band(COLORED))
    share = counts / counts.sum(1, keepdim=True)
    assert torch.allclose(share[counts > 0], torch.tensor(0.2), atol=0.04)
    assert len(data) == 20_000 and float(data.x.min()) == -1 and float(data.x.max()) == 1
    ones = attributed("colored-digits", observed=["digit=1,color=red"])
    assert set(ones.label.tolist()) == {COLORED.encode(torch.tensor([1, 0])).item()}
    assert len(ones) == int((load_images("digits", "train").label == 1).sum())


def test_no_image_is_in_both_splits():
    grey = []
    for split in ("train", "test"):
        brightest = attributed("colored-digits", split).x.reshape(-1, 3, 64).amax(1)
        grey.append({bytes(row.tolist()) for row in ((brightest + 1) * 8).round().byte()})
    assert not grey[0] & grey[1] and min(map(len, grey)) > 300


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: attributed("colored-digit"), "did you mean 'colored-digits'"),
        (lambda: attributed("corners", "tset"), "did you mean 'test'"),
        (lambda: attributed("corners", count=0), "1 or more"),
        (lambda: attributed("corners", sigam=1), "did you mean 'sigma'"),
        (lambda: attributed("corners", sigma=0), "must be positive"),
        (lambda: attributed("dsprites", side=20), "side is 64, 32 or 16"),
        (lambda: attributed("dsprites", scales=4), "one of 2, 3, 6"),
        (lambda: attributed("dsprites", grid=4), "one of 2, 3"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, says):
    with pytest.raises(UsageError, match=says):
        call()


def test_samples_that_do_not_fit_are_refused():
    space = AttributeSpace.of({"a": "12", "b": "12"})
    with pytest.raises(DataError, match="each with one whole number"):
        Attributed(torch.zeros(3, 2), torch.zeros(2, dtype=torch.long), space)
    with pytest.raises(DataError, match="no images of"):
        Attributed(torch.zeros(3, 2), torch.zeros(3, dtype=torch.long), space, (3, 8, 8))
    with pytest.raises(UsageError, match="no combination"):
        Attributed(torch.zeros(1, 2), torch.tensor([4]), space)


def test_factors_of_sprites_become_shape_scale_and_position():
    factors = torch.tensor([[0, 2, 5, 0, 8, 24], [0, 1, 0, 39, 24, 8], [0, 0, 1, 0, 8, 8], [0, 0, 2, 0, 15, 8]])
    images = ImageSet(torch.zeros(4, 1, 64, 64, dtype=torch.uint8), factors[:, 1], ("a", "b", "c"), factors)
    space = sprite_space()
    label = _labels(images, space, (0, 2, 5), 2, 4, 40)
    assert space.describe(int(label[0])) == "shape=heart, scale=1.0, position=bottom-left"
    assert space.describe(int(label[1])) == "shape=ellipse, scale=0.5, position=top-right"
    assert label[2:].tolist() == [-1, -1]  # a scale between two outcomes, and a place on a boundary
    assert _labels(images, space, (0, 2, 5), 2, 4, 39)[1] == -1


@needs_sprites
def test_sprites_lie_where_their_label_says():
    data = attributed("dsprites", "test", count=300, observed="minimal")
    assert set(data.label.tolist()) == set(minimal(data.space).nonzero()[:, 0].tolist())
    pixels = (data.x.reshape(-1, 32, 32) + 1) / 2
    place = torch.arange(32.0) - 15.5
    mass = pixels.sum((1, 2))
    row, column = ((pixels.sum(axis) * place).sum(1) / mass for axis in (2, 1))
    position = data.codes[:, 2]
    assert torch.equal(row > 0, position >= 2) and torch.equal(column > 0, position % 2 == 1)
    scale = data.codes[:, 1]
    assert float(mass[scale == 0].max()) < float(mass[scale == 2].min())
    assert data.shape == (1, 32, 32) and attributed("dsprites", "test", count=2, side=16, grid=3).x.shape == (2, 256)
    with pytest.raises(UsageError, match="Take fewer"):
        attributed("dsprites", "test", count=10**6, observed="minimal")
