"""Shapes: closed-form moments, supports and labels; i.i.d. and Sobol samples from one definition."""

import math

import pytest
import torch

from anabranch.data import SHAPES, Points, shape
from anabranch.errors import DataError, UsageError
from anabranch.seeds import generator

COUNT = 4096


def wasserstein2(x, y):
    """√ of the mean squared distance of the optimal assignment, by an independent solver."""
    ot = pytest.importorskip("ot")
    weights = torch.full((len(x),), 1 / len(x), dtype=torch.float64).numpy()
    cost = torch.cdist(x.double(), y.double()).square().numpy()
    return math.sqrt(ot.emd2(weights, weights, cost, numItermax=1_000_000))


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_keeps_the_contract(name):
    drawn = shape(name)
    for points in (drawn.sample(COUNT, generator(0, name)), drawn.sobol(COUNT, seed=0)):
        assert points.x.shape == (COUNT, drawn.dimension) and points.x.dtype == torch.float32
        assert points.label.shape == (COUNT,) and points.label.dtype == torch.int64
        assert points.x.isfinite().all() and points.x.abs().max() < 8
        assert points.label.unique().tolist() == list(range(drawn.labels))
    assert torch.equal(drawn.points(9, generator(0, name)), drawn.sample(9, generator(0, name)).x)
    assert torch.equal(drawn.sobol(64, seed=3).x, drawn.sobol(64, seed=3).x)
    assert not torch.equal(drawn.sobol(64, seed=3).x, drawn.sobol(64, seed=4).x)
    assert not torch.equal(drawn.points(9, generator(0)), drawn.points(9, generator(1)))


@pytest.mark.parametrize("name", SHAPES)
def test_sobol_and_random_samples_have_the_same_moments_in_each_component(name):
    drawn = shape(name)
    random, even = drawn.sample(40_000, generator(1)), drawn.sobol(COUNT, seed=1)
    for label in range(drawn.labels):
        a, b = random.x[random.label == label], even.x[even.label == label]
        assert len(a) / len(random) == pytest.approx(1 / drawn.labels, abs=0.01)
        assert torch.allclose(a.mean(dim=0), b.mean(dim=0), atol=0.1)
        assert torch.allclose(a.T.cov(), b.T.cov(), atol=0.2)


@pytest.mark.parametrize("name", SHAPES)
def test_the_edges_of_the_unit_cube_are_finite(name):
    drawn = shape(name)
    for dtype in (torch.float32, torch.float64):
        points = drawn.push(torch.tensor([[0.0], [1.0]], dtype=dtype).expand(2, drawn.uniforms))
        assert points.x.isfinite().all() and points.x.dtype == dtype
        assert points.label.tolist() == [0, drawn.labels - 1]


def test_gaussian_is_standard_normal_in_any_dimension():
    x = shape("gaussian", dimension=5).sobol(8192, seed=0).x
    assert torch.allclose(x.mean(dim=0), torch.zeros(5), atol=1e-3)
    assert torch.allclose(x.T.cov(), torch.eye(5), atol=0.02)
    assert x.pow(4).mean() == pytest.approx(3, abs=0.05)


def test_eight_gaussians_modes_and_variance():
    points = shape("8gaussians").sobol(16384, seed=0)
    for k in range(8):
        x = points.x[points.label == k]
        centre = torch.tensor([5 * math.cos(k * math.pi / 4), 5 * math.sin(k * math.pi / 4)])
        assert torch.allclose(x.mean(dim=0), centre, atol=5e-3)
        assert torch.allclose(x.T.cov(), 0.316 * torch.eye(2), atol=0.01)


