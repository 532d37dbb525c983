"""How good is a composition? Known combinations beside those that no silo has seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anabranch import seeds
from anabranch.data.attributes import Coverage, corner_modes, corner_points
from anabranch.methods.dcfm import CompositionServer
from anabranch.methods.experts import Mixture
from anabranch.metrics import hit_rate, wasserstein2
from anabranch.runs._config import Config
from anabranch.runs._evaluate import REFERENCE_SEED, Evaluation, Rows, held_out

SIGMA = 0.2  # of the source "corners"
MOST_CELLS = 400  # combinations beyond which no picture is made
MOST_EVALUATIONS = 50  # of the midpoint rule, which is judged; more changes no figure

Sample = Callable[[Tensor, str], Tensor]


def evaluate_composition(config: Config, server: CompositionServer, shape: tuple[int, ...]) -> Evaluation:
    """Hits and W2 where the true distributions are known, else sliced W2 of known combinations to held-out samples.

    Samples of the whole attribute product are kept for a picture. Where silos tell no count at all, nothing is known of
    any combination, and no sample is judged.
    """
    rows, mixture = Rows(config), server.mixture()
    steps = min(MOST_EVALUATIONS, max(config.evaluation.nfe, default=MOST_EVALUATIONS))

    def sample(label: Tensor, name: str) -> Tensor:
        y = mixture.coverage.space.decode(label)
        generator = seeds.generator(REFERENCE_SEED, "composition", name)
        return mixture.sample(y, generator, steps, dimension=server.federation.dimension).x1.detach().cpu()

    known = bool(mixture.coverage.observed.any())
    if config.data.source == "corners":
        _judge_corners(config, rows, mixture, sample)
    elif known and (config.data.held_out or config.data.at_sites):
        generator = seeds.generator(REFERENCE_SEED, "known")
        drawn = torch.multinomial(mixture.coverage.total.double(), config.evaluation.points, True, generator=generator)
        generated = sample(drawn, "known")
        counted = held_out(generated, server.federation)
        if counted is not None:
            rows.add("sliced_w2_known", counted.distance(generated), solver="midpoint", evaluations=steps)
            rows.add("sliced_w2_floor", counted.floor(generated))
    rows.add_bytes(server.federation)
    return Evaluation(rows.rows, _grid(mixture, sample, shape) if known else {})


def _judge_corners(config: Config, rows: Rows, mixture: Mixture, sample: Sample) -> None:
    """Each corner against fresh points of its Gaussian; a hit lies within 3σ of the mode."""
    found: dict[str, list[float]] = {}
    coverage, count = mixture.coverage, config.evaluation.points
    for label in possible(coverage).tolist():
        labels = torch.full((count,), label)
        true = [corner_points(labels, seeds.generator(REFERENCE_SEED, name, label)).x for name in ("target", "floor")]
        generated = sample(labels, str(label))
        figures = {
            "hit": hit_rate(generated, corner_modes()[label], 3 * SIGMA),
            "w2": wasserstein2(generated, true[0]),
        }
        kind = "known" if coverage.observed[label] else "novel"
        for metric, value in figures.items():
            found.setdefault(f"{metric}_{kind}", []).append(value)
            rows.add(f"{metric}_combination", value, combination=coverage.space.describe(label))
        found.setdefault("w2_floor", []).append(wasserstein2(true[1], true[0]))
    for metric, values in found.items():
        rows.add(metric, sum(values) / len(values))


def possible(coverage: Coverage) -> Tensor:
    """Labels of the combinations whose outcomes have all been met: of others nothing is known."""
    met = torch.ones(len(coverage.space), dtype=torch.bool)
    codes = coverage.space.combinations()
    for place, column in enumerate(codes.T):
        seen = torch.stack([coverage.seen(silo)[place] for silo in coverage.counts]).any(0)
        met &= seen[column]
    return met.nonzero()[:, 0]


def _grid(mixture: Mixture, sample: Sample, shape: tuple[int, ...]) -> dict[str, np.ndarray[Any, Any]]:
    """Some samples of every combination, and what a picture of them must say."""
    coverage = mixture.coverage
    if len(coverage.space) > MOST_CELLS:
        return {}
    each = 64 if not shape else 4 if len(coverage.space) <= 50 else 1
    label = possible(coverage).repeat_interleave(each)
    return {
        "cells": sample(label, "picture").numpy(),
        "cell_labels": label.numpy(),
        "cell_space": np.array(coverage.space.to_json()),
        "cell_observed": coverage.observed.numpy(),
        "cell_determined": coverage.determined.numpy(),
        "cell_shape": np.array(shape, dtype=np.int64),
    }
