"""What a silo holds while it trains an expert, built from settings and an attribute space alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from anabranch import seeds
from anabranch.data.attributes import AttributeSpace
from anabranch.errors import AnabranchError, MessageError, RefusedError, unknown
from anabranch.federation import STEP, Federation, Silo
from anabranch.flow import (
    RowCost,
    attempt,
    compile_in_place,
    has_bfloat16,
    is_compiled,
    network,
    networks_with,
    price_of_row,
)
from anabranch.flow.conditioning import AdditiveField, Field
from anabranch.methods.experts._settings import ExpertSettings
from anabranch.methods.experts._training import Learner

STATE = "experts"  # where a silo's own learner lies in its state

_OF_POINTS = ("hidden", "layers", "embedding", "activation")  # what networks of the two kinds are told
_OF_IMAGES = ("shape", "channels", "patch", "multipliers", "center", "spread")


@dataclass
class ExpertHalf:
    """A silo's samples with their attributes, and the network of its expert without parameters."""

    settings: ExpertSettings
    space: AttributeSpace
    x: Tensor
    codes: Tensor
    network: nn.Module

    def field(self, parameters: Mapping[str, Tensor]) -> Field:
        """The network with these parameters."""
        return bind(self.network, parameters, self.settings)


def settings_to_json(settings: ExpertSettings) -> str:
    """For the message that hands settings out."""
    return json.dumps(asdict(settings))


def settings_from_json(text: str) -> ExpertSettings:
    """Settings that came by message; whatever is not one is refused."""
    try:
        values: Any = json.loads(text)
        if not isinstance(values, dict):
            raise TypeError
        usual = asdict(ExpertSettings())
        for name in ("shape", "multipliers"):
            values[name] = tuple(int(number) for number in values.get(name, usual[name]))
        for name, default in usual.items():  # a record does not look at the types of its fields
            if not isinstance(values.get(name, default), (int, float) if isinstance(default, float) else type(default)):
                raise TypeError
        return ExpertSettings(**values)
    except AnabranchError:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        raise MessageError(f"Settings arrived that cannot be read ({type(error).__name__}).") from error


def expert_network(
    settings: ExpertSettings, dimension: int, sizes: tuple[int, ...], seed: int = 0, name: str = ""
) -> nn.Module:
    """The network of an expert, or another one of the same size."""
    name = name or settings.network
    points, images = (networks_with("sizes", *options) for options in (_OF_POINTS, _OF_IMAGES))
    if name not in points and name not in images:
        raise unknown("network for attributes", name, {*points, *images})
    of_images = name in images and (name not in points or name.endswith("unet"))
    options = {option: getattr(settings, option) for option in (_OF_IMAGES if of_images else _OF_POINTS)}
    return network(name, dimension, seed, sizes=sizes, **options).to(settings.dtype)


_SHARED: dict[tuple[object, ...], nn.Module] = {}


def shared_network(
    settings: ExpertSettings, dimension: int, sizes: tuple[int, ...], device: torch.device, name: str = ""
) -> nn.Module:
    """A network whose own parameters nobody uses: one for all that bind theirs to it."""
    sides = (settings.hidden, settings.layers, settings.embedding, settings.activation)
    kind = (name or settings.network, *sides, settings.shape, settings.center, settings.spread)
    size = (settings.channels, settings.multipliers, settings.patch)
    key = (*kind, *size, settings.dtype, settings.compile, dimension, sizes, device)
    if key not in _SHARED:
        _SHARED[key] = expert_network(settings, dimension, sizes, name=name).to(device)
        if compiles(settings, device):
            compile_in_place(_SHARED[key], channels_last=True)
    return _SHARED[key]


def compiles(settings: ExpertSettings, device: torch.device) -> bool:
    """Whether networks are compiled there: where asked for, for images, and on a GPU; elsewhere it does not pay."""
    return settings.compile and settings.network.endswith("unet") and device.type == "cuda"


def bind(module: nn.Module, parameters: Mapping[str, Tensor], settings: ExpertSettings) -> Field:
    """The field of a network with these parameters, in the precision of the settings."""
    kind = BoundTerms if isinstance(module, AdditiveField) else Bound
    half = computes_in_half(settings, next(iter(parameters.values())).device)
    return kind(module, dict(parameters), half)