def test_moons_lie_on_shifted_half_circles():
    """Taking one number of [0, 0.2) from both coordinates brings every point back to its moon."""
    points = shape("moons").sample(2000, generator(0))
    moon = (points.x.double() + 1) / 3
    centre = torch.stack((points.label.double(), points.label.double() / 2), dim=1)
    sign = 1 - 2 * points.label.double()
    relative = (moon - centre) * sign[:, None]
    # |relative − sign·ε·(1, 1)| = 1 has two roots ε; the right one lies in [0, 0.2) with sin ≥ 0
    total, square = relative.sum(dim=1) * sign, relative.square().sum(dim=1)
    root = (total.square() - 2 * (square - 1)).clamp(min=0).sqrt()
    fits = torch.zeros(len(points), dtype=torch.bool)
    for shift in ((total - root) / 2, (total + root) / 2):
        height = relative[:, 1] - sign * shift
        fits |= (shift > -1e-3) & (shift < 0.2 + 1e-3) & (height > -1e-3)
    assert fits.all()
    assert shape("moons").sobol(COUNT, 0).x.mean(dim=0).tolist() == pytest.approx([0.8, 0.05], abs=0.01)


def test_moons_by_hand():
    u = torch.tensor([[0.0, 0.5], [0.25, 0.0], [0.5, 0.0], [0.75, 0.5]], dtype=torch.float64)
    points = shape("moons").push(u)  # s = 0, ½ on the upper moon, then on the lower; ε = 0.1, 0, 0, 0.1
    expected = [[2.3, -0.7], [-1, 2], [-1, 0.5], [2.3, -2.2]]
    assert torch.allclose(points.x, torch.tensor(expected, dtype=torch.float64))
    assert points.label.tolist() == [0, 0, 1, 1]


def test_uniform_and_checkerboard_fill_their_cells():
    x = shape("uniform").sobol(COUNT, 0).x
    assert x.mean(dim=0).tolist() == pytest.approx([0, 0], abs=0.01)
    assert x.var(dim=0).tolist() == pytest.approx([64 / 12] * 2, abs=0.02)
    points = shape("checkerboard").sample(COUNT, generator(0))
    cell = ((points.x + 4) / 2).floor().long()
    assert (cell.sum(dim=1) % 2 == 0).all() and cell.min() == 0 and cell.max() == 3
    for k in range(8):
        assert len(cell[points.label == k].unique(dim=0)) == 1


def test_s_curve_is_odd_and_labelled_by_half():
    points = shape("s-curve").sobol(COUNT, 0)
    assert torch.allclose(points.x.mean(dim=0), torch.zeros(2), atol=0.01)
    assert (points.x[points.label == 0, 1] > -0.5).all() and (points.x[points.label == 1, 1] < 0.5).all()


def test_pinwheel_arms_are_turned_copies():
    points = shape("pinwheel").sobol(COUNT * 4, 0)
    angle = 2 * math.pi / 5
    turn = torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    for arm in range(5):
        here, following = (points.x[points.label == label] for label in (arm, (arm + 1) % 5))
        assert torch.allclose(here.mean(dim=0) @ turn, following.mean(dim=0), atol=0.02)


@pytest.mark.parametrize(("name", "floor"), [("moons", 0.042), ("8gaussians", 0.112)])
def test_two_sobol_sets_are_close(name, floor):
    drawn = shape(name)
    distance = wasserstein2(drawn.sobol(2048, seed=0).x, drawn.sobol(2048, seed=1).x)
    assert distance == pytest.approx(floor, rel=0.1)


def test_points_select_rows_and_refuse_other_shapes():
    points = shape("moons").sample(10, generator(0))
    index = torch.tensor([7, 2])
    assert len(points) == 10 and torch.equal(points[index].x, points.x[index])
    assert torch.equal(points[2:5].label, points.label[2:5])
    with pytest.raises(DataError, match="cannot carry labels"):
        Points(torch.zeros(3, 2), torch.zeros(2, dtype=torch.long))


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: shape("moon"), "There is no shape 'moon'; did you mean 'moons'"),
        (lambda: shape("moons", dimension=3), "lives in 2 dimensions, not 3"),
        (lambda: shape("gaussian", dimension=0), "at least 1"),
        (lambda: shape("moons").sample(-1, generator(0)), "must not be negative"),
        (lambda: shape("moons").push(torch.rand(4, 3)), r"takes \(n, 2\)"),
        (lambda: shape("gaussian", dimension=30_000).sobol(4, 0), "at most 21201 dimensions"),
    ],
)
def test_wrong_questions_get_sentences(ask, sentence):
    with pytest.raises(UsageError, match=sentence):
        ask()
