"""What the device could do at best: the rate of a large matrix product, measured in the same run."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from anabranch import seeds
from anabranch.bench.images._clock import timed
from anabranch.bench.images._work import Case, ImageWork
from anabranch.flow.unet import flops


@dataclass(frozen=True)
class Roofline:
    """Operations a second of a product of two square matrices of `size`, in `precision`."""

    rate: float
    size: int
    precision: str

    def least(self, operations: float) -> float:
        """Milliseconds that so many operations take at this rate."""
        return 1000 * operations / self.rate


def roofline(work: ImageWork) -> Roofline:
    """Measured in the precision that the network is computed in. The fastest of many turns counts: whatever else the
    machine does makes a product slower, never faster."""
    dtype = torch.bfloat16 if work.half else torch.float32
    generator = seeds.generator(0, "bench", "product", device=work.device)
    shape = (work.product, work.product)
    a, b = (torch.randn(shape, generator=generator, device=work.device).to(dtype) for _ in range(2))
    found = timed(lambda: a @ b, work.device, steps=10, turns=20)
    return Roofline(2 * work.product**3 / found.fastest * 1000, work.product, work.computed)


def operations(work: ImageWork, case: Case) -> int:
    """Operations of the network in one training step of all silos, its gradient included; see `flops`.

    What a coupling computes beside is left out: it is overhead, whatever it is made of.
    """
    return flops(work.ghost(), case.silos * case.batch)


def operations_of_pass(work: ImageWork) -> int:
    """Operations of one evaluation of all samples."""
    return flops(work.ghost(), work.samples, training=False)
