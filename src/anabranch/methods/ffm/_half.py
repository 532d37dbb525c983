"""What a silo holds while it takes part in training a flow, built from settings alone."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

from anabranch import seeds
from anabranch.coupling import (
    BalancedPotential,
    Coupling,
    EntropicPotential,
    GlobalPotential,
    Pairs,
    PotentialCoupling,
    Precise,
    Source,
)
from anabranch.data import Cloud, Pixels, Samples, shape
from anabranch.errors import MessageError, RefusedError
from anabranch.federation import STEP, Silo
from anabranch.flow import Path, PathSample, has_bfloat16, network, path, price_of_row, times_at
from anabranch.flow.conditioning import NULL
from anabranch.methods.ffm._messages import Prepare
from anabranch.methods.ffm._passes import RecordedPass, shared_pass, weighted_error
from anabranch.methods.ffm._rounding import rounded
from anabranch.methods.ffm._settings import COUPLINGS, IMAGE_NETWORKS, POTENTIAL_COUPLINGS, FlowMatching
from anabranch.methods.ffm._speed import compile_flow, layout, records

_LAYER = 2**12  # numbers that a layer costs, however narrow
_SWEEPS = 2000  # over a matrix of costs, at most: Sinkhorn's iterations


@dataclass
class FlowHalf:
    """A silo's points in the run's precision, networks, source, path and coupling.

    `coupling` is None until semi-discrete pairs are assigned.
    """

    settings: FlowMatching
    weight: float
    data: Samples
    source: Source
    path: Path
    field: nn.Module
    potential: nn.Module | None
    coupling: Coupling | None

    @property
    def device(self) -> torch.device:
        """Where the silo's points are, and all that is computed with them."""
        return self.data.device

    def draw(self, silo: Silo, generator: torch.Generator, step: int = 0, at: int | None = None) -> Pairs:
        """One batch of pairs, of this round or `at` another."""
        if self.coupling is None:
            raise RefusedError(f"Silo '{silo.name}' has no pairs yet: noises must be assigned before training.")
        silo.rests_on(min(self.settings.flow.batch, len(silo)))
        shared = silo.shared_generator("pool", step, at=at)
        return self.coupling.draw(self.data, self.source, self.settings.flow.batch, generator, shared)

    def velocity(self, x: Tensor, *told: Tensor) -> Tensor:
        """v(x, t), or v(x, t, y), of the field as it stands, in the precision of the settings."""
        return evaluated(self.field, self.settings, x, *told)

    def descent(self, sample: PathSample, weights: Tensor, together: bool = False) -> tuple[Tensor, Sequence[Tensor]]:
        """Σ_n w_n ‖v(x_n, t_n) − u_n‖² and its gradient in each parameter of the field, by one pass.

        That of all silos `together` may be recorded; silos that answer alone may do so at the same time.
        """
        named = named_parameters(self.field)
        if together and records(self.field, self.settings, self.device):
            own = {name: parameter.detach() for name, parameter in named.items()}
            dtype = torch.bfloat16 if computes_in_half(self.settings, self.device) else self.settings.flow.dtype
            key = (self.settings, self.data.dimension, self.device)
            recorded = shared_pass(key, lambda: RecordedPass(self.field, own, dtype, sample))
            if recorded.fits(sample):
                return recorded(list(own.values()), sample, weights)
        value = weighted_error(self.velocity(*sample.inputs), sample.u_t, weights)
        return value.detach(), torch.autograd.grad(value, list(named.values()))

    def dropout(self, *names: str | int) -> AbstractContextManager[None]:
        """Within, dropout draws numbers that follow from the run's seed and these names, whatever was drawn before."""
        used = self.settings.flow.network in IMAGE_NETWORKS and self.settings.images.dropout > 0
        return _seeded(seeds.derive(0, "dropout", *names), self.device) if used else nullcontext()

    def example(self, silo: Silo, step: int = 0) -> PathSample:
        """One batch: pairs, times, and the points between."""
        generator = silo.generator("batch", step, device=self.device)
        return self.between(self.draw(silo, generator, step), generator, silo.smallest_group)

    def between(self, pairs: Pairs, generator: torch.Generator, least: int = 1) -> PathSample:
        """The pairs at random times; `least` as in `told`."""
        times = self.times(len(pairs), [generator]).to(pairs.x1.device)
        sample = self.path.sample(pairs.x0, pairs.x1, times, generator)
        return replace(sample, y=self.told(pairs.label, [generator], [least]))

    def times(self, size: int, generators: Sequence[torch.Generator]) -> Tensor:
        """Times of so many pairs by each of the generators, as flow.times says."""
        chances = [torch.rand(size, generator=generator, device=generator.device) for generator in generators]
        return times_at(torch.cat(chances), self.settings.flow.times)

    def told(self, labels: Tensor, generators: Sequence[torch.Generator], least: Sequence[int]) -> Tensor | None:
        """What the flow is told of points with these labels (n,): codes (n, 1), NULL where they are withheld; None for
        one that knows no classes.

        The points are those of one silo after the other, which has a generator, and the `least` number of points that
        an answer may rest on: a class that a batch shows fewer of is withheld, since its row of the network's table
        would get the gradient of these alone.
        """
        classes = self.settings.flow.classes
        if not classes:
            return None
        parts = torch.chunk(labels.long().to(self.device), len(generators))
        chances = [torch.rand(len(own), generator=g, device=g.device) for own, g in zip(parts, generators, strict=True)]
        codes = [
            torch.where(chance.to(self.device) < self.settings.flow.withheld, NULL, own)
            for chance, own in zip(chances, parts, strict=True)
        ]
        often = [_often(own, classes, count) for own, count in zip(codes, least, strict=True)]
        return torch.cat(often).unsqueeze(1)


