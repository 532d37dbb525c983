"""Which exact solver is fastest, by size, shape and dimension of the problem?

Times four ways to the same optimal assignment: scipy's assignment, POT's network simplex, the former primed
with approximate duals, and `anabranch.transport.assignment`, which chooses. Each time is that of the
processor in the calling thread, the best of a few repeats, averaged over problems.
Run with one thread for figures that compare:

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python benchmarks/exact_plans.py [--largest 2048]
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from anabranch.seeds import generator
from anabranch.transport import _exact as exact
from anabranch.transport import assignment, half_squared_cost

Solver = Callable[[Tensor], NDArray[np.int64]]


def plane(rows: int, columns: int, random: torch.Generator) -> Tensor:
    """Eight Gaussians on a circle against two moons."""
    angle = torch.randint(8, (rows,), generator=random) * (math.pi / 4)
    x = 5 * torch.stack([angle.cos(), angle.sin()], 1) + 0.56 * torch.randn(rows, 2, generator=random)
    turn = torch.rand(columns, generator=random) * math.pi
    upper = torch.stack([turn.cos(), turn.sin()], 1)
    lower = torch.stack([1 - turn.cos(), 0.5 - turn.sin()], 1)
    y = torch.where(torch.rand(columns, 1, generator=random) < 0.5, upper, lower) * 3 - 1
    return half_squared_cost(x, y + 0.2 * torch.rand(columns, 1, generator=random))


def gaussian(rows: int, columns: int, random: torch.Generator) -> Tensor:
    """Two standard Gaussians in 64 dimensions."""
    return half_squared_cost(torch.randn(rows, 64, generator=random), torch.randn(columns, 64, generator=random))


def image(rows: int, columns: int, random: torch.Generator) -> Tensor:
    """Noise against image-like data: 3072 numbers in [−1, 1] with 40 degrees of freedom."""
    basis = torch.randn(40, 3072, generator=random) / 6
    y = (torch.randn(columns, 40, generator=random) @ basis).clamp(-1, 1)
    return half_squared_cost(torch.randn(rows, 3072, generator=random), y)


def by_assignment(cost: Tensor) -> NDArray[np.int64]:
    columns: NDArray[np.int64] = linear_sum_assignment(cost.double().numpy())[1]
    return columns


def by_simplex(cost: Tensor) -> NDArray[np.int64]:
    """POT's emd; for n < m a dummy row that costs nothing takes the columns left over."""
    import ot

    rows, columns = cost.shape
    matrix = np.zeros((rows + (columns > rows), columns))
    matrix[:rows] = cost.double().numpy()
    weights = np.ones(len(matrix))
    if columns > rows:
        weights[-1] = columns - rows
    plan = ot.emd(weights, np.ones(columns), matrix, numItermax=10**9, center_dual=False, check_marginals=False)
    index: NDArray[np.int64] = plan[:rows].argmax(1)
    return index


def by_primed(cost: Tensor) -> NDArray[np.int64]:
    """Always primed, the rule set aside."""
    with patch.object(exact, "_worth_priming", new=lambda matrix, contested: True):
        return assignment(cost).numpy()


def by_rule(cost: Tensor) -> NDArray[np.int64]:
    return assignment(cost).numpy()


SOLVERS: dict[str, Solver] = {
    "scipy": by_assignment,
    "POT emd": by_simplex,
    "primed": by_primed,
    "the rule": by_rule,
}


def measure(problems: list[Tensor], repeats: int) -> dict[str, float]:
    """Milliseconds for each solver, after a check that all agree on the optimum."""
    times = {}
    best: list[float] = []
    for name, solver in SOLVERS.items():
        spent = 0.0
        for number, cost in enumerate(problems):
            quickest = math.inf
            for _ in range(repeats):
                begin = time.thread_time()
                index = solver(cost)
                quickest = min(quickest, time.thread_time() - begin)
            spent += quickest
            value = float(cost.double().numpy()[np.arange(len(index)), index].sum())
            if len(best) <= number:
                best.append(value)
            if not math.isclose(value, best[number], rel_tol=1e-7) or len(set(index)) < len(index):
                raise SystemExit(f"{name} found {value}, not {best[number]}, on a problem of {tuple(cost.shape)}.")
        times[name] = 1000 * spent / len(problems)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=2048, help="the largest number of rows")
    largest = parser.parse_args().largest
    torch.set_num_threads(1)
    print("milliseconds".ljust(24) + "".join(name.rjust(10) for name in SOLVERS))
    for wide in (1, 2):
        for label, make in (("2-D", plane), ("64-D", gaussian), ("3072-D", image)):
            for rows in (64, 128, 192, 256, 512, 1024, 2048):
                if rows * wide > largest:
                    continue
                count, repeats = (3, 5) if rows <= 512 else (1, 1)
                problems = [make(rows, wide * rows, generator(seed, label, rows)) for seed in range(count)]
                times = measure(problems, repeats)
                line = "".join(f"{value:10.2f}" for value in times.values())
                print(f"{label:8s}{rows:5d} x {wide * rows:<5d}   {line}", flush=True)


if __name__ == "__main__":
    main()
