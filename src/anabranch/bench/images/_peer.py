"""The same training in the plain way: torchcfm's network in torch's default precision, silo after silo."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from anabranch import seeds
from anabranch.bench.images._silos import pixels_of
from anabranch.bench.images._work import Case, ImageWork
from anabranch.data import Pixels
from anabranch.flow import MovingAverage, network
from anabranch.flow.unet import ImageUNet, to_torchcfm

TORCHCFM = "torchcfm's network in float32"
NOT_THERE = "our network in float32: torchcfm cannot be imported"
TOO_NARROW = "our network in float32: torchcfm's has 32 groups of channels or none"
GROUPS = 32  # of its norms, whatever the channels


class PlainNetwork:
    """A float32 UNet called with rows, as v(x, t): `theirs` where torchcfm can be imported and has one, else ours.

    Both have the same configuration and start from the same weights; `words` says which it is.
    """

    def __init__(self, work: ImageWork) -> None:
        field = network("unet", work.dimension, 0, **work.network)
        assert isinstance(field, ImageUNet)
        found = _torchcfm_unet()
        narrow = any(width % GROUPS for width in field.configuration.widths)
        self.shape = work.images.shape
        self.theirs = found is not None and not narrow
        self.module: nn.Module = field if found is None or narrow else _built(found, field)
        self.words = TORCHCFM if self.theirs else TOO_NARROW if found is not None else NOT_THERE
        self.module.to(work.device)

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        if not self.theirs:
            rows: Tensor = self.module(x, t)
            return rows
        maps: Tensor = self.module(t, x.reshape(-1, *self.shape))
        return maps.reshape(x.shape)


class PlainTraining:
    """One network: a pass for each silo, its loss weighted by λ, then one step of torch's Adam, clipped at 1.

    Images are bytes on the device, drawn and mirrored there as ours are, and the moving average is ours, so that they
    make no difference: the loop is the best of its kind. Pairs are independent.
    """

    def __init__(self, work: ImageWork, case: Case) -> None:
        self.network = PlainNetwork(work)
        self.network.module.train()
        self.holders: list[Pixels] = list(pixels_of(work, case).values())
        self.batch = case.batch
        self.leaves = dict(self.network.module.named_parameters())
        self.optimizer = torch.optim.Adam(self.leaves.values(), lr=2e-4)
        self.average = MovingAverage(self.leaves, 0.9999)
        self.generator = seeds.generator(0, "bench", "plain", device=work.device)

    def step(self) -> None:
        """One round over all silos."""
        self.optimizer.zero_grad()
        for held in self.holders:
            x_t, u_t, t = self._example(held)
            loss = (self.network(x_t, t) - u_t).square().mean() / len(self.holders)
            loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.leaves.values(), 1.0)
        self.optimizer.step()
        self.average.update(self.leaves)

    def _example(self, held: Pixels) -> tuple[Tensor, Tensor, Tensor]:
        """Points between noise and images, their velocities, and the times."""
        device, generator = self.generator.device, self.generator
        index = torch.randint(len(held), (self.batch,), generator=generator, device=device)
        x1 = held.at(index, generator)
        x0 = torch.randn(x1.shape, generator=generator, device=device)
        t = torch.rand(self.batch, generator=generator, device=device)
        return x0 + t[:, None] * (x1 - x0), x1 - x0, t


@torch.no_grad()
def plain_sample(field: PlainNetwork, x0: Tensor, evaluations: int) -> Tensor:
    """Euler steps in a plain loop."""
    x, h = x0, 1 / evaluations
    for number in range(evaluations):
        x = x + h * field(x, torch.full((len(x),), number * h, device=x.device))
    return x


def _torchcfm_unet() -> Callable[..., nn.Module] | None:
    try:
        from torchcfm.models.unet import UNetModel
    except ImportError:
        return None
    found: Callable[..., nn.Module] = UNetModel
    return found


def _built(unet: Callable[..., nn.Module], field: ImageUNet) -> nn.Module:
    """Their network of our network's configuration, with its weights."""
    own = field.configuration
    theirs = unet(
        dim=tuple(own.shape),
        num_channels=own.channels,
        num_res_blocks=own.blocks,
        channel_mult=list(own.multipliers),
        num_head_channels=own.head_channels if max(own.widths) > own.head_channels else -1,  # −1: one head
        attention_resolutions=",".join(map(str, own.attention)),
        dropout=own.dropout,
    )
    theirs.load_state_dict(to_torchcfm(field))
    return theirs
