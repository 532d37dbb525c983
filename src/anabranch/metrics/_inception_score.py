"""Are images clear and varied? The Inception Score, for those who have the layer of classes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.errors import DataError, UsageError
from anabranch.metrics._points import as_points, same_space

_NO_CLASSES = (
    "The weights of 'anabranch data get inception' end at the 2048 features, without the layer of classes: for the"
    " Inception Score bring that layer's weights (ClassLayer.load), or probabilities by class_probabilities."
)


@dataclass(frozen=True)
class InceptionScore:
    """The mean over `splits`, and the `deviation` between them (divided by their number), as it is usually printed."""

    value: float
    deviation: float
    splits: int


def class_probabilities(features: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """p(y|x) (n, classes) = softmax(features weightᵀ + bias), in float64, of features (n, d) and weights (classes, d).

    The published score leaves the bias out, and takes all 1008 outputs of the network of 2015, of which eight mean
    nothing.

    >>> class_probabilities(torch.tensor([[0.0, 0.0]]), torch.eye(2)).tolist()
    [[0.5, 0.5]]
    """
    points, rows = same_space(features, weight, ("features", "weight"))
    scores = points @ rows.to(points.device).T
    if bias is not None:
        if bias.shape != (len(rows),):
            raise UsageError(f"The bias has shape {tuple(bias.shape)}; with {len(rows)} classes it is ({len(rows)},).")
        scores = scores + bias.to(scores)
    return scores.softmax(1)


def inception_score(probabilities: Tensor, generator: torch.Generator, splits: int = 10) -> InceptionScore:
    """exp(E KL(p(y|x) ‖ p(y))) of class probabilities p(y|x) (n, classes): from 1 to the number of classes.

    Taken in each of several parts, drawn at random, with the part's own p(y); then averaged. Parts in the order of the
    samples would have fewer classes each, where samples were made class by class. The score grows with the size of the
    parts and compares at equal ones only. It sees no real image: a set of one perfect image per class has the best.

    Salimans et al., "Improved techniques for training GANs" (2016), section 4.

    >>> from anabranch.seeds import generator
    >>> round(inception_score(torch.eye(10, dtype=torch.float64), generator(0), splits=1).value, 9)
    10.0
    """
    rows = as_points(probabilities, "probabilities")
    off = float((rows.sum(1) - 1).abs().max())
    if bool((rows < 0).any()) or off > 1e-3:
        raise DataError(
            f"Rows are no probabilities: the least value is {float(rows.min()):.3g}, and sums are up to {off:.3g} away"
            f" from 1. {_NO_CLASSES}"
        )
    if not 1 <= splits <= len(rows):
        raise UsageError(f"{splits} splits were asked for, of {len(rows)} samples; give from 1 to {len(rows)}.")
    order = torch.randperm(len(rows), generator=generator).to(rows.device)
    values = torch.stack([_score(rows[part]) for part in order.tensor_split(splits)])
    return InceptionScore(float(values.mean()), float(values.std(correction=0)), splits)


def _score(rows: Tensor) -> Tensor:
    """KL(p(y|x) ‖ p(y)) averages to H(p(y)) less the mean of H(p(y|x)); 0 log 0 is 0."""
    return (_entropy(rows.mean(0)) - _entropy(rows).mean()).exp()


def _entropy(rows: Tensor) -> Tensor:
    terms: Tensor = torch.special.xlogy(rows, rows)
    return -terms.sum(-1)
