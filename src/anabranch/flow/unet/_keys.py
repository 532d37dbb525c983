"""Which of torchcfm's parameters is which of ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

from torch import Tensor

from anabranch.flow.unet._configuration import Configuration
from anabranch.flow.unet._unet import ImageUNet


@dataclass(frozen=True)
class Key:
    """Their parameter `theirs` is our parameter `ours`, or these rows of it.

    `last` says that theirs has a last axis of length one: they write a linear layer as a convolution of width one.
    """

    theirs: str
    ours: str
    rows: tuple[int, int] | None = None
    last: bool = False

    def part(self, parameter: Tensor) -> Tensor:
        """The part of our parameter that theirs is."""
        return parameter if self.rows is None else parameter[self.rows[0] : self.rows[1]]


def torchcfm_keys(network: ImageUNet) -> list[Key]:
    """Every parameter of `torchcfm.models.unet.UNetModelWrapper` with this network's configuration, in its order.

    They number blocks through all levels, ours are numbered level by level; theirs have a layer a block for shifts,
    ours has one for all. Everything else is a change of names.
    """
    edges = list(accumulate(network.shift_sizes, initial=0))
    walk = _Walk(network.configuration, {name for name, _ in network.named_parameters()}, iter(list(pairwise(edges))))
    return [
        *_layer("time_embed.0", "time.0"),
        *_layer("time_embed.2", "time.2"),
        *([Key("label_emb.weight", "embedding.tables.0.weight")] if network.sizes else []),
        *_layer("input_blocks.0.0", "stem"),
        *walk.down(),
        *walk.block("middle_block.0", "middle_first"),
        *_attention("middle_block.1", "middle_attention"),
        *walk.block("middle_block.2", "middle_second"),
        *walk.up(),
        *_layer("out.0", "norm"),
        *_layer("out.2", "head"),
    ]


@dataclass(frozen=True)
class _Walk:
    """Through the blocks in the order of use, which is that of their shifts."""

    configuration: Configuration
    names: set[str]
    shifts: Iterator[tuple[int, int]]

    def down(self) -> Iterator[Key]:
        place = 1
        for level in range(len(self.configuration.widths)):
            if level:
                yield from _layer(f"input_blocks.{place}.0.op", f"down.{level}.halving")
                place += 1
            for number in range(self.configuration.blocks):
                yield from self.block(f"input_blocks.{place}.0", f"down.{level}.blocks.{number}")
                if self.configuration.attends(level):
                    yield from _attention(f"input_blocks.{place}.1", f"down.{level}.attentions.{number}")
                place += 1

    def up(self) -> Iterator[Key]:
        place, attends, levels = 0, False, len(self.configuration.widths)
        for number in range(levels):
            if number:  # theirs doubles at the end of the level below, after its attention
                yield from _layer(f"output_blocks.{place - 1}.{1 + attends}.conv", f"up.{number}.doubling")
            attends = self.configuration.attends(levels - 1 - number)
            for index in range(self.configuration.blocks + 1):
                yield from self.block(f"output_blocks.{place}.0", f"up.{number}.blocks.{index}")
                if attends:
                    yield from _attention(f"output_blocks.{place}.1", f"up.{number}.attentions.{index}")
                place += 1

    def block(self, theirs: str, ours: str) -> Iterator[Key]:
        yield from _layer(f"{theirs}.in_layers.0", f"{ours}.first_norm")
        yield from _layer(f"{theirs}.in_layers.2", f"{ours}.first")
        yield from _layer(f"{theirs}.emb_layers.1", "shifts", next(self.shifts))
        yield from _layer(f"{theirs}.out_layers.0", f"{ours}.second_norm")
        yield from _layer(f"{theirs}.out_layers.3", f"{ours}.second")
        if f"{ours}.shortcut.weight" in self.names:
            yield from _layer(f"{theirs}.skip_connection", f"{ours}.shortcut")


def _attention(theirs: str, ours: str) -> Iterator[Key]:
    yield from _layer(f"{theirs}.norm", f"{ours}.norm")
    for name, own in (("qkv", "queries_keys_values"), ("proj_out", "output")):
        yield Key(f"{theirs}.{name}.weight", f"{ours}.{own}.weight", last=True)
        yield Key(f"{theirs}.{name}.bias", f"{ours}.{own}.bias")


def _layer(theirs: str, ours: str, rows: tuple[int, int] | None = None) -> Iterator[Key]:
    for name in ("weight", "bias"):
        yield Key(f"{theirs}.{name}", f"{ours}.{name}", rows)
