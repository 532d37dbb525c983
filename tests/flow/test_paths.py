import math

import pytest
import torch

from anabranch.errors import UsageError
from anabranch.flow import BridgePath, LinearPath, TargetPath, VariancePreservingPath, path, times_at
from anabranch.seeds import generator

PATHS = [
    LinearPath(),
    LinearPath(0.3),
    BridgePath(0.7),
    TargetPath(),
    TargetPath(0.2),
    VariancePreservingPath(),
    VariancePreservingPath(0.1),
]


def pairs(n=64, d=3, dtype=torch.float64):
    random = generator(0, "pairs")
    return (torch.randn(n, d, generator=random, dtype=dtype) for _ in range(2))


@pytest.mark.parametrize("a_path", PATHS, ids=repr)
def test_velocity_is_the_time_derivative_of_the_flow(a_path):
    x0, x1 = pairs()
    random = generator(1)
    noise = torch.randn(x0.shape, generator=random, dtype=x0.dtype)
    t = 0.05 + 0.9 * torch.rand(64, generator=random, dtype=x0.dtype)

    def point(at):
        return a_path.mean(x0, x1, at) + a_path.deviation(at)[:, None] * noise

    step = 1e-6
    derivative = (point(t + step) - point(t - step)) / (2 * step)
    torch.testing.assert_close(a_path.velocity(x0, x1, point(t), t), derivative, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("a_path", PATHS, ids=repr)
def test_a_sample_is_mean_plus_deviation_times_the_generators_noise(a_path):
    x0, x1 = pairs()
    t = torch.linspace(0.1, 0.9, 64, dtype=x0.dtype)
    sample = a_path.sample(x0, x1, t, generator(2))
    noise = torch.randn(x0.shape, generator=generator(2), dtype=x0.dtype)
    expected = a_path.mean(x0, x1, t) + a_path.deviation(t)[:, None] * noise
    torch.testing.assert_close(sample.x_t, expected)
    torch.testing.assert_close(sample.u_t, a_path.velocity(x0, x1, sample.x_t, t))
    assert sample.t is t


@pytest.mark.parametrize("a_path", [LinearPath(), BridgePath(2.0), VariancePreservingPath()], ids=repr)
def test_pairs_are_joined_from_end_to_end(a_path):
    x0, x1 = pairs()
    start = a_path.sample(x0, x1, torch.zeros(64, dtype=x0.dtype), generator(0))
    end = a_path.sample(x0, x1, torch.ones(64, dtype=x0.dtype), generator(0))
    torch.testing.assert_close(start.x_t, x0)
    torch.testing.assert_close(end.x_t, x1)
    assert start.u_t.isfinite().all() and end.u_t.isfinite().all()


def test_the_linear_path_is_exact_at_its_ends_in_float32():
    x0, x1 = pairs(dtype=torch.float32)
    assert torch.equal(LinearPath().sample(x0, x1, torch.zeros(64)).x_t, x0)
    assert torch.equal(LinearPath().sample(x0, x1, torch.ones(64)).x_t, x1)


def test_the_target_path_goes_from_noise_to_the_target():
    x0, x1 = pairs()
    start = TargetPath().sample(x0, x1, torch.zeros(64, dtype=x0.dtype), generator(3))
    noise = torch.randn(x0.shape, generator=generator(3), dtype=x0.dtype)
    assert torch.equal(start.x_t, noise)
    end = TargetPath().sample(x0, x1, torch.ones(64, dtype=x0.dtype), generator(3))
    torch.testing.assert_close(end.x_t, x1)
    torch.testing.assert_close(end.u_t, x1 - noise)  # the formula with the division is 0/0 here
    assert TargetPath().velocity(x0, x1, end.x_t, end.t).isfinite().all()


@pytest.mark.parametrize(
    ("a_path", "variance"),
    [
        (LinearPath(0.5), lambda t: (1 - t) ** 2 + 4 * t**2 + 0.25),
        (BridgePath(2.0), lambda t: (1 - t) ** 2 + 4 * t**2 + 4 * t * (1 - t)),
        (TargetPath(0.5), lambda t: 4 * t**2 + (1 - t / 2) ** 2),
        (VariancePreservingPath(), lambda t: 1 + 3 * math.sin(math.pi * t / 2) ** 2),
    ],
    ids=["linear", "bridge", "target", "variance-preserving"],
)
@pytest.mark.parametrize("t", [0.25, 0.6])
def test_the_marginal_variance_between_independent_gaussians(a_path, variance, t):
    random = generator(4)
    n = 200_000
    x0, x1 = torch.randn(n, 1, generator=random), 2 * torch.randn(n, 1, generator=random)
    x_t = a_path.sample(x0, x1, torch.full((n,), t), random).x_t
    standard_error = variance(t) * math.sqrt(2 / n)
    assert abs(float(x_t.var()) - variance(t)) < 4 * standard_error


def test_images_keep_their_shape_and_dtype():
    x0, x1 = torch.zeros(2, 3, 4, 4), torch.ones(2, 3, 4, 4)
    for a_path in PATHS:
        sample = a_path.sample(x0, x1, torch.tensor([0.25, 0.5]), generator(0))
        assert sample.x_t.shape == sample.u_t.shape == x0.shape
        assert sample.x_t.dtype == sample.u_t.dtype == torch.float32
    line = LinearPath().sample(x0, x1, torch.tensor([0.25, 0.5])).x_t
    assert (line[0] == 0.25).all() and (line[1] == 0.5).all()


def test_a_deterministic_path_draws_nothing():
    x0, x1 = pairs()
    random = generator(5)
    before = random.get_state()
    LinearPath().sample(x0, x1, torch.rand(64, dtype=x0.dtype, generator=generator(6)), random)
    assert torch.equal(random.get_state(), before)


def test_noise_needs_a_generator():
    x0, x1 = pairs()
    with pytest.raises(UsageError, match="no generator"):
        BridgePath(1.0).sample(x0, x1, torch.full((64,), 0.5))


@pytest.mark.parametrize("sigma", [-0.1, math.inf, math.nan])
@pytest.mark.parametrize("name", ["linear", "bridge", "target", "variance-preserving"])
def test_an_impossible_noise_is_refused(name, sigma):
    with pytest.raises(UsageError, match="standard deviation"):
        path(name, sigma)


def test_paths_by_name():
    assert path("bridge", 0.5) == BridgePath(0.5)
    assert path("target") == TargetPath()
    with pytest.raises(UsageError, match="did you mean 'linear'"):
        path("liner")
    with pytest.raises(UsageError, match="bridge needs noise"):
        path("bridge", 0.0)


def test_pairs_and_times_must_fit():
    x0 = torch.zeros(4, 2)
    with pytest.raises(UsageError, match="own time"):
        LinearPath().sample(x0, x0, torch.tensor(0.5))
    with pytest.raises(UsageError, match="alike"):
        LinearPath().sample(x0, torch.zeros(1, 2), torch.zeros(4))


def test_uniform_times_are_the_chances_themselves():
    chances = torch.rand(8, generator=generator(0, "times"))
    assert times_at(chances) is chances


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (1.2, 0.5)])
def test_the_logit_of_other_times_is_normal(mean, deviation):
    chances = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000  # all quantiles alike
    logit = torch.logit(times_at(chances, (mean, deviation)))
    assert float(logit.mean()) == pytest.approx(mean, abs=1e-9)
    assert float(logit.std()) == pytest.approx(deviation, rel=1e-3)
    share = float((logit < mean + deviation).double().mean())
    assert share == pytest.approx(0.5 * (1 + math.erf(math.sqrt(0.5))), abs=1e-4)


def test_the_ends_of_the_chances_are_times_as_well():
    ends = times_at(torch.tensor([0.0, 1.0]), (0.0, 1.0))
    assert ends.tolist() == [0.0, 1.0]
