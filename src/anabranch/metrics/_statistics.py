"""What is kept of features: their number, mean and covariance."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy
import torch
from torch import Tensor

from anabranch.errors import DataError, UsageError
from anabranch.metrics._points import as_points
from anabranch.transport import square_root


class FeatureStatistics:
    """Count, mean and covariance (divided by n − 1) of features that come in parts and need not be kept, in float64.

    Parts are merged as Chan, Golub and LeVeque (1979) do, by means and scatters, so that no large numbers cancel.

    >>> parts = FeatureStatistics()
    >>> parts.update(torch.tensor([[0.0], [2.0]])).update(torch.tensor([[4.0]]))
    FeatureStatistics(3 points of dimension 1)
    >>> float(parts.mean), float(parts.covariance)
    (2.0, 4.0)
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean: Tensor | None = None
        self._scatter: Tensor | None = None
        self._rows: Tensor | None = None
        self._root: Tensor | None = None
        self._spectrum: Tensor | None = None

    @classmethod
    def of(cls, features: Tensor) -> FeatureStatistics:
        """Of features (n, d) that are all there."""
        return cls().update(features)

    def update(self, features: Tensor) -> FeatureStatistics:
        """Takes more features (n, d) in; gives itself."""
        points = as_points(features, "features")
        mean = points.mean(0)
        away = points - mean
        return self._merge(len(points), mean, away.T @ away, away)

    def merge(self, other: FeatureStatistics) -> FeatureStatistics:
        """Takes in what another has seen; gives itself."""
        return self._merge(other.count, other.mean, other._known(other._scatter), other._rows) if other.count else self

    def _merge(self, count: int, mean: Tensor, scatter: Tensor, rows: Tensor | None) -> FeatureStatistics:
        """`rows` (r, d) are such that rowsᵀ rows is the scatter; they are kept while they are few."""
        self._root = self._spectrum = None
        if self._mean is None or self._scatter is None:
            self.count, self._mean, self._scatter = count, mean.clone(), scatter.clone()
            self._rows = _few(rows)
            return self
        if mean.shape != self._mean.shape:
            raise UsageError(f"Features of {len(mean)} dimensions came after {len(self._mean)}; give one space.")
        mean, scatter = mean.to(self._mean.device), scatter.to(self._mean.device)
        total = self.count + count
        step = mean - self._mean
        between = self.count * count / total
        self._scatter += scatter + torch.outer(step, step) * between
        if self._rows is not None and rows is not None:
            self._rows = _few(torch.cat([self._rows, rows.to(mean.device), step[None] * between**0.5]))
        else:
            self._rows = None
        self._mean += step * (count / total)
        self.count = total
        return self

    @property
    def mean(self) -> Tensor:
        """μ (d,)."""
        return self._known(self._mean)

    @property
    def covariance(self) -> Tensor:
        """Σ (d, d), divided by n − 1; zero for a single point."""
        return self._known(self._scatter) / max(self.count - 1, 1)

    @property
    def factor(self) -> Tensor | None:
        """F (r, d) with Fᵀ F = Σ, where the points are few beside the dimensions: all else is quicker by it."""
        return None if self._rows is None else self._rows / max(self.count - 1, 1) ** 0.5

    @property
    def root(self) -> Tensor:
        """Σ^½ (d, d), symmetric; taken once, so that one reference meets many sets of samples at half the price."""
        if self._root is None:
            self._root = square_root(self.covariance)
        return self._root

    @property
    def has_root(self) -> bool:
        """Whether the root is at hand already."""
        return self._root is not None

    @property
    def spectrum(self) -> Tensor:
        """The eigenvalues of Σ (d,), none of them negative; taken once."""
        if self._spectrum is None:
            thin = self.factor
            values = torch.linalg.eigvalsh(self.covariance if thin is None else thin @ thin.T).clamp(min=0)
            self._spectrum = torch.cat([values.new_zeros(len(self.mean) - len(values)), values])
        return self._spectrum

    def to(self, device: torch.device | str) -> FeatureStatistics:
        """The same on another device, where distances are then taken; itself if it is there."""
        if self.mean.device == torch.device(device):
            return self
        rows = None if self._rows is None else self._rows.to(device)
        moved = FeatureStatistics()._merge(
            self.count, self.mean.to(device), self._known(self._scatter).to(device), rows
        )
        moved._root = None if self._root is None else self._root.to(device)
        moved._spectrum = None if self._spectrum is None else self._spectrum.to(device)
        return moved

    def _known(self, value: Tensor | None) -> Tensor:
        if value is None:
            raise DataError("No features were given, so there are no statistics. Give some with update first.")
        return value

    def save(self, path: str | Path) -> None:
        """As .npz with `mu`, `sigma` and `count`; other tools for FID read and write the first two."""
        with Path(path).open("wb") as file:
            numpy.savez(file, mu=self.mean.cpu().numpy(), sigma=self.covariance.cpu().numpy(), count=self.count)

    @classmethod
    def load(cls, path: str | Path, count: int | None = None) -> FeatureStatistics:
        """From such a file. Those of other tools do not hold the count; then it must be given."""
        try:
            # Opened here, since numpy leaves a file open that turns out to be none of its own.
            with Path(path).open("rb") as stream, numpy.load(stream, allow_pickle=False) as file:
                mean, covariance = (torch.from_numpy(file[name]).double() for name in ("mu", "sigma"))
                count = int(file["count"]) if "count" in file else count
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(f"'{path}' does not hold mu and sigma as a .npz file: {error}.") from error
        if count is None or count < 1:
            raise DataError(f"'{path}' does not say how many points it describes; give their count.")
        if mean.ndim != 1 or covariance.shape != (len(mean), len(mean)):
            raise DataError(
                f"'{path}' holds mu of shape {tuple(mean.shape)} and sigma of {tuple(covariance.shape)}; they must be"
                " (d,) and (d, d)."
            )
        if not bool(mean.isfinite().all() and covariance.isfinite().all()):
            raise DataError(f"'{path}' holds numbers that are not finite; make it again.")
        return cls()._merge(count, mean, covariance * (count - 1), None)

    def __repr__(self) -> str:
        return f"FeatureStatistics({self.count} points of dimension {0 if self._mean is None else len(self._mean)})"


def _few(rows: Tensor | None) -> Tensor | None:
    """The rows if they are at most half as many as the dimensions, so that they take less room than a scatter."""
    return rows if rows is not None and 2 * len(rows) <= rows.shape[1] else None
