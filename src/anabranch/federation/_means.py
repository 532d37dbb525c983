"""What a silo can afford for one question, by what it computes on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

MOST_NUMBERS = 2**30  # held at once for one question: four gibibytes in float32
MOST_WORK = 2**44  # multiplications for one question: an hour or two on one core
MOST_WORK_ON_GPU = 2**54  # the same on a modest GPU
NUMBER = 4  # bytes, in float32
SHARE = 0.5  # of a GPU's memory, that one question may fill: libraries, fragments and other programs need the rest


@dataclass(frozen=True)
class Means:
    """Bounds on one question: `numbers` held at once, and `work` in multiplications."""

    numbers: int = MOST_NUMBERS
    work: int = MOST_WORK

    @staticmethod
    def of_gpu(memory: int) -> Means:
        """Those of a GPU with so many bytes; never less than those of a CPU.

        >>> Means.of_gpu(24 * 2**30).numbers / 2**30
        3.0
        """
        return Means(max(MOST_NUMBERS, int(SHARE * memory) // NUMBER), MOST_WORK_ON_GPU)

    @staticmethod
    def of(device: torch.device) -> Means:
        """Those of a device: careful on a CPU, which others share; on a GPU what its memory allows."""
        if device.type != "cuda":
            return Means()
        return Means.of_gpu(memory_of(device))


def memory_of(device: torch.device) -> int:
    """The bytes of a GPU, used or not."""
    return int(torch.cuda.get_device_properties(device).total_memory)
