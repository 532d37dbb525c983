import math

import pytest
import torch
from torch.func import functional_call, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from anabranch.errors import UsageError
from anabranch.flow import network
from anabranch.flow.conditioning import NULL, Standard
from anabranch.flow.unet import ImageUNet
from anabranch.flow.unet._blocks import ResidualBlock
from anabranch.seeds import generator

PAPER = {
    "CIFAR-10": ({"shape": (3, 32, 32)}, 35_746_307),
    "ImageNet-64": ({"shape": (3, 64, 64), "multipliers": (1, 2, 2, 2, 2), "attention": (16, 8)}, 46_972_419),
}


@pytest.mark.parametrize("name", PAPER)
def test_parameters_of_the_papers_configurations(name):
    options, count = PAPER[name]
    with torch.device("meta"):
        field = ImageUNet(math.prod(options["shape"]), **options)
    assert sum(parameter.numel() for parameter in field.parameters()) == count
    assert not list(field.buffers())


@pytest.mark.parametrize("options", [{}, {"sizes": (3, 2)}, {"multipliers": (2,), "attention": ()}, {"blocks": 2}])
def test_it_starts_at_zero(options, rows):
    field = network("unet", 128, seed=0, shape=(2, 8, 8), channels=32, **{"attention": (), **options})
    assert field(*rows()).abs().max() == 0


def test_with_a_standard_it_starts_as_the_gaussians_velocity(rows):
    field = network("unet", 128, seed=0, shape=(2, 8, 8), channels=32, attention=(), center=-0.5, spread=0.7)
    x, t = rows()
    torch.testing.assert_close(field(x, t), Standard(-0.5, 0.7).drift(x, t))


def test_with_a_standard_it_adds_to_the_gaussians_velocity(build, rows):
    plain, standard = build(), build(center=-0.5, spread=0.7)
    x, t = rows()
    known = Standard(-0.5, 0.7)
    expected = known.drift(x, t) + known.scale(t)[:, None] * plain(known.inputs(x, t), t)
    torch.testing.assert_close(standard(x, t), expected)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 7, 7), (1, 9, 5)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_images_of_any_size_have_finite_gradients_everywhere(build, rows, shape, channels_last):
    field = build(shape, channels_last=channels_last, multipliers=(1, 2, 2), attention=(), sizes=(3,), dropout=0.1)
    x, t = rows(shape)
    answer = field(x, t, torch.tensor([[0], [2], [NULL]]))
    assert answer.shape == x.shape
    answer.square().mean().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in field.parameters())


@pytest.mark.parametrize("channels_last", [False, True])
def test_maps_lie_in_memory_as_asked_from_end_to_end(build, rows, channels_last):
    field, seen = build(channels_last=channels_last), []
    order = torch.channels_last if channels_last else torch.contiguous_format
    for module in field.modules():
        if isinstance(module, ResidualBlock):
            module.register_forward_hook(lambda _, inputs, h: seen.append(h.is_contiguous(memory_format=order)))
    x, t = rows()
    torch.testing.assert_close(field(x, t), build()(x, t), rtol=1e-4, atol=1e-5)
    assert len(seen) == 8 and all(seen)
    assert all(p.is_contiguous(memory_format=order) for p in field.parameters() if p.dim() == 4)


class Slopes(TorchDispatchMode):
    """Whether the gradients that reach convolutions lie in memory as these want them, by how many colours they have."""

    def __init__(self):
        super().__init__()
        self.dense = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if function is torch.ops.aten.convolution_backward.default:
            slope = arguments[0]
            self.dense.append((slope.shape[1], slope.is_contiguous(memory_format=torch.channels_last)))
        return function(*arguments, **(options or {}))


def test_no_convolution_has_to_copy_the_gradient_of_its_maps(build, rows):
    field, (x, t) = build(channels_last=True, blocks=2), rows()
    with Slopes() as found:
        field(x, t).square().sum().backward()
    inside = [dense for colours, dense in found.dense if colours > 2]  # images come from outside, row by row
    assert len(inside) == len(found.dense) - 1 == sum(isinstance(m, torch.nn.Conv2d) for m in field.modules()) - 1
    assert all(inside)


def test_the_order_in_memory_changes_no_gradient(build, rows):
    last, plain, (x, t) = build(channels_last=True), build(), rows()
    slopes = [torch.autograd.grad(f(x, t).square().sum(), list(f.parameters())) for f in (last, plain)]
    largest = max(float(slope.abs().max()) for slope in slopes[1])
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5 * largest)