def _often(codes: Tensor, classes: int, least: int) -> Tensor:
    """The codes (n,), without those that fewer than `least` points have."""
    if least <= 1:
        return codes
    counts = codes.new_zeros(classes + 1).index_add_(0, codes + 1, torch.ones_like(codes))
    return torch.where(counts[codes + 1] < least, NULL, codes)


def build(silo: Silo, question: Prepare) -> FlowHalf:
    """The half that these settings describe, with a potential that the silo may have kept from before a restart."""
    settings = FlowMatching.from_json(question.settings)
    flow, dimension = settings.flow, silo.data.dimension
    check_means(silo, settings, dimension, question.weight)
    wanted = tuple(settings.images.shape)
    if isinstance(silo.data, Pixels) and wanted and silo.data.shape != wanted:
        raise RefusedError(
            f"The run is for images of {' x '.join(map(str, wanted))} (colours, height, width), and those of silo"
            f" '{silo.name}' are {' x '.join(map(str, silo.data.shape))}."
        )
    check_classes(silo, flow.classes)
    check_fixed(silo, settings)
    source: Source = Cloud(question.source) if question.source is not None else shape(flow.source, dimension)
    if flow.dtype != torch.float32:
        source = Precise(source, flow.dtype)
    device = silo.device
    data = silo.data.cast(flow.dtype).to(device)  # labels too
    field = empty_network(settings, dimension, device)
    compile_flow(field, settings, device)
    potential = potential_network(settings, dimension, device=device)
    kept = {name.removeprefix("potential/"): t for name, t in silo.state.items() if name.startswith("potential/")}
    if potential is not None and kept:
        load_parameters(potential, kept)
    coupling: Coupling | None = None
    if potential is not None:
        coupling = potential_coupling(settings, question.weight, potential)
    elif settings.coupling.name in COUPLINGS:
        chosen = settings.coupling_on(device.type == "cuda")
        coupling = COUPLINGS[chosen.name](chosen, question.weight)
    return FlowHalf(settings, question.weight, data, source, path(flow.path, flow.sigma), field, potential, coupling)


def check_fixed(silo: Silo, settings: FlowMatching) -> None:
    """Refuses semi-discrete pairs of images that are another at every draw: noises are assigned to them as they lie."""
    data = silo.data
    if settings.keeps_state_in_silos and isinstance(data, Pixels) and (data.flip == "random" or data.crop < 1):
        how = "mirrored at random" if data.flip == "random" else "cropped at random"
        raise RefusedError(
            f"Images of silo '{silo.name}' are {how} when they are drawn, and semi-discrete OT assigns noises to images"
            " as they lie. Set data.flip to 'points' or 'none' and data.crop to 1, or take another method."
        )


def check_classes(silo: Silo, classes: int) -> None:
    """Refuses to tell a flow labels that the silo does not have, or that are none of these classes."""
    if not classes:
        return
    if not silo.labelled:
        raise RefusedError(f"The flow is to be told classes, and the points of silo '{silo.name}' have no labels.")
    if silo.own_classes:
        raise RefusedError(
            f"The flow is to be told classes, and silo '{silo.name}' has counted those of its samples itself, so that"
            " their numbers may mean others elsewhere; give it an archive (.npz) with a label that all silos agreed on."
        )
    label = silo.data.label
    if label.is_floating_point() or bool(((label < 0) | (label >= classes)).any()):
        raise RefusedError(
            f"The flow is to be told {classes} classes, and silo '{silo.name}' has labels outside of 0 to"
            f" {classes - 1}."
        )


