import math

import pytest
import torch

from anabranch.errors import UsageError
from anabranch.flow import integrate
from anabranch.metrics import path_energy, straightness
from anabranch.seeds import generator

OMEGA = 2.0


def start(dtype=torch.float64):
    return torch.randn(200, 2, generator=generator(0), dtype=dtype)


def rotation(x, t):
    return OMEGA * torch.stack([-x[:, 1], x[:, 0]], dim=1)


def euler_energy(steps):
    """ω² E‖x0‖² times the mean of (1 + (ω/steps)²)^k: each Euler step of a rotation lengthens the point."""
    growth = 1 + (OMEGA / steps) ** 2
    radius = float(start().square().sum(dim=1).mean())
    return OMEGA**2 * radius * sum(growth**k for k in range(steps)) / steps


def test_a_constant_velocity_is_straight_and_moves_no_more_than_it_must():
    move = torch.tensor([3.0, 4.0], dtype=torch.float64)
    assert straightness(lambda x, t: move.expand_as(x), start()) == pytest.approx(0, abs=1e-20)
    assert path_energy(lambda x, t: move.expand_as(x), start(), 25.0) == pytest.approx(0, abs=1e-12)
    assert path_energy(lambda x, t: 2 * move.expand_as(x), start(), 25.0) == pytest.approx(3)


@pytest.mark.parametrize("steps", [10, 100])
def test_a_rotation_has_the_values_of_its_euler_path(steps):
    radius = float(start().square().sum(dim=1).mean())
    chord = abs((1 + 1j * OMEGA / steps) ** steps - 1) ** 2 * radius
    assert straightness(rotation, start(), steps) == pytest.approx(euler_energy(steps) - chord)
    assert path_energy(rotation, start(), 2.0, steps) == pytest.approx(abs(euler_energy(steps) - 2) / 2)


def test_many_steps_come_to_the_continuous_value_of_a_rotation():
    radius = float(start().square().sum(dim=1).mean())
    continuous = (OMEGA**2 - (2 - 2 * math.cos(OMEGA))) * radius
    assert straightness(rotation, start(), 4000) == pytest.approx(continuous, rel=2e-3)


def test_it_is_the_definition_along_the_kept_path():
    def velocity(x, t):
        return torch.sin(3 * x) + t

    x0 = start(torch.float32)
    flow = integrate(velocity, x0, nfe=100, keep_path=True)
    gaps = [
        (flow.x1 - x0 - velocity(x, t)).square().sum(dim=1).mean()
        for x, t in zip(flow.path[:-1], flow.times[:-1], strict=True)
    ]
    assert straightness(velocity, x0) == pytest.approx(float(sum(gaps) / 100), rel=1e-4)


def test_images_count_all_their_coordinates():
    x0 = torch.zeros(2, 3, 4, 4)
    assert path_energy(lambda x, t: torch.ones_like(x), x0, 1.0) == pytest.approx(47)
    # v = t along each coordinate: the variance of k/100 is (1 − 1/100²)/12.
    uniform = 48 * (1 - 1e-4) / 12
    assert straightness(lambda x, t: t * torch.ones_like(x), x0) == pytest.approx(uniform, rel=1e-5)


def test_energy_needs_a_distance():
    for wrong in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(UsageError, match="positive"):
            path_energy(rotation, start(), wrong)
