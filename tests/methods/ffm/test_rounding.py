"""Parameters in half precision: what one cast after the other gives, in one step of the graph."""

import pytest
import torch

from anabranch.flow import _compiled as compiled
from anabranch.methods.ffm import _half as half
from anabranch.methods.ffm._rounding import rounded
from anabranch.methods.ffm._settings import FlowMatching, FlowSettings
from anabranch.methods.ffm._shares import spread
from anabranch.seeds import generator

SHAPES = [(8, 3, 3, 3), (5,), (), (4, 7)]


def tensors(dtype=torch.float32):
    draws = generator(0, "rounding")
    return [torch.randn(shape, generator=draws, dtype=dtype).requires_grad_() for shape in SHAPES]


def one_by_one(some):
    return tuple(tensor.to(torch.bfloat16) for tensor in some)


def loss(halves):
    """Mixes all, and sends some slopes back transposed in memory."""
    convolution, bias, number, matrix = halves
    last = convolution.contiguous(memory_format=torch.channels_last)
    return (last.square().sum() + bias.exp().sum() * number + matrix.mT.contiguous().mT.cos().sum()).float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients_are_those_of_casts_one_by_one(dtype):
    some = tensors(dtype)
    found, wanted = rounded(some), one_by_one(some)
    assert all(map(torch.equal, found, wanted)) and all(one.dtype == torch.bfloat16 for one in found)
    slopes, others = (torch.autograd.grad(loss(halves), some) for halves in (found, wanted))
    assert all(map(torch.equal, slopes, others)) and all(slope.dtype == dtype for slope in slopes)


def test_all_are_one_step_of_the_graph():
    assert len({one.grad_fn for one in rounded(tensors())}) == 1


def test_the_order_in_memory_stays():
    last = tensors()[0].detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    (found,) = rounded([last])
    assert found.stride() == last.stride() and torch.equal(found, last.to(torch.bfloat16))


def test_a_flow_in_half_precision_goes_through_it(monkeypatch):
    monkeypatch.setattr(half, "computes_in_half", lambda settings, device: True)
    settings = FlowMatching(FlowSettings(hidden=16, layers=2))
    field = half.flow_network(settings, 3)
    x, t = torch.randn(6, 3, generator=generator(1)).bfloat16(), torch.rand(6, generator=generator(2)).bfloat16()
    named = half.named_parameters(field)
    ours = half.evaluated(field, settings, x, t)
    theirs = torch.func.functional_call(field, dict(zip(named, one_by_one(named.values()), strict=True)), (x, t))
    assert torch.equal(ours, theirs)
    found, wanted = (half.gradients(value.float().square().sum(), field) for value in (ours, theirs))
    assert all(torch.equal(found[name], wanted[name]) and found[name].dtype == torch.float32 for name in named)


def test_compiled_passes_take_what_it_gives_and_are_compiled_once(monkeypatch):
    monkeypatch.setattr(half, "computes_in_half", lambda settings, device: True)
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")  # tracing and differentiation alone, which is quick
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    settings = FlowMatching(FlowSettings(hidden=16, layers=2))
    field, plain = (half.flow_network(settings, 3) for _ in range(2))
    compiled.compile_in_place(field)
    for seed in (1, 2):
        x, t = torch.randn(6, 3, generator=generator(seed)).bfloat16(), torch.full((6,), 0.5).bfloat16()
        values = [half.evaluated(one, settings, x, t).float().square().sum() for one in (field, plain)]
        found, wanted = (half.gradients(value, one) for value, one in zip(values, (field, plain), strict=True))
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
        half.load_parameters(field, {name: 2 * p.detach() for name, p in field.named_parameters()})
        half.load_parameters(plain, {name: 2 * p.detach() for name, p in plain.named_parameters()})
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("times", [1, 3])
def test_weights_are_spread_as_they_are(dtype, times):
    weights, like = torch.tensor([0.1, 0.7, 0.2]) / 3072 / 128, torch.zeros(2, 5, dtype=dtype)
    assert torch.equal(spread(weights, times, like), torch.repeat_interleave(weights, times).to(like))
