import pytest
import torch
from torch.func import functional_call, vmap

from anabranch.errors import UsageError
from anabranch.flow import network
from anabranch.flow.unet import ImagePotential, _spectral, spectral_norm
from anabranch.flow.unet._spectral import spectral_norms
from anabranch.seeds import generator
from anabranch.transport import c_transform_descent

TINY = {"shape": (1, 8, 8), "widths": (4, 6)}


def images(count=5):
    return torch.randn(count, 64, generator=generator(0, "x"))


def test_it_has_the_papers_parameters_and_no_state():
    for shape in ((3, 32, 32), (3, 64, 64)):
        with torch.device("meta"):
            potential = ImagePotential(3 * shape[1] ** 2, shape=shape)
        assert sum(parameter.numel() for parameter in potential.parameters()) == 1_145_665  # 1.15 M
        assert not list(potential.buffers())


def test_the_order_in_memory_changes_neither_values_nor_gradients():
    options = {**TINY, "shape": (3, 8, 8)}  # maps of one colour lie in both orders at once
    plain, last = (network("cnn-potential", 192, seed=0, **options, channels_last=order) for order in (False, True))
    seen = []
    for layer in last.layers:
        layer.register_forward_hook(lambda _, inputs, h: seen.append((*inputs, h)))
    x = [images(15).reshape(5, 192).requires_grad_() for _ in range(2)]
    values = [f(points) for f, points in zip((plain, last), x, strict=True)]
    torch.testing.assert_close(values[1], values[0])
    assert all(h.is_contiguous(memory_format=torch.channels_last) for maps in seen for h in maps) and len(seen) == 2
    slopes = [
        torch.autograd.grad(value.sum(), [points, *f.parameters()])
        for value, points, f in zip(values, x, (plain, last), strict=True)
    ]
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("shape", [(6, 40), (40, 6), (16, 3, 3, 3)])
def test_the_norm_is_the_largest_singular_value(shape):
    weight = torch.randn(shape, generator=generator(0), dtype=torch.float64)
    exact = torch.linalg.matrix_norm(weight.flatten(1), 2)
    torch.testing.assert_close(spectral_norm(weight), exact, rtol=1e-6, atol=0)


def test_its_gradient_is_that_of_the_largest_singular_value():
    weight = torch.randn(5, 9, generator=generator(0), dtype=torch.float64, requires_grad=True)
    (ours,) = torch.autograd.grad(spectral_norm(weight), weight)
    (exact,) = torch.autograd.grad(torch.linalg.matrix_norm(weight, 2), weight)
    torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-7)


def test_equal_singular_values_and_zero_weights_are_no_trouble():
    torch.testing.assert_close(spectral_norm(3 * torch.eye(8)), torch.tensor(3.0))
    weight = torch.zeros(4, 9, requires_grad=True)
    (gradient,) = torch.autograd.grad(spectral_norm(weight), weight)
    assert gradient.isfinite().all()


def test_the_norm_is_as_precise_under_autocast():
    weight = torch.randn(16, 40, generator=generator(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = spectral_norm(weight)
    assert torch.equal(inside, spectral_norm(weight))


def test_scaling_a_convolution_changes_nothing():
    potential = network("cnn-potential", 64, seed=0, **TINY)
    before = potential(images())
    with torch.no_grad():
        potential.layers[1].weight.mul_(7)
    torch.testing.assert_close(potential(images()), before)


def test_evaluating_leaves_no_trace():
    """The same function before and after, alone, stacked or called with parameters from elsewhere."""
    potential = network("cnn-potential", 64, seed=0, **TINY)
    x = images()
    first = potential(x)
    for _ in range(3):
        potential(3 * x)
    assert torch.equal(potential(x), first)
    own = {name: parameter.detach() for name, parameter in potential.named_parameters()}
    assert torch.equal(functional_call(potential, own, (x,)), first)
    stacked = {name: torch.stack([tensor, 2 * tensor]) for name, tensor in own.items()}
    both = vmap(lambda some: functional_call(potential, some, (x,)))(stacked)
    torch.testing.assert_close(both[0], first)


def test_gradients_of_silos_add_up_to_that_of_all():
    potential = network("cnn-potential", 64, seed=0, **TINY)
    parameters = list(potential.parameters())
    x = images(6)
    together = torch.autograd.grad(potential(x).sum(), parameters)
    apart = [torch.autograd.grad(potential(part).sum(), parameters) for part in x.split(2)]
    for whole, *parts in zip(together, *apart, strict=True):
        torch.testing.assert_close(sum(parts), whole, rtol=1e-4, atol=1e-6)


def test_it_serves_the_c_transform_by_descent():
    potential = network("cnn-potential", 64, seed=0, scale=100.0, **TINY)
    x1 = images()
    found = c_transform_descent(potential, x1, start=-x1, steps=20)
    exact_there = (found.x0 - x1).square().sum(1) / 2 - potential(found.x0)
    torch.testing.assert_close(found.value, exact_there)
    assert (found.value < -potential(x1)).all()  # better than x0 = x1, where the cost is zero
    found.value.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in potential.parameters())


def test_it_scales_compiles_and_may_be_bfloat16():
    potential = network("cnn-potential", 64, seed=0, **TINY)
    x = images()
    exact = potential(x)
    assert exact.shape == (5,)
    torch.testing.assert_close(network("cnn-potential", 64, seed=0, scale=3.0, **TINY)(x), 3 * exact)
    compiled = torch.compile(potential, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), exact)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(potential(x), exact, rtol=0.03, atol=0.01)
    rough = potential.bfloat16()(x)
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, exact, rtol=0.03, atol=0.01)


@pytest.mark.parametrize("options", [{"shape": (3, 8, 8)}, {"widths": ()}, {"widths": (4, 0)}, {"scale": 0.0}])
def test_what_cannot_be_is_refused(options):
    with pytest.raises(UsageError):
        network("cnn-potential", 64, seed=0, **{**TINY, **options})


def test_norms_of_many_weights_are_those_of_each():
    shapes = [(4, 3, 3, 3), (6, 4, 3, 3), (4, 7, 3, 3), (6, 6, 3, 3)]
    weights = [torch.randn(s, generator=generator(i), dtype=torch.float64) for i, s in enumerate(shapes)]
    exact = [torch.linalg.matrix_norm(weight.flatten(1), 2) for weight in weights]
    torch.testing.assert_close(spectral_norms(weights, squarings=12), exact, rtol=1e-8, atol=0)


def test_prepared_once_it_is_the_same_function_with_the_same_gradients(monkeypatch):
    potential = network("cnn-potential", 64, seed=0, **TINY).double()
    parameters, parts = list(potential.parameters()), images(6).double().split(2)
    apart = torch.cat([potential(part) for part in parts])
    taken = []
    monkeypatch.setattr(_spectral, "spectral_norms", lambda *given: taken.append(1) or spectral_norms(*given))
    ready = potential.prepared()
    together = torch.cat([ready(part) for part in parts])
    assert len(taken) == 1
    torch.testing.assert_close(together, apart, rtol=1e-12, atol=1e-12)
    ours, theirs = (torch.autograd.grad(values.square().sum(), parameters) for values in (together, apart))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
