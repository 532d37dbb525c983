import pytest
import torch

from anabranch.flow import LinearPath, VariancePreservingPath
from anabranch.flow.conditioning import (
    LinearSchedule,
    VariancePreservingSchedule,
    composed,
    score_to_velocity,
    velocity_to_data,
    velocity_to_noise,
    velocity_to_score,
)
from anabranch.seeds import generator

SCHEDULES = [LinearSchedule(), VariancePreservingSchedule()]


def points(count=40, dimension=2, seed=0):
    x = 2 * torch.randn(count, dimension, generator=generator(seed, "x"), dtype=torch.float64)
    t = 0.02 + 0.96 * torch.rand(count, generator=generator(seed, "t"), dtype=torch.float64)
    return x, t


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rates_are_derivatives_and_ends_are_noise_and_data(schedule):
    t = torch.linspace(0.01, 0.99, 9, dtype=torch.float64)
    at = schedule.at(t)
    for value, rate in (
        (lambda s: schedule.at(s).alpha, at.alpha_rate),
        (lambda s: schedule.at(s).sigma, at.sigma_rate),
    ):
        torch.testing.assert_close((value(t + 1e-6) - value(t - 1e-6)) / 2e-6, rate, rtol=1e-6, atol=1e-8)
    ends = schedule.at(torch.tensor([0.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(ends.alpha, torch.tensor([0.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(ends.sigma, torch.tensor([1.0, 0.0], dtype=torch.float64))


@pytest.mark.parametrize(
    ("schedule", "path"),
    [(LinearSchedule(), LinearPath()), (VariancePreservingSchedule(), VariancePreservingPath())],
)
def test_a_schedule_is_that_of_its_path(schedule, path):
    noise, t = points(seed=1)
    data, _ = points(seed=2)
    sample = path.sample(noise, data, t)
    torch.testing.assert_close(velocity_to_noise(sample.u_t, sample.x_t, t, schedule), noise)
    torch.testing.assert_close(velocity_to_data(sample.u_t, sample.x_t, t, schedule), data)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_single_gaussian_has_the_score_and_velocity_of_the_textbook(schedule):
    x, t = points()
    mean, variance = torch.tensor([1.0, -2.0], dtype=torch.float64), torch.tensor([0.25, 4.0], dtype=torch.float64)
    at = schedule.at(t[:, None])
    score = -(x - at.alpha * mean) / (at.alpha**2 * variance + at.sigma**2)
    # The flow of a Gaussian moves its mean and stretches it: v = m' + (s'/s)(x − m), m = α μ, s² = α² σ₁² + σ².
    rate = (at.alpha * at.alpha_rate * variance + at.sigma * at.sigma_rate) / (at.alpha**2 * variance + at.sigma**2)
    velocity = at.alpha_rate * mean + rate * (x - at.alpha * mean)
    torch.testing.assert_close(score_to_velocity(score, x, t, schedule), velocity)
    torch.testing.assert_close(velocity_to_score(velocity, x, t, schedule), score)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_mixture_has_the_score_of_its_density(mixture, schedule):
    gaussians = mixture(schedule=schedule)
    x, t = points()
    y = torch.stack([torch.arange(40) % 4 - 1, torch.arange(40) % 3 - 1], dim=1)
    velocity, score = gaussians.velocity(x, t, y), gaussians.score(x, t, y)
    torch.testing.assert_close(velocity_to_score(velocity, x, t, schedule), score)
    torch.testing.assert_close(score_to_velocity(score, x, t, schedule), velocity)
    torch.testing.assert_close(velocity_to_noise(velocity, x, t, schedule), -schedule.at(t[:, None]).sigma * score)
    noise, data = velocity_to_noise(velocity, x, t, schedule), velocity_to_data(velocity, x, t, schedule)
    torch.testing.assert_close(schedule.at(t[:, None]).alpha * data + schedule.at(t[:, None]).sigma * noise, x)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_composed_velocity_is_that_of_the_composed_score(mixture, schedule):
    """Eq. (24) and (33), with weights, where the attributes are *not* independent."""
    gaussians = mixture(schedule=schedule, missing=[(2, 1), (0, 0)])
    x, t = points()
    y = torch.tensor([[2, 1]]).expand(40, -1)
    weights = [1.5, 0.5]
    scores = [gaussians.score(x, t, code.expand(40, -1)) for code in torch.tensor([[2, -1], [-1, 1], [-1, -1]])]
    expected = scores[2] + sum(w * (score - scores[2]) for w, score in zip(weights, scores[:2], strict=True))
    velocity = composed(gaussians.velocity, weights)(x, t, y)
    torch.testing.assert_close(velocity_to_score(velocity, x, t, schedule), expected)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_at_the_start_the_score_is_that_of_noise_whatever_the_velocity(schedule):
    x, _ = points()
    torch.testing.assert_close(velocity_to_score(torch.randn_like(x), x, torch.tensor(0.0), schedule), -x)


def test_one_time_serves_all_points_and_images_stay_images():
    x, _ = points(4, 12)
    velocity, t = torch.ones_like(x), torch.tensor(0.25)
    rows = velocity_to_score(velocity, x, t)
    torch.testing.assert_close(velocity_to_score(velocity, x, t.expand(4)), rows)
    shape = (4, 3, 2, 2)
    images = velocity_to_score(velocity.reshape(shape), x.reshape(shape), t.expand(4))
    torch.testing.assert_close(images, rows.reshape(shape))
