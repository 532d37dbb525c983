import pytest
import torch

from anabranch.data import Pixels, Points
from anabranch.errors import DataError, UsageError
from anabranch.seeds import generator

SHAPE = (2, 3, 4)


def pixels(count=7, **options):
    x = torch.randint(256, (count, 24), generator=generator(0), dtype=torch.uint8)
    return Pixels(x, torch.arange(count), SHAPE, **options)


def mirrored(rows):
    return rows.reshape(-1, *SHAPE).flip(-1).flatten(1)


def test_numbers_run_from_minus_one_to_one():
    found = Pixels(torch.tensor([[0, 51, 255]], dtype=torch.uint8), torch.zeros(1), (3, 1, 1))
    torch.testing.assert_close(found.x, torch.tensor([[-1.0, -0.6, 1.0]]))
    assert found.cast(torch.float64).x.dtype == torch.float64


def test_without_flips_a_draw_is_the_images_and_no_random_number():
    data, random = pixels(), generator(1)
    before = random.get_state()
    index = torch.tensor([6, 0, 0])
    torch.testing.assert_close(data.at(index, random), data.x[index])
    assert torch.equal(random.get_state(), before)


def test_random_flips_mirror_half_of_what_is_drawn():
    data = pixels(flip="random")
    found = data.at(torch.zeros(4000, dtype=torch.long), generator(2))
    plain = (found == data.x[0]).all(1)
    turned = (found == mirrored(data.x)[0]).all(1)
    assert bool((plain ^ turned).all()) and 0.46 < float(turned.float().mean()) < 0.54
    assert len(data) == 7 and len(data.x) == 7


def test_mirror_images_as_points_follow_the_others():
    data = pixels(flip="points")
    assert len(data) == len(data.x) == len(data.label) == 14
    torch.testing.assert_close(data.x[7:], mirrored(data.x[:7]))
    index = torch.tensor([3, 10, 13])
    torch.testing.assert_close(data.at(index, generator(0)), data.x[index])
    assert data.label[index].tolist() == [3, 3, 6]
    some = data[torch.tensor([5, 2])]
    assert len(some) == 4 and some.label.tolist() == [5, 2, 5, 2]


def test_points_are_drawn_as_they_are():
    points = Points(torch.randn(5, 3, generator=generator(0)), torch.arange(5))
    index = torch.tensor([4, 1])
    assert torch.equal(points.at(index, generator(0)), points.x[index])
    assert (points.dimension, points.device) == (3, torch.device("cpu"))
    assert points.cast(torch.float64).x.dtype == torch.float64


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: pixels(flip="sideways"), "way of flipping images 'sideways'"),
        (lambda: Pixels(torch.zeros(2, 24), torch.zeros(2), SHAPE), "must be bytes"),
        (lambda: Pixels(torch.zeros(2, 9, dtype=torch.uint8), torch.zeros(2), SHAPE), "24 an image of 2 x 3 x 4"),
        (lambda: Pixels(torch.zeros(2, 24, dtype=torch.uint8), torch.zeros(3), SHAPE), "3 labels were given for 2"),
    ],
)
def test_what_cannot_be_images_is_refused(make, sentence):
    with pytest.raises((DataError, UsageError), match=sentence):
        make()
