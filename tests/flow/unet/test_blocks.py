import math

import pytest
import torch
from torch.nn import functional as F

from anabranch.errors import UsageError
from anabranch.flow.unet._blocks import Attention, Norm, ResidualBlock, doubled
from anabranch.flow.unet._configuration import Configuration
from anabranch.flow.unet._unet import time_features
from anabranch.seeds import generator


def configured(**options):
    plain = {
        "shape": (3, 32, 32),
        "channels": 128,
        "multipliers": (1, 2, 2, 2),
        "blocks": 2,
        "attention": (16,),
        "head_channels": 64,
        "dropout": 0.0,
        "norm_precision": "float32",
        "channels_last": False,
    }
    return Configuration(**{**plain, **options})


def randomised(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator(3, tuple(parameter.shape))))
    return module


def maps(channels=8, height=3, width=4, count=2):
    return torch.randn(count, channels, height, width, generator=generator(0, channels))


def test_attention_is_the_softmax_written_out():
    channels, head = 8, 4
    layer = randomised(Attention(channels, configured(head_channels=head)))
    h = maps(channels)
    expected = torch.empty_like(h)
    normal = layer.norm(h)
    for image in range(len(h)):
        places = normal[image].reshape(channels, -1)  # a column a place
        made = layer.queries_keys_values.weight @ places + layer.queries_keys_values.bias[:, None]
        mixed = []
        for rows in made.split(3 * head):
            query, key, value = rows.split(head)
            score = (query.T @ key / math.sqrt(head)).exp()
            mixed.append(value @ (score / score.sum(dim=1, keepdim=True)).T)
        answer = layer.output.weight @ torch.cat(mixed) + layer.output.bias[:, None]
        expected[image] = h[image] + answer.reshape(h[image].shape)
    torch.testing.assert_close(layer(h), expected, rtol=1e-5, atol=1e-5)


def test_blocks_start_as_their_shortcuts():
    h, shift = maps(64), torch.randn(2, 64, generator=generator(5))
    assert torch.equal(ResidualBlock(64, 64, configured())(h, shift), h)
    assert torch.equal(Attention(64, configured())(h), h)
    wider = ResidualBlock(64, 96, configured())
    assert torch.equal(wider(h, torch.cat([shift, shift[:, :32]], dim=1)), wider.shortcut(h))


def test_a_residual_block_is_its_formula():
    block = randomised(ResidualBlock(8, 12, configured()))
    h, shift = maps(8), torch.randn(2, 12, generator=generator(5))

    def normal(z, norm):
        groups = z.reshape(len(z), norm.num_groups, -1)
        centred = groups - groups.mean(dim=2, keepdim=True)
        scaled = (centred / (centred.square().mean(dim=2, keepdim=True) + 1e-5).sqrt()).reshape(z.shape)
        return F.silu(scaled * norm.weight[:, None, None] + norm.bias[:, None, None])

    inner = F.conv2d(normal(h, block.first_norm), block.first.weight, block.first.bias, padding=1)
    inner = inner + shift[:, :, None, None]
    expected = block.shortcut(h) + block.second(normal(inner, block.second_norm))
    torch.testing.assert_close(block(h, shift), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("channels", "groups"), [(32, 32), (128, 32), (384, 32), (48, 8), (8, 4), (2, 1)])
def test_norms_have_32_groups_or_two_channels_in_each(channels, groups):
    assert Norm(channels, configured()).num_groups == groups


@pytest.mark.parametrize(("norm_precision", "kind"), [("float32", torch.float32), ("network", torch.bfloat16)])
def test_norms_are_computed_as_told_and_returned_as_they_came(monkeypatch, norm_precision, kind):
    h = maps(8)
    exact = Norm(8, configured())(h)
    seen, plain = [], F.group_norm
    monkeypatch.setattr(F, "group_norm", lambda z, *rest: seen.append(z.dtype) or plain(z, *rest))
    rough = Norm(8, configured(norm_precision=norm_precision)).bfloat16()(h.bfloat16())
    assert seen == [kind] and rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.float(), exact, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("shifted", [False, True])
def test_compiled_norms_go_by_channels_to_the_same_values_and_gradients(shifted):
    norm, h = randomised(Norm(96, configured())).double(), maps(96, 4, 5).double()
    shift = torch.randn(2, 96, generator=generator(7), dtype=torch.float64) if shifted else None
    compiled = torch.compile(norm, backend="eager")
    inputs = [h.requires_grad_(), *norm.parameters(), *([shift.requires_grad_()] if shifted else [])]
    weight = torch.randn(h.shape, generator=generator(8), dtype=torch.float64)
    values, slopes = [], []
    for module in (norm, compiled):
        values.append(module(h, shift))
        slopes.append(torch.autograd.grad((values[-1] * weight).sum(), inputs))
    assert not torch.equal(*values)  # the sums are others
    torch.testing.assert_close(values[1], values[0], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("norm_precision", ["float32", "network"])
def test_compiled_norms_of_maps_in_half_precision_are_as_exact_as_these(norm_precision):
    norm = Norm(32, configured(norm_precision=norm_precision)).bfloat16()
    h, shift = (10 + maps(32, 8, 8)).bfloat16(), torch.full((2, 32), -3.0)
    exact = F.group_norm(h.double() - 3, 32)
    found = torch.compile(norm, backend="eager")(h, shift)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=2**-12)


@pytest.mark.parametrize("ratio", [10, 100, 1000, 3000])
def test_compiled_norms_stand_a_mean_that_is_large_beside_the_deviation(ratio):
    norm, h = Norm(64, configured()), ratio + maps(64, 8, 8)
    exact = F.group_norm(h.double(), 32)
    plain, found = (float((module(h) - exact).abs().max()) for module in (norm, torch.compile(norm, backend="eager")))
    assert found < 10 * plain + 1e-6


def test_compiled_norms_of_a_constant_map_are_finite():
    found = torch.compile(Norm(8, configured()), backend="eager")(torch.full((1, 8, 3, 3), 1e3))
    assert found.abs().max() < 1e-3


@pytest.mark.parametrize("channels_last", [False, True])
def test_doubling_is_nearest_interpolation_in_the_order_asked_for(channels_last):
    h = maps(4)
    if channels_last:
        h = h.contiguous(memory_format=torch.channels_last)
    large = doubled(h, channels_last)
    assert torch.equal(large, F.interpolate(h, scale_factor=2, mode="nearest"))
    assert large.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


def test_time_features_are_cosines_then_sines_of_falling_frequencies():
    t = torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)
    features = time_features(t, 6)
    for row, time in zip(features.tolist(), t.tolist(), strict=True):
        angles = [time * 10_000 ** (-i / 3) for i in range(3)]
        assert row == pytest.approx([math.cos(a) for a in angles] + [math.sin(a) for a in angles])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"attention": (7,)}, "those of this UNet are 32, 16, 8, 4"),
        ({"channels": 0}, "channels = 0"),
        ({"channels": 3}, "even number of channels"),
        ({"multipliers": ()}, "one multiplier or more"),
        ({"multipliers": (1, 0)}, "a multiplier = 0"),
        ({"blocks": True}, "blocks = True"),
        ({"head_channels": 48}, "cannot be shared by heads of 48"),
        ({"dropout": 1.0}, "probability below one"),
        ({"norm_precision": "float16"}, "did you mean 'float32'"),
    ],
)
def test_what_does_not_fit_together_is_refused(options, said):
    with pytest.raises(UsageError, match=said.replace("(", r"\(")):
        configured(**options)
