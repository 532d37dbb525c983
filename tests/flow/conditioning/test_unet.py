import math
from itertools import product

import pytest
import torch
from torch.nn import functional as F

from anabranch.errors import UsageError
from anabranch.flow import network
from anabranch.flow.conditioning import NULL, Masking, all_masks, masked
from anabranch.seeds import generator

NAMES = ["conditional-unet", "additive-unet"]
SIZES = (3, 2)


def built(name, shape=(1, 8, 8), **options):
    """A UNet whose parameters are all random: as built, the zero convolutions would hide everything."""
    field = network(name, math.prod(shape), seed=0, sizes=SIZES, shape=shape, **{"channels": 8, **options})
    random = generator(1)
    with torch.no_grad():
        for parameter in field.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=random))
    return field


def batch(shape=(1, 8, 8), count=4):
    x = torch.randn(count, math.prod(shape), generator=generator(0, "x"))
    y = torch.stack([torch.randint(NULL, size, (count,), generator=generator(0, size)) for size in SIZES], dim=1)
    return x, torch.rand(count, generator=generator(0, "t")), y


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 28, 28), (2, 7, 7), (1, 9, 5), (3, 32, 32)])
def test_images_of_any_size_are_rows_in_and_rows_out(name, shape):
    field = built(name, shape)
    x, t, y = batch(shape, count=2)
    answer = field(x, t, y)
    assert answer.shape == x.shape and answer.isfinite().all()
    answer.square().mean().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in field.parameters())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [{}, {"blocks": 2}, {"multipliers": (1, 2)}, {"multipliers": [2], "dropout": 0.5}])
def test_it_starts_at_zero_and_every_option_builds(name, options):
    field = network(name, 64, seed=0, sizes=SIZES, shape=(1, 8, 8), channels=8, **options)
    x, t, y = batch()
    assert field(x, t, y).abs().max() == 0


@pytest.mark.parametrize("name", NAMES)
def test_one_time_serves_all_and_rows_do_not_see_each_other(name):
    field = built(name)
    x, t, y = batch()
    together = field(x, t, y)
    for row in range(4):
        alone = field(x[row : row + 1], t[row], y[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-4, atol=1e-5)
    early = field(x, torch.tensor(0.3), y)
    torch.testing.assert_close(early, field(x, torch.full((4,), 0.3), y), rtol=1e-4, atol=1e-5)
    assert (early - together).abs().max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_every_attribute_and_its_absence_matters(name):
    field = built(name)
    x, t, _ = batch(count=1)
    codes = torch.tensor(list(product(range(-1, 3), range(-1, 2))))
    answers = field(x.expand(12, -1), t.expand(12), codes)
    assert (torch.cdist(answers, answers) + torch.eye(12)).min() > 1e-2


def test_all_places_of_the_image_reach_all_others():
    field = built("conditional-unet")
    x, t, y = batch(count=1)
    slope = torch.autograd.functional.jacobian(lambda points: field(points, t, y), x).reshape(64, 64)
    assert (slope.abs() > 0).all()


def test_the_additive_unet_is_additive():
    field = built("additive-unet").double()
    x, t, _ = batch()
    x, t = x.double(), t.double()

    def at(a, b):
        return field(x, t, torch.tensor([[a, b]]).expand(4, -1))

    answers = {(a, b): at(a, b) for a, b in product(range(-1, 3), range(-1, 2))}
    for a, other_a, b, other_b in product(range(-1, 3), range(-1, 3), range(-1, 2), range(-1, 2)):
        left = answers[a, b] - answers[a, other_b]
        torch.testing.assert_close(left, answers[other_a, b] - answers[other_a, other_b])
    assert (answers[0, 0] - answers[1, 0]).abs().max() > 1e-3


def test_the_conditional_unet_is_not():
    field = built("conditional-unet").double()
    x, t, _ = batch()
    x, t = x.double(), t.double()
    a, b, c, d = (field(x, t, torch.tensor([code]).expand(4, -1)) for code in ([0, 0], [0, 1], [1, 0], [1, 1]))
    assert (a - b - c + d).abs().max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_all_masks_in_one_pass(name):
    field = built(name)
    x, t, y = batch()
    masks, _ = Masking().masks(2)
    expected = torch.stack([field(x, t, masked(y, mask)) for mask in masks])
    torch.testing.assert_close(all_masks(field, x, t, y, masks), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_and_channels_last_say_nearly_the_same(name):
    field = built(name, channels=16)
    x, t, y = batch()
    exact = field(x, t, y)
    last = field.to(memory_format=torch.channels_last)
    torch.testing.assert_close(last(x, t, y), exact, rtol=1e-4, atol=1e-4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = last(x, t, y)
    assert half.dtype == x.dtype
    assert (half - exact).square().mean() < 1e-3 * exact.square().mean()


def test_what_cannot_be_built_gets_a_sentence():
    wrong = [
        ({"shape": (1, 8, 9)}, "not images of shape"),
        ({"shape": (8, 8)}, "not images of shape"),
        ({"channels": 7}, "even number"),
        ({"channels": 0}, "channels = 0"),
        ({"blocks": 0}, "blocks = 0"),
        ({"multipliers": ()}, "one multiplier"),
        ({"multipliers": (1, 0)}, "a multiplier = 0"),
        ({"dropout": 1.0}, "Dropout"),
    ]
    for options, words in wrong:
        for name in NAMES:
            with pytest.raises(UsageError, match=words):
                network(name, 64, seed=0, **{"sizes": SIZES, "shape": (1, 8, 8), **options})


class TestPatches:
    """Squares of pixels as one place."""

    @pytest.mark.parametrize("kind", ["conditional-unet", "additive-unet"])
    def test_rows_keep_their_order(self, kind):
        """With a head that copies, what comes out must lie where it went in: a patch is taken apart and put back."""
        field = network(kind, 3 * 8 * 8, 0, sizes=(2, 2), shape=(3, 8, 8), channels=16, patch=2)
        body = field.body
        x = torch.randn(2, 192, generator=torch.Generator().manual_seed(0))
        places = F.pixel_unshuffle(x.reshape(2, 3, 8, 8), 2)
        assert torch.equal(F.pixel_shuffle(places, 2).reshape(2, 192), x)
        assert body.stem.in_channels == 12 and body.head.out_channels == 12
        torch.nn.init.constant_(body.head.bias, 1.0)
        assert torch.equal(body(x, torch.tensor(0.5), torch.zeros(2, body.width)), torch.ones_like(x))

    def test_a_patch_must_divide_the_sides(self):
        with pytest.raises(UsageError, match="not made of squares of 3"):
            network("conditional-unet", 64, 0, sizes=(2, 2), shape=(1, 8, 8), patch=3)
