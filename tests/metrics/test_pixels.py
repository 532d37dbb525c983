"""Bytes that come back, and resizing by the book."""

import math

import pytest
import torch

from anabranch.errors import DataError, UsageError
from anabranch.metrics import resize, to_bytes
from anabranch.seeds import generator


def test_every_byte_comes_back():
    images = torch.arange(256, dtype=torch.uint8).repeat(3).reshape(4, 3, 8, 8)
    rows = images.flatten(1).float() / 127.5 - 1
    assert torch.equal(to_bytes(rows, (3, 8, 8)), images)
    assert to_bytes(torch.tensor([[-9.0, 9.0]]), (1, 1, 2)).flatten().tolist() == [0, 255]


def test_rows_that_are_no_images_are_refused():
    with pytest.raises(UsageError, match=r"give \(n, 12\)"):
        to_bytes(torch.zeros(2, 13), (3, 2, 2))
    with pytest.raises(DataError, match="not finite"):
        to_bytes(torch.full((1, 4), math.nan), (1, 2, 2))


def by_the_book(image, height, width):
    """TensorFlow 1's resize_bilinear with align_corners=False, pixel by pixel."""
    old_height, old_width = len(image), len(image[0])
    new = torch.zeros(height, width)
    for row in range(height):
        y = row * old_height / height
        top, bottom = int(y), min(int(y) + 1, old_height - 1)
        for column in range(width):
            x = column * old_width / width
            left, right = int(x), min(int(x) + 1, old_width - 1)
            upper = image[top][left] + (image[top][right] - image[top][left]) * (x - left)
            lower = image[bottom][left] + (image[bottom][right] - image[bottom][left]) * (x - left)
            new[row, column] = upper + (lower - upper) * (y - top)
    return new


@pytest.mark.parametrize(("old", "new"), [((8, 8), (29, 29)), ((5, 9), (7, 4)), ((28, 32), (13, 11)), ((6, 6), (6, 6))])
def test_images_are_resized_by_the_book(old, new):
    images = torch.randint(0, 256, (2, 3, *old), dtype=torch.uint8, generator=generator(0, "resize"))
    found = resize(images, *new)
    for image, other in zip(images.flatten(0, 1), found.flatten(0, 1), strict=True):
        torch.testing.assert_close(other, by_the_book(image.float().tolist(), *new), rtol=0, atol=1e-3)


def test_the_first_pixel_stays_and_the_rest_is_not_centred():
    assert resize(torch.tensor([[[[0.0, 8.0]]]]), 1, 4).flatten().tolist() == [0.0, 4.0, 8.0, 8.0]
