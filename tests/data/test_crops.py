"""Random pieces of images: where they lie, and that stretching them is exact where it can be."""

import math

import pytest
import torch

from anabranch.data import Pixels
from anabranch.data._crops import pieces, resized_crops
from anabranch.errors import UsageError
from anabranch.seeds import generator


def test_pieces_lie_inside_and_have_their_share():
    found = pieces(20_000, 0.2, generator(0)).double()
    centre, half = found[:, :2], found[:, 2:]
    assert float((centre.abs() + half).max()) <= 1 + 1e-6
    area, ratio = half.prod(1), half[:, 0] / half[:, 1]
    assert 0.2 - 1e-6 <= float(area.min()) < 0.21 and 0.98 < float(area.max()) <= 1
    assert float(ratio.log().abs().max()) <= math.log(4 / 3) + 1e-5
    free = area < 0.75 - 1e-6  # never cut: area uniform, so its mean is that of [0.2, 0.75]; ratio symmetric
    assert abs(float(area[free].mean()) - 0.475) < 0.006 and abs(float(ratio[free].log().mean())) < 0.006
    assert abs(float(free.double().mean()) - 0.55 / 0.8) < 0.03  # cutting moves a few below
    places = centre / (1 - half).clamp(min=1e-9)
    inner = places[(half < 0.99).all(1)]
    assert float(inner.mean(0).abs().max()) < 0.02 and abs(float(inner.var(0).mean()) - 1 / 3) < 0.01


@pytest.mark.parametrize(("height", "width"), [(8, 8), (5, 12)])
def test_a_piece_of_a_slope_is_the_slope_at_its_places(height, width):
    """Bilinear interpolation is exact for linear functions, but for the half pixel at the border, where it is flat."""
    edges = torch.tensor([1 - 1 / width, 1 - 1 / height], dtype=torch.double)
    x, y = (
        torch.linspace(-float(edge), float(edge), n).double() for edge, n in zip(edges, (width, height), strict=True)
    )
    slope = torch.stack([x.expand(height, width), y[:, None].expand(height, width)])
    images = slope.expand(50, 2, height, width)
    found = resized_crops(images, 0.1, generator(3))
    for one, (cx, cy, hx, hy) in zip(found, pieces(50, 0.1, generator(3)).double(), strict=True):
        torch.testing.assert_close(one[0], (cx + hx * x).clamp(-edges[0], edges[0]).expand(height, width))
        torch.testing.assert_close(one[1], (cy + hy * y).clamp(-edges[1], edges[1])[:, None].expand(height, width))


def test_numbers_stay_between_those_of_the_image():
    images = torch.rand(40, 3, 9, 9, generator=generator(1))
    found = resized_crops(images, 0.08, generator(2))
    assert (found.amax((2, 3)) <= images.amax((2, 3)) + 1e-6).all()
    assert (found.amin((2, 3)) >= images.amin((2, 3)) - 1e-6).all()
    coarse = resized_crops(images.bfloat16(), 0.08, generator(2))
    assert coarse.dtype == torch.bfloat16 and float((coarse.float() - found).abs().max()) < 0.02


def test_pixels_are_cropped_when_drawn_and_whole_otherwise():
    rows = torch.randint(256, (5, 48), generator=generator(0), dtype=torch.uint8)
    plain, data = (Pixels(rows, torch.arange(5), (3, 4, 4), crop=crop) for crop in (1.0, 0.3))
    assert data.x.equal(plain.x) and len(data) == 5
    index = torch.tensor([4, 0, 4])
    found = data.at(index, generator(7))
    torch.testing.assert_close(found, resized_crops(plain.x[index].reshape(3, 3, 4, 4), 0.3, generator(7)).flatten(1))
    assert not found[0].allclose(found[2]) and data.at(index, generator(7)).equal(found)
    assert (
        data[torch.tensor([1])].crop == 0.3 and data.cast(torch.float64).at(index, generator(7)).dtype == torch.float64
    )


def test_crops_and_flips_go_together():
    rows = torch.randint(256, (1, 16), generator=generator(0), dtype=torch.uint8)
    index = torch.zeros(2000, dtype=torch.long)
    draws = {
        flip: Pixels(rows, torch.zeros(1), (1, 4, 4), flip=flip, crop=0.5) for flip in ("none", "random", "points")
    }
    cropped = draws["none"].at(index, generator(5))
    mirror = cropped.reshape(-1, 4, 4).flip(-1).flatten(1)
    found = draws["random"].at(index, generator(5))
    turned = (found == mirror).all(1)
    assert bool((turned | (found == cropped).all(1)).all()) and 0.45 < float(turned.float().mean()) < 0.55
    assert draws["points"].at(index + 1, generator(5)).equal(mirror)


@pytest.mark.parametrize("crop", [0.0, -0.5, 1.01, float("nan")])
def test_what_is_no_share_is_refused(crop):
    with pytest.raises(UsageError, match="the least share of an image"):
        Pixels(torch.zeros(1, 4, dtype=torch.uint8), torch.zeros(1), (1, 2, 2), crop=crop)
