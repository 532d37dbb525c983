"""Which weights of eq. (5) suit a method of `dcfm-cmnist`? Tries pairs on one seed, so that another can be measured.

    PYTHONPATH=src python benchmarks/composition_weights.py --problem dirichlet --seed 10 --out runs/weights
    PYTHONPATH=src python benchmarks/composition_weights.py --scale smoke --problem digits-dirichlet --samples 200

Methods are trained as the recipe trains them, or read where `--out` has them already. The way whose novel samples have
the smallest FID is marked, or without Inception's weights the one closest to real images on the judge's features: so
the weights of the recipe were chosen, each method's own, on seed 10. A method that the recipe asks for whole labels, as
the additive student, is guided by as many weights instead. `--tops` tries how many experts count at once, too (0: all).
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from anabranch.methods.experts import Mixture
from anabranch.recipes import cells_of, recipe
from anabranch.recipes._study import StudyCell, StudyRun
from anabranch.recipes.studies._composition_images_data import chosen_device, scene
from anabranch.recipes.studies._composition_images_metrics import eyes
from anabranch.recipes.studies._composition_images_sampling import Way, sampled
from anabranch.recipes.studies._composition_images_training import trained
from anabranch.recipes.studies._progress import Told

PAIRS = (
    *((6.0, 3.0), (6.0, 2.0), (6.0, 1.0), (4.0, 2.0), (4.0, 1.5), (4.0, 1.0)),
    *((3.0, 2.0), (3.0, 1.5), (3.0, 1.0), (2.0, 1.0)),
)
METHODS = ("ddm", "ddm+l", "dcfm-a", "dcfm-b")
GUIDANCE = (1.25, 1.5, 2.0, 3.0)
UNTIL = 0.5


@dataclass(frozen=True)
class Tried:
    """A way, and what came of it; FID is missing where Inception's weights are."""

    top: int
    way: Way
    right: float
    fid: float | None
    judge: float

    @property
    def distance(self) -> tuple[float, float]:
        """To real images: by FID, the measure of the paper's table; the judge differs from training to training."""
        return (0.0 if self.fid is None else self.fid), self.judge


def tries(cell: StudyCell, tops: list[int], samples: int) -> Iterator[Tried]:
    """All ways, with all experts or with the first few."""
    device, found = chosen_device(cell.options["device"]), scene(cell)
    cell.folder.mkdir(parents=True, exist_ok=True)
    with Told(cell) as told:
        mixture = trained(cell, found, device, told).mixture
    look, y = eyes(cell, found, device), found.real["novel"].codes[:samples]
    for top in tops if len(mixture.experts) > 1 else [0]:
        for way in ways_of(cell):
            x = sampled(limited(mixture, top), y, cell, found, device, "novel", way)
            figures = look.compare(look.features(x), "novel", "novel") | look.obeyed(x, y, found.space.names, "novel")
            right, judge = figures["conformity_novel"], figures["fid_features_novel"]
            yield Tried(top, way, right, figures.get("fid_novel"), judge)


def ways_of(cell: StudyCell) -> list[Way]:
    """Nine or ten: pairs of weights, or guidance where the recipe does not compose."""
    if cell.options["novel"]["how"] in ("composed", "within"):
        return [Way("within", pair, UNTIL) for pair in PAIRS]
    return [Way("joint"), *(Way("guided", (weight,), until) for until in (UNTIL, 1.0) for weight in GUIDANCE)]


def limited(mixture: Mixture, top: int) -> Mixture:
    """The mixture with so many experts at once; a student alone is one anyway."""
    return mixture if len(mixture.experts) == 1 else replace(mixture, rule=replace(mixture.rule, top=top))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problem", default="by-digit")
    parser.add_argument("--scale", default="small")
    parser.add_argument("--seed", type=int, default=10)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--tops", type=int, nargs="+", default=[0])
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path("runs/weights"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    for method in arguments.methods:
        (run,) = cells_of(
            recipe("dcfm-cmnist"), arguments.scale, arguments.out, arguments.seed, [method], [arguments.problem]
        )
        assert isinstance(run, StudyRun)
        best: Tried | None = None
        for one in tries(run.cell, arguments.tops, arguments.samples):
            closer = best is None or one.distance < best.distance
            best = one if closer else best
            fid = "" if one.fid is None else f"FID {one.fid:.1f}, "
            words = f"right {one.right:.3f}, {fid}judge's features {one.judge:.1f}"
            print(f"{method:8s} {one.top or 'all'} {said(one.way)}: {words}{' <' if closer else ''}", flush=True)
        assert best is not None
        print(f"{method}: {said(best.way)}, experts at once: {best.top or 'all'}", flush=True)


def said(way: Way) -> str:
    """For people."""
    return f"{way.how} {list(way.weights)} until {way.until:g}" if way.weights else way.how


if __name__ == "__main__":
    main()
