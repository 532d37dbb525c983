"""A Gaussian mixture whose attributes, velocities and scores are known in closed form."""

from dataclasses import dataclass

import pytest
import torch

from anabranch.flow.conditioning import LinearSchedule, Schedule


@dataclass(frozen=True)
class Mixture:
    """Components N(mean, diag(deviation²)) with attributes: weight (m,), mean and deviation (m, d), code (m, k)."""

    weight: torch.Tensor
    mean: torch.Tensor
    deviation: torch.Tensor
    code: torch.Tensor
    schedule: Schedule

    def log_parts(self, x, t, y):
        """log of weight · N(x_t; component) for the components that agree with y, −∞ for the others: (n, m)."""
        at = self.schedule.at(t.to(x.dtype).expand(len(x))[:, None, None])
        variance = (at.alpha * self.deviation) ** 2 + at.sigma**2
        exponent = (x[:, None] - at.alpha * self.mean) ** 2 / variance + variance.log()
        agrees = ((y[:, None] == self.code) | (y[:, None] < 0)).all(dim=2)
        weight = torch.where(agrees, self.weight, 0)
        return (weight / weight.sum(dim=1, keepdim=True)).log() - exponent.sum(dim=2) / 2

    def velocity(self, x, t, y):
        """v(x, t, y) = α' E[x_1 | x_t, y] + σ' E[ε | x_t, y]."""
        at = self.schedule.at(t.to(x.dtype).expand(len(x))[:, None, None])
        gap = (x[:, None] - at.alpha * self.mean) / ((at.alpha * self.deviation) ** 2 + at.sigma**2)
        data = self.mean + at.alpha * self.deviation**2 * gap
        each = at.alpha_rate * data + at.sigma_rate * at.sigma * gap
        return (self.log_parts(x, t, y).softmax(dim=1)[:, :, None] * each).sum(dim=1)

    def score(self, x, t, y):
        """∇ log p_t(x | y), by differentiating the density."""
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.log_parts(x, t, y).logsumexp(dim=1).sum(), x)
        return slope


def _build(sizes=(3, 2), schedule=None, missing=()):
    """Attribute i moves and widens coordinate i alone, and the attributes are independent, unless some are missing."""
    schedule = schedule or LinearSchedule()
    code = torch.cartesian_prod(*(torch.arange(size) for size in sizes)).reshape(-1, len(sizes))
    code = torch.stack([row for row in code if tuple(row.tolist()) not in missing])
    weight = (1.0 + code).double().prod(dim=1)
    mean = 1.5 * code - 1.0 + 0.25 * torch.arange(len(sizes))
    return Mixture(weight / weight.sum(), mean.double(), 0.3 + 0.2 * code.double(), code, schedule)


@pytest.fixture
def mixture():
    return _build
