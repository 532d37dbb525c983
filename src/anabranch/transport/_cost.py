"""The cost of a move, c(x0, x1) = ½‖x0 − x1‖², for all pairs or for the cheapest one of each row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.errors import DataError, UsageError

CHUNK_NUMBERS = 2**22  # 16 MiB of float32: large enough for fast matrix products, small beside any data set
ON_A_GPU = 64  # times as many there


@dataclass(frozen=True)
class Nearest:
    """For each row x_i: `value` (n,) = minⱼ ½‖x_i − y_j‖² − offset_j; `index` (n,), the j that reaches it."""

    value: Tensor
    index: Tensor


def flat_points(points: Tensor, name: str) -> Tensor:
    """`points` (n, …) as (n, d); images and the like are read as vectors, (n,) as n points on the line."""
    if points.ndim == 0:
        raise DataError(f"{name} is a single number; give points along the first axis, of shape (n, d).")
    if points.shape[0] == 0:
        raise DataError(f"{name} holds no points; give at least one.")
    if not points.is_floating_point():
        raise DataError(f"{name} holds {points.dtype}; convert it to floating point first.")
    return points.reshape(points.shape[0], -1)


def centred(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Both sets as (n, d) and (m, d), less their common mean, which changes no distance.

    The matrix product cancels digits when ‖x‖ is large beside ‖x − y‖; centring takes out the part that all
    share.
    """
    x, y = flat_points(x, "x"), flat_points(y, "y")
    if x.shape[1] != y.shape[1]:
        raise DataError(f"x has {x.shape[1]} numbers a point and y has {y.shape[1]}; they must live in one space.")
    if x.dtype != y.dtype or x.device != y.device:
        raise DataError(f"x is {x.dtype} on {x.device} and y is {y.dtype} on {y.device}; they must agree.")
    mean = ((x.sum(0) + y.sum(0)) / (x.shape[0] + y.shape[0])).detach()
    return x - mean, y - mean


def half_squared_cost(x: Tensor, y: Tensor) -> Tensor:
    """C_ij = ½‖x_i − y_j‖², shape (n, m), for x (n, …) and y (m, …).

    Written as ½‖x‖² + ½‖y‖² − x·y, after centring, so that it costs one matrix product; never negative.
    Differentiable in both, on their device and in their dtype.

    >>> half_squared_cost(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 2.0]]))
    tensor([[12.5000,  2.0000]])
    """
    x, y = centred(x, y)
    squares = (x.square().sum(1) / 2)[:, None] + (y.square().sum(1) / 2)[None, :]
    return torch.addmm(squares, x, y.T, alpha=-1).clamp_min(0)


def nearest(x: Tensor, y: Tensor, offset: Tensor | None = None, chunk: int | None = None) -> Nearest:
    """The cheapest y for each x: minⱼ ½‖x_i − y_j‖² − offset_j, without the whole matrix.

    Rows are taken `chunk` at a time (by default so many that a chunk of the matrix holds about 2²² numbers).
    The index is found from the matrix form; the value is then computed directly at that index, so that it is
    exact for the index returned. With the offset a potential on y, this is its c-transform on x.

    >>> nearest(torch.tensor([[0.0], [2.9]]), torch.tensor([[1.0], [3.0]])).index
    tensor([0, 1])
    """
    x_centred, y_centred = centred(x, y)
    if offset is not None and offset.shape != (y.shape[0],):
        raise UsageError(f"offset has shape {tuple(offset.shape)}; it needs one number for each of {len(y)} y.")
    if chunk is not None and chunk < 1:
        raise UsageError(f"chunk is {chunk}; it is a number of rows, at least 1.")
    rows = chunk or max(1, (ON_A_GPU * CHUNK_NUMBERS if x.is_cuda else CHUNK_NUMBERS) // y.shape[0])
    height = y_centred.square().sum(1) / 2
    if offset is not None:
        height = height - offset
    with torch.no_grad():  # ½‖x‖² is the same for every j, so the index needs only ½‖y‖² − offset − x·y
        index = torch.cat(
            [torch.addmm(height, part, y_centred.T, alpha=-1).argmin(1) for part in torch.split(x_centred, rows)]
        )
    value = (flat_points(x, "x") - flat_points(y, "y")[index]).square().sum(1) / 2
    return Nearest(value if offset is None else value - offset[index], index)
