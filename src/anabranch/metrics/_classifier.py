"""A judge of attributes: a small network that says which attributes a sample shows, learned from real data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from anabranch.errors import DataError, UsageError
from anabranch.metrics._judge import Judge, build_judge
from anabranch.metrics._pixels import Shape
from anabranch.seeds import generator

_NOT_GIVEN = -1
_CHUNK = 2048
_SIZES, _SHAPE = "judge.sizes", "judge.shape"


@dataclass(frozen=True)
class AttributeClassifier:
    """Says which outcome of each attribute a sample shows. It judges a method, so it must owe nothing to one: train it
    on real data of *all* combinations, also of those that the method never sees, and look at its `accuracy` on held-out
    data first. No conformity can be measured more exactly than the judge itself is.

    >>> x = torch.tensor([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]]).repeat(20, 1)
    >>> judge = AttributeClassifier.fit(x, (x > 0).long(), epochs=40)
    >>> judge.predict(torch.tensor([[0.9, -1.2]])).tolist(), judge.features(x).shape
    ([[1, 0]], torch.Size([80, 128]))
    """

    module: Judge
    sizes: tuple[int, ...]
    shape: Shape | None = None

    @classmethod
    def fit(
        cls,
        x: Tensor,
        codes: Tensor,
        shape: Shape | None = None,
        sizes: tuple[int, ...] | None = None,
        seed: int = 0,
        epochs: int = 20,
        batch: int = 128,
        learning_rate: float = 3e-3,
        device: torch.device | str = "cpu",
        progress: Callable[[int, int], None] | None = None,
    ) -> AttributeClassifier:
        """From rows x (n, d) and codes (n, k), where −1 is an attribute that is not given. Of images, `shape`.

        `sizes` are the numbers of outcomes, by default as many as are seen. AdamW with a rate that rises, then falls to
        nothing; the loss is the sum of the attributes' cross-entropies. `progress` is told epochs.
        """
        x, codes, sizes = _checked(x, codes, shape, sizes)
        if epochs < 1 or batch < 1:
            raise UsageError(f"{epochs} epochs with batches of {batch} were asked for; both must be 1 or more.")
        module = build_judge(x.shape[1], sizes, shape, seed)
        if shape is None:
            module.centre, module.scale = x.mean(0), x.std(0, correction=0).clamp(min=1e-6)
        module.to(device).train()
        optimizer = torch.optim.AdamW(module.parameters(), lr=learning_rate, weight_decay=1e-2)
        steps = epochs * -(-len(x) // batch)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps)
        order = generator(seed, "judge", "order")
        for epoch in range(epochs):
            for index in torch.split(torch.randperm(len(x), generator=order), batch):
                index = index.to(x.device)
                loss = _loss(module(x[index].to(device)), codes[index].to(device))
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
            if progress is not None:
                progress(epoch + 1, epochs)
        return cls(module.eval(), sizes, shape)

    def predict(self, x: Tensor) -> Tensor:
        """The likeliest codes (n, k) of rows (n, d)."""
        with torch.no_grad():
            parts = [torch.stack([part.argmax(1) for part in self.module(rows)], dim=1) for rows in self._rows(x)]
        return torch.cat(parts).to(x.device)

    def features(self, x: Tensor) -> Tensor:
        """What the heads look at, (n, 128): for a Fréchet distance that is not FID but knows the data."""
        with torch.no_grad():
            return torch.cat([self.module.features(rows) for rows in self._rows(x)]).to(x.device)

    def accuracy(self, x: Tensor, codes: Tensor) -> Conformity:
        """The share of real samples judged right; this bounds what `conformity` can mean."""
        return conformity(self, x, codes)

    def _rows(self, x: Tensor) -> Iterator[Tensor]:
        dimension = len(self.module.get_buffer("centre"))
        if x.ndim != 2 or x.shape[1] != dimension or len(x) == 0:
            raise UsageError(f"Samples of shape {tuple(x.shape)} were given; this judge wants rows (n, {dimension}).")
        device = self.module.get_buffer("centre").device
        return (rows.to(device, torch.float32) for rows in torch.split(x, _CHUNK))

    def tensors(self) -> dict[str, Tensor]:
        """All of it as tensors by name, ready for safetensors; `of_tensors` takes them back."""
        facts = {_SIZES: torch.tensor(self.sizes), _SHAPE: torch.tensor(self.shape or (), dtype=torch.int64)}
        return {name: value.detach().cpu() for name, value in self.module.state_dict().items()} | facts

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], device: torch.device | str = "cpu") -> AttributeClassifier:
        """The judge that `tensors` described."""
        weights = dict(tensors)
        try:
            sizes, shape = tuple(weights.pop(_SIZES).tolist()), tuple(weights.pop(_SHAPE).tolist())
            dimension = len(weights["centre"])
            if shape and (len(shape) != 3 or prod(shape) != dimension or min(shape) < 1):
                raise ValueError(f"images of shape {shape} are no rows of {dimension} numbers")
            with torch.device("meta"):
                module = Judge(dimension, sizes, shape or None)
            module.load_state_dict(weights, assign=True)
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise DataError(f"These tensors are no judge of attributes: {str(error).splitlines()[0]}.") from error
        return cls(module.to(device).eval(), sizes, shape or None)

    def save(self, path: str | Path) -> None:
        """As a safetensors file."""
        from safetensors.torch import save

        Path(path).write_bytes(save(self.tensors()))

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str = "cpu") -> AttributeClassifier:
        """From a file that `save` wrote."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return cls.of_tensors(load_file(path), device)
        except (OSError, SafetensorError) as error:
            raise DataError(f"'{path}' cannot be read as a judge of attributes: {error}.") from error


