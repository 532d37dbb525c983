"""Points: what is accepted, what is refused and how; splits; files."""

import numpy
import pytest
import torch

from anabranch.data import Pixels, check_points, load_points, split
from anabranch.errors import DataError, UsageError
from anabranch.seeds import generator

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "x",
    [
        [[1, 2], [3, 4]],
        numpy.array([[1.0, 2.0], [3.0, 4.0]]),
        numpy.array([[1, 3], [2, 4]], dtype=">i4").T,
        torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64, requires_grad=True),
        torch.tensor([[1, 3], [2, 4]]).T,
    ],
)
def test_arrays_lists_and_tensors_become_float32(x):
    points = check_points(x, "Silo 'a'", dimension=2)
    assert points.dtype == torch.float32 and points.is_contiguous() and not points.requires_grad
    assert points.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        ([], "Silo 'b' holds no points; at least 2 are needed"),
        (torch.zeros(0, 2), "Silo 'b' holds no points"),
        ([[1.0, 2.0]], "Silo 'b' holds only 1 point, at least 2 are needed."),
        (
            [[0, 0], [NAN, 0], [0, INF]],
            "Silo 'b' holds 2 points of 3 that are not finite, the first in row 2",
        ),
        ([[0, 0], [0, 1e39]], "1 point of 2 that is not finite"),
        ([1.0, 2.0], r"array of shape \(2,\)"),
        (torch.zeros(2, 0), "without coordinates"),
        (torch.zeros(3, 3), "has points in 3 dimensions, the others in 2; all silos must share one space"),
        ([[1, 2], [3]], "rows of different lengths"),
        ([["a", "b"], ["c", "d"]], "made of real numbers"),
        (numpy.zeros((2, 2), dtype=complex), "made of real numbers"),
        (torch.zeros(2, 2, dtype=torch.complex64), "made of real numbers"),
    ],
)
def test_unusable_points_are_refused_by_name(x, sentence):
    with pytest.raises(DataError, match=sentence):
        check_points(x, "Silo 'b'", dimension=2)


def test_smallest_can_be_lowered():
    assert len(check_points([[1.0]], "The target", smallest=1)) == 1


@pytest.mark.parametrize(
    ("count", "fraction", "held"), [(10, 0.2, 2), (10, 0.0, 0), (2, 0.01, 1), (2, 0.99, 1), (100, 0.999, 99)]
)
def test_split_sizes(count, fraction, held):
    parts = split(count, fraction, generator(0))
    assert len(parts.held_out) == held and (parts.train.diff() > 0).all() and (parts.held_out.diff() > 0).all()
    assert torch.equal(torch.cat((parts.train, parts.held_out)).sort().values, torch.arange(count))


def test_split_follows_its_generator():
    one, same, other = (split(100, 0.3, generator(seed)).held_out for seed in (0, 0, 1))
    assert torch.equal(one, same) and not torch.equal(one, other)


@pytest.mark.parametrize(("count", "fraction"), [(10, 1.0), (10, -0.1), (10, NAN), (1, 0.5), (0, 0.0)])
def test_impossible_splits_get_sentences(count, fraction):
    with pytest.raises(UsageError, match="fraction"):
        split(count, fraction, generator(0))


def test_files_are_read(tmp_path):
    x, label = numpy.arange(6.0).reshape(3, 2), numpy.array([2, 0, 1], dtype=numpy.int8)
    numpy.save(tmp_path / "x.npy", x)
    numpy.savez(tmp_path / "bare.npz", x=x)
    numpy.savez_compressed(tmp_path / "labelled.npz", x=x, label=label)
    for name, labels in [("x.npy", [0, 0, 0]), ("bare.npz", [0, 0, 0]), ("labelled.npz", [2, 0, 1])]:
        points = load_points(tmp_path / name)
        assert points.x.tolist() == x.tolist() and points.label.tolist() == labels
        assert points.x.dtype == torch.float32 and points.label.dtype == torch.int64


class Trap:
    """Loading it by pickle would leave a trace."""

    sprung = False

    def __reduce__(self):
        return (setattr, (Trap, "sprung", True))


def test_nothing_is_unpickled(tmp_path):
    trap = numpy.array([Trap()], dtype=object)
    numpy.save(tmp_path / "trap.npy", trap, allow_pickle=True)
    numpy.savez(tmp_path / "trap.npz", x=trap)
    for name in ("trap.npy", "trap.npz"):
        with pytest.raises(DataError, match="never unpickled"):
            load_points(tmp_path / name)
    assert not Trap.sprung


def test_other_files_get_sentences(tmp_path):
    x = numpy.zeros((3, 2))
    numpy.savez(tmp_path / "misspelt.npz", x=x, labels=numpy.zeros(3, dtype=int))
    numpy.savez(tmp_path / "short.npz", x=x, label=numpy.zeros(2, dtype=int))
    numpy.savez(tmp_path / "real.npz", x=x, label=numpy.zeros(3))
    numpy.save(tmp_path / "flat.npy", numpy.zeros(3))
    numpy.savez_compressed(tmp_path / "torn.npz", x=numpy.random.default_rng(0).random((99, 2)))
    torn = bytearray((tmp_path / "torn.npz").read_bytes())
    torn[60:120] = b"\xff" * 60
    (tmp_path / "torn.npz").write_bytes(torn)
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "empty.npy").touch()
    for name, sentence in [
        ("misspelt.npz", "holds labels, x; it must hold x, or images, and may hold label"),
        ("short.npz", "needs 3 whole numbers"),
        ("real.npz", "needs 3 whole numbers"),
        ("flat.npy", r"'flat.npy' holds an array of shape \(3,\)"),
        ("torn.npz", "damaged"),
        ("text.npy", "damaged"),
        ("empty.npy", "damaged"),
        ("absent.npy", "cannot be read"),
    ]:
        with pytest.raises(DataError, match=sentence):
            load_points(tmp_path / name)
    with pytest.raises(UsageError, match=r"is a folder. If it holds pictures, write 'folder:"):
        load_points(tmp_path)
    with pytest.raises(UsageError, match=r"neither .npy nor .npz"):
        load_points(tmp_path / "points.pt")


@pytest.mark.parametrize("colours", [0, 1, 3])
def test_images_of_bytes_are_the_points_of_pixels(tmp_path, colours):
    images = torch.randint(0, 256, (5, 4, 6, *([colours] if colours else [])), dtype=torch.uint8)
    numpy.savez(tmp_path / "images.npz", images=images.numpy(), label=numpy.arange(5))
    found = load_points(tmp_path / "images.npz")
    first = images.permute(0, 3, 1, 2) if colours else images[:, None]
    held = Pixels(first.flatten(1), torch.arange(5), tuple(first.shape[1:]))
    assert torch.equal(found.x, held.x) and torch.equal(found.label, held.label)


@pytest.mark.parametrize("images", [numpy.zeros((5, 4, 6), numpy.float32), numpy.zeros((5, 3, 4, 6), numpy.uint8)])
def test_images_that_are_none_are_refused(tmp_path, images):
    numpy.savez(tmp_path / "images.npz", images=images)
    with pytest.raises(DataError, match="they must be bytes"):
        load_points(tmp_path / "images.npz")
