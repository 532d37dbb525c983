"""Classifiers as named parameters: a body of layers, and a head that makes class scores of its features.

`body.0.weight`, `body.0.bias`, …, `head.weight`, `head.bias`: a weight with four sides is a convolution (then pooled),
one with two a linear layer; both end in a ReLU. So the parameters alone say how the network is computed. There is no
softmax: cross-entropy has it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from anabranch import seeds
from anabranch.errors import MessageError, UsageError
from anabranch.methods.personal._settings import FILTERS, HIDDEN, PersonalSettings

HEAD = ("head.weight", "head.bias")
KERNEL = 5  # sides of a convolution
PASS = 256  # rows whose features are computed at once


def initial_body(settings: PersonalSettings, dimension: int, seed: int) -> dict[str, Tensor]:
    """The body's first parameters, uniform on ±1/√(inputs), as torch's own layers begin."""
    filters, hidden = FILTERS[settings.network], settings.hidden or HIDDEN[settings.network]
    shapes: list[tuple[int, ...]] = []
    inputs, side = dimension, 0
    if filters:
        inputs, side = settings.channels, math.isqrt(dimension // settings.channels)
        if side * side * inputs != dimension or _pooled(side, len(filters)) < 1:
            raise UsageError(
                f"Points in {dimension} dimensions are no square images of {inputs} channels that are large enough for"
                " the network 'cnn'; set channels, or take the network 'mlp'."
            )
    for width in filters:
        shapes.append((width, inputs, KERNEL, KERNEL))
        inputs = width
    inputs *= _pooled(side, len(filters)) ** 2 if filters else 1
    for width in hidden:
        shapes.append((width, inputs))
        inputs = width
    generator = seeds.generator(seed, "body")
    return {
        f"body.{number}.{name}": tensor
        for number, shape in enumerate(shapes)
        for name, tensor in zip(("weight", "bias"), _uniform(shape, generator), strict=True)
    }


def initial_head(body: Mapping[str, Tensor], classes: int, seed: int) -> dict[str, Tensor]:
    """The head that every silo begins with: all derive the same one, so that it need not be sent."""
    width = len(body[f"body.{_depth(body) - 1}.weight"])
    return dict(zip(HEAD, _uniform((classes, width), seeds.generator(seed, "head")), strict=True))


def features(parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """What the body makes of points (n, d)."""
    for number in range(_depth(parameters)):
        x = _layer(parameters[f"body.{number}.weight"], parameters[f"body.{number}.bias"], x)
    return x


def scores(parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """One number for each point and class; the largest is the network's answer."""
    return functional.linear(features(parameters, x), parameters["head.weight"], parameters["head.bias"])


@torch.no_grad()
def all_features(parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The features of many points, without a graph, in passes of bounded memory."""
    return torch.cat([features(parameters, rows) for rows in torch.split(x, PASS)])


@dataclass(frozen=True)
class PointCost:
    """What one point costs in one pass: numbers held, and multiplications; and how many numbers a head has."""

    numbers: int
    work: int
    head: int


def cost_of_point(parameters: Mapping[str, Tensor], dimension: int, classes: int) -> PointCost:
    """An upper bound, to a small factor; parameters that are no network for points of this dimension are refused."""
    depth, numbers, work = _depth(parameters), dimension, 0
    names = {f"body.{number}.{name}" for number in range(depth) for name in ("weight", "bias")}
    if depth < 1 or parameters.keys() not in (names, {*names, *HEAD}):
        raise MessageError("Parameters arrived that are not those of a body, or of a body and a head.")
    if any(tensor.dtype != torch.float32 for tensor in parameters.values()):
        raise MessageError("Parameters arrived that are not of type float32.")
    shapes = {name: tensor.to("meta") for name, tensor in parameters.items()}  # shapes meet, nothing is computed
    x = torch.empty(1, dimension, device="meta")
    try:
        for number in range(depth):
            weight = shapes[f"body.{number}.weight"]
            x = _layer(weight, shapes[f"body.{number}.bias"], x)
            pixels = math.prod(2 * side + 1 for side in x.shape[2:])  # before the pool; 1 in a linear layer
            numbers, work = numbers + len(weight) * pixels, work + weight.numel() * pixels
        answer = functional.linear(x, *(shapes[name] for name in HEAD)) if HEAD[0] in shapes else x
    except (RuntimeError, ZeroDivisionError) as error:
        raise MessageError(f"Parameters arrived that do not fit points in {dimension} dimensions.") from error
    if x.ndim != 2 or x.shape[1] < 1:
        raise MessageError("A body arrived that does not end in features for a head.")
    if HEAD[0] in shapes and answer.shape != (1, classes):
        raise MessageError(f"A head arrived that does not tell {classes} classes apart.")
    return PointCost(numbers + classes, work + classes * x.shape[1], classes * (x.shape[1] + 1))


def _layer(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    if weight.ndim != 4:
        return functional.relu(functional.linear(x.flatten(1), weight, bias))
    if x.ndim == 2:
        side = math.isqrt(x.shape[1] // weight.shape[1])
        x = x.view(-1, weight.shape[1], side, side)
    # ReLU after the pool is the same as before it, at a quarter of the work.
    return functional.relu(functional.max_pool2d(functional.conv2d(x, weight, bias), 2))


def _depth(parameters: Mapping[str, Tensor]) -> int:
    return (len(parameters) - len(HEAD) * (HEAD[0] in parameters)) // 2


def _pooled(side: int, layers: int) -> int:
    """The side of an image after so many convolutions and pools."""
    for _ in range(layers):
        side = (side - KERNEL + 1) // 2
    return side


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    bound = 1 / math.sqrt(math.prod(shape[1:]))
    weight, bias = (torch.rand(size, generator=generator).mul_(2).sub_(1).mul_(bound) for size in (shape, shape[:1]))
    return weight, bias