def empty_network(settings: FlowMatching, dimension: int, device: torch.device) -> nn.Module:
    """The velocity's network without numbers of its own, which take as much memory as those that every question brings.

    A network of images is built once for all silos of a process and copied, since drawing its first numbers takes long.
    """
    if settings.flow.network not in IMAGE_NETWORKS:
        return _emptied(flow_network(settings, dimension, device=device))
    model = _empty_model(settings, dimension, device)
    return copy.deepcopy(model, {id(p): nn.Parameter(p.detach()) for p in model.parameters()})


@lru_cache(maxsize=2)
def _empty_model(settings: FlowMatching, dimension: int, device: torch.device) -> nn.Module:
    return _emptied(flow_network(settings, dimension, device=device))


def _emptied(module: nn.Module) -> nn.Module:
    """The module with zeros that lie in one place of memory; they can be read, and must not be written to."""
    nothing = next(module.parameters()).detach().new_zeros(())
    for parameter in module.parameters():
        parameter.data = nothing.expand(parameter.shape)
    return module


def check_means(silo: Silo, settings: FlowMatching, dimension: int, weight: float) -> None:
    """Refuses settings that are beyond the silo's means, before anything is built."""
    silo.affords("a network of this size", 6 * settings.least_parameters)
    cost = cost_of_step(settings, dimension, weight)
    silo.affords("a training step with these settings", cost.numbers, cost.work)


@dataclass(frozen=True)
class StepCost:
    """What a step costs at most: numbers held at once, and multiplications."""

    numbers: int
    work: int


def cost_of_step(settings: FlowMatching, dimension: int, weight: float) -> StepCost:
    """An upper bound, to a small factor, for one step of the flow or of its potential."""
    flow, coupling, potential = settings.flow, settings.coupling, settings.potential
    if IMAGE_NETWORKS.intersection((flow.network, potential.network)):
        return cost_of_images(settings, dimension)
    size, layers, hidden, pool, repeats = flow.batch, flow.layers, flow.hidden, 0, 1
    if coupling.name in POTENTIAL_COUPLINGS:  # the larger of two networks stands for both
        size, layers, hidden = (max(getattr(s, n) for s in (flow, potential)) for n in ("batch", "layers", "hidden"))
        pool = max(0, coupling.candidates)
        repeats += max(0, coupling.descent_steps) if coupling.transform == "descent" else 0
    if coupling.name == "balanced":  # the pool is 1/λ batches at most; less than a millionth of all is nobody's share
        pool = math.ceil(size * min(1 / max(weight, 1e-6), coupling.pool or math.inf))
    elif coupling.name == "minibatch":
        pool = size
    network = layers * (hidden * (hidden + dimension) + _LAYER)
    rows = size + pool
    numbers = network + rows * (layers * hidden + dimension) + size * pool
    return StepCost(numbers, STEP + repeats * rows * network + size * pool * (size + dimension + _SWEEPS))


