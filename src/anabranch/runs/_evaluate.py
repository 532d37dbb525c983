"""How good is a trained run? Rows of tidy records, and what figures are drawn from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anabranch import seeds
from anabranch.data import Cloud, Shape, shape
from anabranch.federation import Federation, Silo
from anabranch.flow import Velocity, integrate
from anabranch.methods.ffm import FlowServer, Histograms, dual_of, half_of, place
from anabranch.metrics import (
    optimal_cost,
    path_energy,
    projection_directions,
    projection_edges,
    sliced_wasserstein2_floor,
    sliced_wasserstein2_from_counts,
    straightness,
    to_bytes,
    total_variation_from_uniform,
    uniform_total_variation,
    wasserstein2,
)
from anabranch.runs._build import source_points
from anabranch.runs._config import Config
from anabranch.transport import duality_gap

Row = dict[str, Any]
KEPT_IMAGES = 64  # of each number of steps, for pictures
REFERENCE_SEED = 20  # evaluation sets are the same for every method and seed
ALONG = 100  # Euler steps of whatever is measured, or drawn, along paths


@dataclass(frozen=True)
class Evaluation:
    """Tidy rows, and arrays for pictures."""

    rows: list[Row]
    arrays: dict[str, np.ndarray[Any, Any]]


def evaluate(
    config: Config, server: FlowServer, silos: list[Silo], judged: Callable[[int, int], None] = lambda done, total: None
) -> Evaluation:
    """Judges a trained flow: against the true target where that has a formula, else against held-out points.

    `silos` are those of this process; without them the coupling is not judged. `judged` is that of `Notes`.
    """
    rows = Rows(config)
    velocity = _Told(server.velocity(), config, judged)
    if config.data.from_file:
        arrays = _judge_by_held_out(config, rows, velocity, server.federation)
    else:
        arrays = _judge_by_shape(config, rows, velocity, silos)
    rows.add_bytes(server.federation)
    return Evaluation(rows.rows, arrays)


class _Told:
    """A velocity that tells how many of its evaluations are done; those of dopri5, which nobody can count before, are
    not among them."""

    def __init__(self, velocity: Velocity, config: Config, judged: Callable[[int, int], None]) -> None:
        self.velocity, self.judged, self.done = velocity, judged, 0
        paths = 3 if not config.data.from_file else 1 if config.images.shape else 2
        self.total = sum(config.evaluation.nfe) + paths * ALONG

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        answer = self.velocity(x, t)
        self.done += 1
        self.judged(self.done, self.total)
        return answer


class Rows:
    """Rows of one run, all with its problem, method and seed."""

    def __init__(self, config: Config) -> None:
        self.key = {"problem": config.problem, "method": config.method, "seed": config.seed}
        self.rows: list[Row] = []

    def add(self, metric: str, value: float, nfe: int | None = None, **more: Any) -> None:
        """One more figure."""
        self.rows.append({**self.key, "nfe": nfe, "metric": metric, "value": float(value), **more})

    def add_bytes(self, federation: Federation) -> None:
        """What the run sent, by silo and kind."""
        for entry in federation.ledger.entries():
            more: dict[str, Any] = {"silo": entry.silo, "kind": entry.kind, "messages": entry.messages}
            self.add(f"bytes_{entry.direction}", entry.bytes, None, **more)


def _judge_by_shape(config: Config, rows: Rows, velocity: _Told, silos: list[Silo]) -> dict[str, np.ndarray[Any, Any]]:
    options, target = config.evaluation, shape(config.data.target)
    given, source = source_points(config), None
    if given is None:
        source = shape(config.flow.source)
        x0 = source.sobol(options.points, seeds.derive(REFERENCE_SEED, "source")).x
    else:
        x0 = given[: options.points]
    x1 = target.sobol(options.points, seeds.derive(REFERENCE_SEED, "target")).x
    floor = target.sobol(options.points, seeds.derive(REFERENCE_SEED, "floor")).x
    rows.add("w2_floor", wasserstein2(floor, x1))
    arrays = {"target": x1.numpy(), "source": x0.numpy()}
    for nfe in options.nfe:
        generated = integrate(velocity, x0, nfe).x1
        rows.add("w2", wasserstein2(generated, x1), nfe, solver="euler")
        arrays[f"generated_{nfe}"] = generated.numpy()
    if options.dopri5:
        flow = integrate(velocity.velocity, x0, None, "dopri5")
        rows.add("w2", wasserstein2(flow.x1, x1), flow.evaluations, solver="dopri5")
    optimum = optimal_cost(x0, x1)
    rows.add("straightness", straightness(velocity, x0, ALONG))
    rows.add("energy", path_energy(velocity, x0, 2 * optimum, ALONG))
    arrays["trajectories"] = _trajectories(velocity, x0[:256])
    if source is not None and silos:
        _judge_coupling(config, rows, silos, source, optimum)
    return arrays


def _trajectories(velocity: Velocity, x0: Tensor) -> np.ndarray[Any, Any]:
    """Paths of Euler steps, every fifth point kept: (21, n, d)."""
    path = integrate(velocity, x0, ALONG, keep_path=True).path
    assert path is not None
    kept: np.ndarray[Any, Any] = path[::5].numpy()
    return kept


def _judge_coupling(config: Config, rows: Rows, silos: list[Silo], source: Shape, optimum: float) -> None:
    """Cost and marginals of the pairs themselves. A simulation's privilege: pairs of a real silo stay there."""
    cost, x0s = 0.0, []
    total = sum(len(silo) for silo in silos)
    for silo in silos:
        half = half_of(silo)
        for number in range(config.evaluation.batches):
            silo.round = -1 - number
            pairs = half.draw(silo, silo.generator("evaluation"))
            share = half.weight / config.evaluation.batches
            cost += share * float((pairs.x0 - pairs.x1).square().sum(1).mean() / 2)
            take = -(-config.evaluation.points * len(silo) // (total * config.evaluation.batches))
            x0s.append(pairs.x0[:take])
    rows.add("cost_ratio", cost / optimum)
    coupled = torch.cat(x0s)
    coupled = coupled[torch.randperm(len(coupled), generator=seeds.generator(REFERENCE_SEED, "coupled"))]
    fresh = source.sobol(len(coupled), seeds.derive(REFERENCE_SEED, "fresh")).x
    independent = source.points(len(coupled), seeds.generator(REFERENCE_SEED, "independent"))
    rows.add("source_error", wasserstein2(coupled, fresh))
    rows.add("source_error_floor", wasserstein2(independent, fresh))
    if config.coupling.name == "semidiscrete" and config.evaluation.certify:
        _judge_duals(config, rows, silos, source)


def _judge_duals(config: Config, rows: Rows, silos: list[Silo], source: Shape) -> None:
    """Usage per point and share per silo on noises that fitting has not seen; for bare duals the certified gap too.

    Certifying needs all silos' points in one place, so it is another privilege of simulations.
    """
    total = sum(len(silo) for silo in silos)
    noise = source.points(config.evaluation.certify * total, seeds.generator(REFERENCE_SEED, "certify"))
    found = [place(silo, noise) for silo in silos]
    winner = torch.stack([f.value for f in found]).argmin(0)
    first = np.cumsum([0, *(len(silo) for silo in silos[:-1])])
    index = torch.cat([int(first[i]) + f.index[winner == i] for i, f in enumerate(found)])
    rows.add("usage_tv", total_variation_from_uniform(index, total))
    rows.add("usage_tv_uniform", uniform_total_variation(total, len(noise)))
    share = torch.bincount(winner, minlength=len(silos)).double() / len(noise)
    weight = torch.tensor([half_of(silo).weight for silo in silos], dtype=torch.float64)
    rows.add("share_error", float((share / weight - 1).abs().max()))
    if config.coupling.group == 1:
        duals = [dual_of(silo, half_of(silo)) for silo in silos]
        atoms, masses, g = (torch.cat([getattr(d, name) for d in duals]) for name in ("atoms", "masses", "average"))
        rows.add("duality_gap", duality_gap(noise, atoms, g, masses).relative)


def _judge_by_held_out(
    config: Config, rows: Rows, velocity: Velocity, federation: Federation
) -> dict[str, np.ndarray[Any, Any]]:
    """Sliced W2 to the silos' held-out points, from their histograms: no held-out point leaves its silo."""
    options = config.evaluation
    given = source_points(config)
    source = shape(config.flow.source, federation.dimension) if given is None else Cloud(given)
    x0 = source.points(options.points, seeds.generator(REFERENCE_SEED, "source"))
    image = tuple(config.images.shape)
    arrays = {} if image else {"source": x0.numpy()}
    for nfe in options.nfe:
        generated = integrate(velocity, x0, nfe).x1
        if image:  # a sheet of bytes: all points of all of them would be as large as the data
            arrays[f"images_{nfe}"] = to_bytes(
                generated[:KEPT_IMAGES].clamp(-1, 1), (image[0], image[1], image[2])
            ).numpy()
        else:
            arrays[f"generated_{nfe}"] = generated.numpy()
        counted = held_out(generated, federation)
        if counted is not None:
            rows.add("sliced_w2", counted.distance(generated), nfe, solver="euler")
            if nfe == max(options.nfe):
                rows.add("sliced_w2_floor", counted.floor(generated))
    rows.add("straightness", straightness(velocity, x0, ALONG))
    if not image:
        arrays["trajectories"] = _trajectories(velocity, x0[:256])
    return arrays


@dataclass(frozen=True)
class HeldOut:
    """The held-out points of all silos, as far as they tell: histograms along directions, mixed by the silos' weights,
    and how many `points` would vary as much."""

    directions: Tensor
    edges: Tensor
    counts: Tensor
    points: float

    def distance(self, generated: Tensor) -> float:
        """Sliced W2 of the samples that the edges were made from."""
        return sliced_wasserstein2_from_counts(generated, self.directions, self.edges, self.counts)

    def floor(self, generated: Tensor) -> float:
        """What as many samples would have that are as good as held-out points."""
        generator = seeds.generator(REFERENCE_SEED, "floor")
        return sliced_wasserstein2_floor(generated, self.directions, self.edges, self.counts, self.points, generator)


def held_out(generated: Tensor, federation: Federation) -> HeldOut | None:
    """Held-out points to compare samples with.

    None where a silo gives no histograms, because it holds nothing out or does not answer them.
    """
    directions = projection_directions(generated.shape[1], 64, seeds.generator(REFERENCE_SEED, "directions"))
    edges = projection_edges(generated, directions, min(64, len(generated)))
    replies = federation.ask(Histograms(directions, edges))
    if replies.failures:
        return None
    weight, counts = federation.weight, {name: reply.counts for name, reply in replies.answers.items()}  # type: ignore[attr-defined]
    mixed = sum(weight[name] * found.double() / found.sum(1, keepdim=True) for name, found in counts.items())
    total = sum(weight[name] for name in counts)
    spread = sum(weight[name] ** 2 / max(1, int(found[0].sum())) for name, found in counts.items())
    return HeldOut(directions, edges, torch.as_tensor(mixed), total**2 / spread)
