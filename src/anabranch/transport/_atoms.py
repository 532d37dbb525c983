"""Atoms that are looked up again and again, under duals that change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import Lock

import torch
from torch import Tensor

from anabranch.transport._cost import CHUNK_NUMBERS, ON_A_GPU, Nearest

_SCORES = 2**19  # held at once on a CPU: they stay in the cache between the product and the argmin


class Atoms:
    """Points x (n, d) ready for lookups: less their mean, and with ½‖x_j‖², which is made once for all duals g.

    Scores ½‖x_j‖² − g_j − x0·x_j come from one matrix product, linear in the number of atoms. It is one of float32
    (bfloat16 would be too coarse), or on a GPU, where `rough` ones are good enough, one of numbers rounded to eleven
    bits (TF32), several times as fast. Scores only choose the index: the value is computed afresh, from x itself.
    Lookups of one and the same object must not run side by side. `gpu` says how to compute, if not by where x is.
    """

    def __init__(self, x: Tensor, gpu: bool | None = None) -> None:
        self.x = x
        self.gpu = x.is_cuda if gpu is None else gpu
        self.middle = x.mean(0)
        centred = (x - self.middle).float()
        if self.gpu:
            self._heights = (centred.square().sum(1) / 2).double()
            self._points = centred
        else:
            self._heights = 0.5 * centred.double().square().sum(1)
            self._points = torch.cat([centred, centred[:, :1]], dim=1).T.contiguous()  # the last row is for offsets

    def lookup(self, noise: Tensor, duals: Tensor, rough: bool = False) -> Nearest:
        """For each noise (m, d): min_j ½‖x0 − x_j‖² − g_j, and the j that reaches it."""
        offsets, rows = (self._heights - duals).float(), (noise - self.middle).float()
        if self.gpu:
            with rounded_products() if rough else nullcontext():
                index = self._on_gpu(rows, offsets)
            value = (noise - self.x[index]).square().sum(1) / 2 - duals[index].to(noise.dtype)
            return Nearest(value, index)
        index = self._on_cpu(rows, offsets)
        value = 0.5 * (noise - self.x[index]).double().square().sum(1) - duals[index]
        return Nearest(value.to(noise.dtype), index)

    @torch.no_grad()
    def _on_gpu(self, rows: Tensor, offsets: Tensor) -> Tensor:
        parts = torch.split(rows, max(1, ON_A_GPU * CHUNK_NUMBERS // len(self.x)))
        return torch.cat([torch.addmm(offsets, part, self._points.T, alpha=-1).argmin(1) for part in parts])

    @torch.no_grad()
    def _on_cpu(self, rows: Tensor, offsets: Tensor) -> Tensor:
        self._points[-1] = offsets
        rows = torch.cat([-rows, torch.ones(len(rows), 1)], dim=1)
        # torch's product obeys torch's threads; numpy's argmin is vectorised along rows, much faster than torch's.
        step = max(1, _SCORES // len(self.x))
        buffer = torch.empty(min(step, len(rows)), len(self.x))
        index = torch.empty(len(rows), dtype=torch.long)
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            scores = torch.mm(part, self._points, out=buffer[: len(part)])
            index[start : start + step] = torch.from_numpy(scores.numpy().argmin(1))
        return index


class _Within:
    """How many are inside `rounded_products` now, and what the first of them found."""

    lock, count, before = Lock(), 0, "highest"


@contextmanager
def rounded_products() -> Iterator[None]:
    """Within, a GPU rounds what it multiplies in float32 to eleven bits. It is a switch of the whole process: the last
    one to leave puts it back to what the first one found, however many threads are within."""
    with _Within.lock:
        if _Within.count == 0:
            _Within.before = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision("high")
        _Within.count += 1
    try:
        yield
    finally:
        with _Within.lock:
            _Within.count -= 1
            if _Within.count == 0:
                torch.set_float32_matmul_precision(_Within.before)