def test_one_time_serves_all_and_rows_do_not_see_each_other(build, rows):
    field, (x, t) = build(), rows()
    together = field(x, t)
    for row in range(len(x)):
        torch.testing.assert_close(field(x[row : row + 1], t[row]), together[row : row + 1], rtol=1e-4, atol=1e-5)


def test_nothing_told_is_every_attribute_not_given_and_what_is_told_matters(build, rows):
    field, (x, t) = build(sizes=(3, 2)), rows()
    none = torch.full((len(x), 2), NULL)
    assert torch.equal(field(x, t), field(x, t, none))
    told = none.clone()
    told[0, 1] = 1
    changed = (field(x, t, told) - field(x, t)).abs().amax(dim=1)
    assert changed[0] > 1e-4 and changed[1:].max() == 0


def test_attributes_are_added_to_the_time(build, rows):
    """Told attribute y at any time is, to all blocks, the time's vector plus y's: what ADM does with classes."""
    field, (_, t) = build(sizes=(3,)), rows()
    table = field.embedding.tables[0].weight
    effects = field._told(t, torch.tensor([[0], [2], [NULL]])) - field._told(t, None)
    torch.testing.assert_close(effects, table[[0, 2, 3]] - table[3], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("norm_precision", ["float32", "network"])
def test_bfloat16_parameters_give_float32_velocities_close_to_float32(build, rows, norm_precision):
    x, t = rows()
    exact = build()(x, t)
    rough = build(norm_precision=norm_precision).bfloat16()(x, t)
    assert rough.dtype == torch.float32
    assert (rough - exact).norm() < 0.03 * exact.norm()


def test_autocast_keeps_float32_outside(build, rows):
    field, (x, t) = build(), rows()
    exact = field(x, t)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = field(x, t)
    assert rough.dtype == torch.float32
    assert 0 < (rough - exact).norm() < 0.03 * exact.norm()


def test_double_precision_is_double_throughout(build):
    field = build().double()
    x = torch.randn(1, 128, generator=generator(0), dtype=torch.float64)
    direction = torch.randn(1, 128, generator=generator(1), dtype=torch.float64)
    t, step = torch.tensor(0.3, dtype=torch.float64), 1e-5
    (slope,) = torch.autograd.grad(field(x.requires_grad_(), t).sum(), x)
    difference = (field(x + step * direction, t) - field(x - step * direction, t)).sum() / (2 * step)
    torch.testing.assert_close((slope * direction).sum(), difference, rtol=1e-7, atol=0)


def test_dropout_acts_in_training_only(build, rows):
    field, (x, t) = build(dropout=0.5), rows()
    assert not torch.equal(field(x, t), field(x, t))
    field.eval()
    assert torch.equal(field(x, t), field(x, t))
    torch.testing.assert_close(field(x, t), build()(x, t))


@pytest.mark.parametrize("channels_last", [False, True])
def test_compiled_it_has_the_gradients_that_it_has(build, rows, channels_last):
    torch._dynamo.reset()
    field, (x, t) = build(channels_last=channels_last), rows()
    own = list(field.parameters())
    plain = torch.autograd.grad(field(x, t).square().sum(), own)
    compiled = torch.compile(field, fullgraph=True, backend="aot_eager", dynamic=False)
    slopes = torch.autograd.grad(compiled(x, t).square().sum(), own)
    largest = max(float(slope.abs().max()) for slope in plain)
    for one, other in zip(slopes, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5 * largest)


def test_it_is_one_graph_and_one_function_of_its_parameters(build, rows):
    field, (x, t) = build(sizes=(3,)), rows()
    y = torch.tensor([[0], [2], [NULL]])
    compiled = torch.compile(field, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, t, y), field(x, t, y))
    stacked = {name: torch.stack([p, 2 * p]).detach() for name, p in field.named_parameters()}
    both = vmap(lambda own: functional_call(field, own, (x, t, y)))(stacked)
    torch.testing.assert_close(both[0], field(x, t, y), rtol=1e-4, atol=1e-5)


def test_wrong_images_and_wrong_codes_are_refused(build, rows):
    with pytest.raises(UsageError, match="Rows of 100 numbers are not images of shape"):
        network("unet", 100, seed=0, shape=(3, 32, 32))
    x, t = rows()
    with pytest.raises(UsageError, match="1 attributes"):
        build(sizes=(3,))(x, t, torch.zeros(3, 2, dtype=torch.long))
    with pytest.raises(UsageError, match="0 attributes"):
        build()(x, t, torch.zeros(3, 1, dtype=torch.long))
