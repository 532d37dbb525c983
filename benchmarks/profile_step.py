"""Where does a training step of images spend its time on a GPU? Milliseconds by kind of kernel, and those without any.

    PYTHONPATH=src python benchmarks/profile_step.py
    PYTHONPATH=src python benchmarks/profile_step.py --channels 64 --method sd --kernels 40
    PYTHONPATH=src python benchmarks/profile_step.py --sample 1000

The step is the one of `anabranch bench images`: a server and its silos in one process, all silos in one pass. A GPU
that is idle for more than a millisecond or two of each step waits for the program that launches its kernels. With
`--sample`, it is one evaluation of the velocity of so many images at once instead.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch

from anabranch.bench.images._ours import OurTraining, our_velocity
from anabranch.bench.images._work import METHODS, Case, ImageWork, work_of

WARM_UP, STEPS = 8, 5
KINDS = {  # the first that a kernel's name holds; attention's passes are called as those of convolutions are
    "attention": ("sdpa", "flash", "fmha", "dot_do_o", "convert_dq"),
    "weight gradients of convolutions": ("wgrad",),
    "input gradients of convolutions": ("dgrad",),
    "convolutions": ("fprop", "conv2d", "implicit_gemm"),
    "sums (compiled)": ("triton_red", "triton_per"),
    "numbers one by one (compiled)": ("triton",),
    "products": ("gemm", "nvjet", "cutlass", "splitk"),
    "optimiser, averages, rounding": ("multi_tensor",),
    "copies": ("copy", "memcpy", "memset", "nchw", "nhwc"),
}


@dataclass(frozen=True)
class Profile:
    """Milliseconds a step: from the first kernel to the last, those in which one was running, and those of each."""

    span: float
    busy: float
    kernels: Counter[str]
    launched: Counter[str]

    def kinds(self) -> Counter[str]:
        """Milliseconds by kind."""
        found: Counter[str] = Counter()
        for name, milliseconds in self.kernels.items():
            found[kind_of(name)] += milliseconds
        return found


def kind_of(kernel: str) -> str:
    """The kind of a kernel, by its name."""
    low = kernel.lower()
    return next((kind for kind, words in KINDS.items() if any(word in low for word in words)), "others")


def profiled(step: Callable[[], object]) -> Profile:
    """A few steps under torch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    on_gpu = [event for event in found.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    spans = sorted((event.time_range.start, event.time_range.end) for event in on_gpu)
    busy, end = 0.0, spans[0][0]
    for start, stop in spans:
        busy, end = busy + max(0.0, stop - max(start, end)), max(end, stop)
    scale = 1 / (1000 * STEPS)
    kernels: Counter[str] = Counter()
    for event in on_gpu:
        kernels[event.name] += event.time_range.elapsed_us() * scale
    launched = Counter({name: count / STEPS for name, count in Counter(event.name for event in on_gpu).items()})
    return Profile((end - spans[0][0]) * scale, busy * scale, kernels, launched)


def timed(step: Callable[[], object], steps: int = 20) -> tuple[float, float]:
    """Milliseconds a step, and those in which the program was busy with it, waiting for the GPU included."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    told = time.perf_counter() - begun
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - begun) / steps, 1000 * told / steps


def evaluation(work: ImageWork, images: int) -> Callable[[], object]:
    """One evaluation of the velocity, as samples take it."""
    velocity = our_velocity(work)
    x = torch.randn(images, work.dimension, device=work.device)
    velocity.prepare(x, 1)
    return lambda: velocity(x, x.new_full((), 0.5))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--silos", type=int, default=3)
    parser.add_argument("--batch", type=int, default=128, help="images of a silo")
    parser.add_argument("--channels", type=int, default=None, help="of the UNet; the paper's 128 by default")
    parser.add_argument("--method", choices=METHODS, default="vanilla")
    parser.add_argument("--sample", type=int, metavar="IMAGES", help="an evaluation for so many, instead of a step")
    parser.add_argument("--kernels", type=int, default=20, help="so many of the longest are named")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(1, "There is no GPU here that torch can use, and a CPU has no kernels to be looked at.\n")
    case = Case(arguments.silos, arguments.batch)
    work = work_of("cuda", "paper", arguments.channels, cases=(case,), methods=(arguments.method,))
    begun = time.perf_counter()
    step = evaluation(work, arguments.sample) if arguments.sample else OurTraining(work, case, arguments.method).step
    for _ in range(WARM_UP):
        step()
    taken, told = timed(step)
    print(f"compiled and recorded in {time.perf_counter() - begun:.0f} s")
    found = profiled(step)
    print(f"{taken:.1f} ms a step, of which the program was busy {told:.1f}")
    print(f"under the profiler {found.span:.1f}, a kernel running in {found.busy:.1f}")
    for kind, milliseconds in found.kinds().most_common():
        print(f"{milliseconds:9.2f} ms  {kind}")
    for name, milliseconds in found.kernels.most_common(arguments.kernels):
        print(f"{milliseconds:9.3f} ms {found.launched[name]:5.0f} x  {name[:110]}")


if __name__ == "__main__":
    main()
