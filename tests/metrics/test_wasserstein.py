import math

import pytest
import torch

from anabranch.errors import DataError, UsageError
from anabranch.metrics import noise_floor, wasserstein2
from anabranch.seeds import generator


def cloud(n, d, *names):
    return torch.randn(n, d, generator=generator(0, *names), dtype=torch.float64)


def test_a_shift_is_its_length_and_a_set_is_at_no_distance_from_its_shuffle():
    x = cloud(60, 3)
    shift = torch.tensor([1.0, -2.0, 2.0], dtype=torch.float64)
    order = torch.randperm(60, generator=generator(1))
    assert wasserstein2(x, x[order] + shift) == pytest.approx(3.0)
    assert wasserstein2(x, x[order]) == pytest.approx(0.0, abs=1e-6)


def test_on_the_line_it_is_the_distance_of_the_sorted_values():
    x, y = cloud(50, 1, "x"), 1 + 2 * cloud(50, 1, "y")
    expected = math.sqrt((x.sort(dim=0).values - y.sort(dim=0).values).square().mean())
    assert wasserstein2(x, y) == pytest.approx(expected)


def test_between_gaussians_it_approaches_the_bures_distance():
    # N(0, I) to N(m, diag(s²)): ‖m‖² + Σ (s − 1)², reached by the affine map x ↦ m + s x.
    x = cloud(400, 2)
    scale, shift = (
        torch.tensor([2.0, 0.5], dtype=torch.float64),
        torch.tensor([3.0, 0.0], dtype=torch.float64),
    )
    empirical = ((x * (scale - 1) + shift).square().sum(dim=1)).mean()
    assert wasserstein2(x, x * scale + shift) == pytest.approx(math.sqrt(empirical))
    assert wasserstein2(x, x * scale + shift) == pytest.approx(math.sqrt(9 + 1 + 0.25), rel=0.05)


def test_sets_of_unequal_size():
    x = torch.tensor([[0.0], [1.0]])
    y = torch.tensor([[0.0], [1.0], [5.0]])  # masses: 1/3 stays at 0, 1/6 goes 0→1, 1/6 stays at 1, 1/3 goes 1→5
    assert wasserstein2(x, y) == pytest.approx(math.sqrt(1 / 6 + 16 / 3))
    assert wasserstein2(x, x.repeat(3, 1)) == pytest.approx(0, abs=1e-6)


def test_images_are_flattened_and_float32_is_enough():
    x = cloud(8, 12).float().reshape(8, 3, 2, 2)
    assert wasserstein2(x, x + 1) == pytest.approx(math.sqrt(12), rel=1e-5)


def test_the_noise_floor_is_what_a_perfect_model_scores():
    reference, again, perfect = (cloud(300, 2, name) for name in ("reference", "again", "perfect"))
    floor = noise_floor(reference, again)
    assert 0.1 < floor < 0.4
    assert wasserstein2(perfect, reference) == pytest.approx(floor, rel=0.3)


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(DataError, match="no points"):
        wasserstein2(torch.zeros(0, 2), torch.zeros(3, 2))
    with pytest.raises(DataError, match="not finite"):
        wasserstein2(torch.zeros(3, 2), torch.full((3, 2), math.nan))
    with pytest.raises(UsageError, match="one space"):
        wasserstein2(torch.zeros(3, 2), torch.zeros(3, 1))
    with pytest.raises(UsageError, match="rows"):
        wasserstein2(torch.zeros(3), torch.zeros(3))