@cache
def cost_of_images(settings: FlowMatching, dimension: int) -> StepCost:
    """The same for networks of images, each counted once."""
    flow, coupling, potential = settings.flow, settings.coupling, settings.potential
    x, t = torch.zeros(1, dimension, dtype=flow.dtype), torch.zeros(1, dtype=flow.dtype)
    found = price_of_row(empty_network(settings, dimension, torch.device("cpu")), x, t)
    rows = -(-flow.batch // flow.passes)
    numbers, work = 6 * found.parameters + rows * found.numbers, 3 * flow.batch * found.work
    network = potential_network(settings, dimension)
    if network is not None:
        row = price_of_row(network, x)
        passes = 3 + (2 * coupling.descent_steps if coupling.transform == "descent" else 0)
        rows = potential.batch + max(0, coupling.candidates)
        numbers, work = numbers + rows * row.numbers, work + passes * rows * row.work
    pairs = flow.batch * max(flow.batch, coupling.candidates)
    return StepCost(numbers + pairs, STEP + work + pairs * (flow.batch + dimension + _SWEEPS))


def half_of(silo: Silo) -> FlowHalf:
    """The silo's half of the method; a question before `Prepare` is refused."""
    half = silo.cache.get("ffm")
    if not isinstance(half, FlowHalf):
        raise RefusedError(f"Silo '{silo.name}' was asked before it was told the settings.")
    return half


def flow_network(
    settings: FlowMatching, dimension: int, seed: int = 0, device: torch.device | str = "cpu"
) -> nn.Module:
    """The velocity's network, on the device."""
    flow, place = settings.flow, torch.device(device)
    name, options = flow.network, dict[str, object](hidden=flow.hidden, layers=flow.layers)
    if flow.network in IMAGE_NETWORKS:
        options = asdict(settings.images) | layout(settings, place)
    elif flow.classes and name == "mlp":
        name, options = "conditional-mlp", options | {"activation": "selu"}
    if flow.classes:
        options["sizes"] = (flow.classes,)
    return network(name, dimension, seed, **options).to(place, flow.dtype)


def potential_network(
    settings: FlowMatching, dimension: int, seed: int = 0, device: torch.device | str = "cpu"
) -> nn.Module | None:
    """The potential's network, where the coupling has one, on the device."""
    if settings.coupling.name not in POTENTIAL_COUPLINGS:
        return None
    chosen, place = settings.potential, torch.device(device)
    options: dict[str, object] = {"hidden": chosen.hidden, "layers": chosen.layers}
    if chosen.network in IMAGE_NETWORKS:
        options = {"shape": settings.images.shape} | layout(settings, place)
    return network(chosen.network, dimension, seed, **options).to(place, settings.flow.dtype)


def potential_coupling(settings: FlowMatching, weight: float, potential: nn.Module) -> PotentialCoupling:
    """The coupling of these settings with the given potential."""
    options = settings.coupling
    if options.name == "potential":
        return GlobalPotential(
            potential, options.candidates, options.transform, options.descent_steps, options.descent_rate
        )
    if options.name == "entropic":
        return EntropicPotential(potential, options.candidates, options.epsilon)
    return BalancedPotential(potential, weight, options.pool or math.inf)


def evaluated(field: nn.Module, settings: FlowMatching, x: Tensor, *told: Tensor) -> Tensor:
    """The field at x, told t and perhaps y; images in half precision where that is asked for and can be had."""
    named = named_parameters(field)
    if not computes_in_half(settings, x.device):
        exact: Tensor = field(x, *told)
        return exact
    # Not by autocast, which would go back and forth: all inside is in half precision, points outside are not.
    half = dict(zip(named, rounded(list(named.values())), strict=True))
    value: Tensor = functional_call(
        field, half, (x, *told), tie_weights=False
    )  # none are, and to look for them takes long
    return value


def computes_in_half(settings: FlowMatching, device: torch.device) -> bool:
    """Whether passes are computed in bfloat16: where asked for, for images, and on a GPU that can."""
    return wants_half(settings) and has_bfloat16(device)


def wants_half(settings: FlowMatching) -> bool:
    """Whether bfloat16 is asked for, and for images."""
    return settings.flow.precision == "bfloat16" and settings.flow.network in IMAGE_NETWORKS


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """torch's own generators at a place of ours, and afterwards where they were."""
    places = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=places):
        torch.default_generator.manual_seed(seed)
        for place in places:
            torch.cuda.default_generators[place.index or 0].manual_seed(seed)
        yield


def load_parameters(module: nn.Module, parameters: dict[str, Tensor]) -> None:
    """Points the module's parameters at the given tensors: nothing is copied inside one process."""
    named = named_parameters(module)
    if parameters.keys() != named.keys():
        raise MessageError("Parameters arrived that are not those of the network that the settings describe.")
    for name, parameter in named.items():
        # Torch would take another shape without a word, and compute with it whatever that costs.
        if parameters[name].shape != parameter.shape or parameters[name].dtype != parameter.dtype:
            raise MessageError(f"The parameter '{name}' arrived with another shape or type than the network has.")
        parameter.data = parameters[name]


def gradients(loss: Tensor, module: nn.Module) -> dict[str, Tensor]:
    """∇ of the loss in the module's parameters, by name."""
    named = named_parameters(module)
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


_NAMED: WeakKeyDictionary[nn.Module, dict[str, nn.Parameter]] = WeakKeyDictionary()


def named_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The module's parameters by name; remembered, since walking a module costs more than a small layer's work."""
    if module not in _NAMED:
        _NAMED[module] = dict(module.named_parameters())
    return _NAMED[module]