@dataclass(frozen=True)
class Conformity:
    """The share of samples that show all attributes asked for, and for each attribute the share that shows it."""

    all_right: float
    each: tuple[float, ...]


def conformity(classifier: AttributeClassifier, samples: Tensor, wanted: Tensor) -> Conformity:
    """How often samples (n, d) show what was asked for: codes (n, k), or (k,) for all. −1 asks for nothing.

    An attribute that was never asked for has the share nan. Samples that are not finite show nothing.
    """
    wanted = wanted.expand(len(samples), -1).to(samples.device)
    if wanted.shape[1] != len(classifier.sizes):
        raise UsageError(f"Codes of {wanted.shape[1]} attributes were wanted; the judge knows {len(classifier.sizes)}.")
    asked = wanted != _NOT_GIVEN
    finite = samples.isfinite().all(1, keepdim=True)
    right = (classifier.predict(samples.nan_to_num(0.0, 0.0, 0.0)) == wanted) & finite
    each = (right & asked).sum(0).double() / asked.sum(0).double()
    return Conformity(float((right | ~asked).all(1).double().mean()), tuple(each.tolist()))


def _loss(scores: list[Tensor], codes: Tensor) -> Tensor:
    """The sum over attributes of the mean cross-entropy where the attribute is given."""
    total = scores[0].new_zeros(())
    for part, code in zip(scores, codes.T, strict=True):
        summed = F.cross_entropy(part, code, ignore_index=_NOT_GIVEN, reduction="sum")
        total = total + summed / (code != _NOT_GIVEN).sum().clamp(min=1)
    return total


def _checked(
    x: Tensor, codes: Tensor, shape: Shape | None, sizes: tuple[int, ...] | None
) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    if x.ndim != 2 or codes.ndim != 2 or len(x) != len(codes) or 0 in (*x.shape, *codes.shape):
        raise UsageError(
            f"Samples of shape {tuple(x.shape)} and codes of {tuple(codes.shape)} were given; give (n, d) and (n, k)."
        )
    if not bool(x.isfinite().all()):
        raise DataError("Samples hold numbers that are not finite; leave such samples out.")
    if shape is not None and (prod(shape) != x.shape[1] or min(shape[1:]) < 8):
        raise UsageError(f"Images of shape {shape} were given with rows of {x.shape[1]}; 8 × 8 is the smallest.")
    seen = tuple(int(most) + 1 for most in codes.max(0).values)
    sizes = seen if sizes is None else tuple(sizes)
    if len(sizes) != len(seen) or any(most > size for most, size in zip(seen, sizes, strict=True)):
        raise UsageError(f"Codes up to {seen} (excluded) were given, but the attributes' sizes are {sizes}.")
    if int(codes.min()) < _NOT_GIVEN or min(seen) < 1:
        raise DataError("Codes count from 0, and −1 is not given; every attribute needs to be given at least once.")
    return x.float(), codes.long(), sizes
