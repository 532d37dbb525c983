"""Training DDM's learned router: whose point is this? The server needs no data for it, only the experts' samples."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from anabranch import seeds
from anabranch.data.attributes import NULL, Coverage
from anabranch.flow import LinearPath, integrate
from anabranch.flow.conditioning import Field, conditioned
from anabranch.methods.experts._routing import Router


def samples_of_experts(
    experts: Mapping[str, Field], coverage: Coverage, count: int, nfe: int, x0: Tensor, generator: torch.Generator
) -> list[Tensor]:
    """`count` samples of each expert, of the combinations that it holds, as often as it holds them.

    An expert whose silo tells no count is asked for samples without any attribute: nobody knows which it has met.
    `x0` (count, d) says where and in which type of number; its values are the noise that all start from.
    """
    codes = coverage.space.combinations().to(x0.device)
    found = []
    for silo, field in experts.items():
        share = coverage.counts[silo].to(generator.device, torch.float64)
        y = codes.new_full((count, coverage.space.k), NULL)
        if bool(share.any()):
            y = codes[torch.multinomial(share, count, replacement=True, generator=generator).to(x0.device)]
        found.append(integrate(conditioned(field, y), x0, nfe, "midpoint").x1)
    return found


def train_router(samples: list[Tensor], steps: int, batch: int, seed: int, rate: float = 1e-3) -> Router:
    """A classifier p(e | x_t, t) of noised samples, every expert as often as the others (McAllister et al. 2025)."""
    first = samples[0]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seeds.derive(seed, "router"))
        router = Router(first.shape[1], len(samples)).to(first)
    optimizer = torch.optim.Adam(router.parameters(), lr=rate)
    x, owner = torch.cat(samples), torch.arange(len(samples)).repeat_interleave(len(first)).to(first.device)
    generator = torch.Generator(first.device).manual_seed(seeds.derive(seed, "router", "batches"))
    for _ in range(steps):
        index = torch.randint(len(x), (batch,), generator=generator, device=first.device)
        noise = torch.randn(batch, x.shape[1], generator=generator, device=first.device, dtype=x.dtype)
        t = torch.rand(batch, generator=generator, device=first.device, dtype=x.dtype)
        logits = router(LinearPath().sample(noise, x[index], t).x_t, t)
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits, owner[index]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return router.requires_grad_(False)