@dataclass(frozen=True)
class Bound:
    """A network with parameters of its own; in half precision if `half`."""

    module: nn.Module
    parameters: dict[str, Tensor]
    half: bool

    def __call__(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        return self._evaluated(x, t, y)

    def _evaluated(self, x: Tensor, t: Tensor, y: Tensor, *arguments: object) -> Tensor:
        # All in half precision, and not by autocast, which would normalise in float32: three times the traffic.
        own = {name: tensor.to(torch.bfloat16) for name, tensor in self.parameters.items()} if self.half else None
        exact = x.to(next(iter(self.parameters.values())).dtype)
        if is_compiled(self.module):  # once for any number of rows, and for one time or many
            exact, t, y = (_any_number(rows) for rows in (exact, t.expand(len(x)), y))
        given = (exact, t, y, *arguments)
        value: Tensor = attempt(
            self.module, lambda: functional_call(self.module, own or self.parameters, given, tie_weights=False)
        )
        return value.to(x.dtype)


def _any_number(rows: Tensor) -> Tensor:
    """The same rows, of which the compiler is told that there may be any number."""
    same = rows.contiguous().view_as(rows)
    torch._dynamo.maybe_mark_dynamic(same, 0)
    return same


class BoundTerms(Bound):
    """The same of an additive network, whose terms stay apart until they are summed."""

    def parts(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """As in `AdditiveField`."""
        return self._evaluated(x, t, y, True)

    def __call__(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        return self.parts(x, t, y).sum(dim=0)


def computes_in_half(settings: ExpertSettings, device: torch.device) -> bool:
    """Whether passes are computed in bfloat16: where asked for, for images, and on a GPU that can."""
    wanted = settings.precision == "bfloat16" and settings.network.endswith("unet")
    return wanted and has_bfloat16(device)


def precision_warnings(settings: ExpertSettings, federation: Federation) -> list[str]:
    """What will not be computed as the settings say. Nobody here knows of silos that are elsewhere or no more there."""
    if settings.precision != "bfloat16" or not hasattr(getattr(federation, "engine", None), "device"):
        return []
    if computes_in_half(settings, federation.device):
        return []
    place = "this GPU" if federation.device.type == "cuda" else "this CPU"
    where = place if settings.network.endswith("unet") else f"a network of points ({settings.network})"
    return [f"experts.precision is 'bfloat16', which {where} does not compute in; experts are computed in float32."]


def build(silo: Silo, settings: ExpertSettings, space: AttributeSpace) -> ExpertHalf:
    """The half that these settings describe; samples that do not fit the space are refused, with the reason."""
    label = own_space(silo, space).recode(silo.data.label.cpu(), space)
    silo.affords("a network of this size", 6 * least_parameters(settings, space.sizes))  # before it is built
    cost = cost_of_row(settings, silo.data.x.shape[1], space.sizes)
    rows = settings.batch * (space.k + 2)
    silo.affords("a training step with these settings", cost.numbers * rows + 6 * cost.parameters, 3 * cost.work * rows)
    x = silo.data.x.to(settings.dtype)
    empty = shared_network(settings, x.shape[1], space.sizes, x.device)
    return ExpertHalf(settings, space, x, space.decode(label).to(x.device), empty)


def own_space(silo: Silo, space: AttributeSpace | None) -> AttributeSpace:
    """The space that the silo's labels count in: its own, or else the one that it was told."""
    if silo.space is not None:
        return silo.space
    if space is None or not silo.labelled:
        raise RefusedError(
            f"Silo '{silo.name}' holds samples without attributes; name the arrays that hold them, or in Python say"
            " which its labels stand for: Silo(name, points, label, space=space)."
        )
    space.check_labels(silo.data.label, f"Silo '{silo.name}'")
    return space


def least_parameters(settings: ExpertSettings, sizes: tuple[int, ...]) -> int:
    """A lower bound on how many parameters the network has, found without building it."""
    if settings.network.endswith("unet"):
        widest, lowest = settings.channels * max(settings.multipliers), settings.channels * settings.multipliers[-1]
        return 9 * max(widest**2, 4 * lowest**2)  # of a level's convolution, and of those of the lowest
    return (settings.layers - 1) * settings.hidden**2 + sum(sizes) * settings.embedding


@cache
def cost_of_row(settings: ExpertSettings, dimension: int, sizes: tuple[int, ...]) -> RowCost:
    """What a row costs in one pass of an expert; finding out costs no more than building its network once."""
    x, y = torch.zeros(1, dimension, dtype=settings.dtype), torch.zeros(1, len(sizes), dtype=torch.long)
    found = price_of_row(expert_network(settings, dimension, sizes), x, torch.zeros(1), y)
    return replace(found, work=found.work + STEP // 2**10)


def half_of(silo: Silo) -> ExpertHalf:
    """The silo's half; a question before `Prepare` is refused."""
    half = silo.cache.get(STATE)
    if not isinstance(half, ExpertHalf):
        raise RefusedError(f"Silo '{silo.name}' was asked before it was told the settings.")
    return half


def start(silo: Silo, half: ExpertHalf) -> dict[str, Tensor]:
    """The parameters that the silo's expert begins with: every silo's own."""
    module = expert_network(half.settings, half.x.shape[1], half.space.sizes, seeds.derive(silo.seed, silo.name))
    return {name: p.detach().to(half.x.device) for name, p in module.named_parameters()}


def learner_of(silo: Silo, half: ExpertHalf, of: int) -> Learner:
    """The silo's learner as it stands, or a fresh one."""
    begun = f"{STATE}/flow/steps" in silo.state
    learner = Learner(expert_of(silo) if begun else start(silo, half), half.settings.rule(of), half.settings.average)
    if begun:
        learner.load(STATE, silo.state)
    return learner


def expert_of(silo: Silo) -> dict[str, Tensor]:
    """The averaged parameters of the silo's expert; refused while there is none."""
    start = f"{STATE}/average/average."
    found = {name.removeprefix(start): t for name, t in silo.state.items() if name.startswith(start)}
    if not found:
        raise RefusedError(f"Silo '{silo.name}' has trained no expert yet.")
    return found
