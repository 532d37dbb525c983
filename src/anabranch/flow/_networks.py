"""Networks for velocities and potentials, and the registry that builds them by name and seed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import pairwise
from threading import Lock
from typing import TypeVar

import torch
from torch import Tensor, nn

from anabranch.errors import UsageError, unknown
from anabranch.seeds import derive

Builder = TypeVar("Builder", bound=Callable[..., nn.Module])

_BUILDERS: dict[str, Callable[..., nn.Module]] = {}
_BUILDING = Lock()  # two threads that build at once would draw from each other's seed


def register_network(name: str) -> Callable[[Builder], Builder]:
    """Make a class or function `(dimension, **options) -> nn.Module` known to `network` under a name.

    ```python
    @register_network("linear")
    def linear(dimension: int, bias: bool = True) -> nn.Module: ...
    ```
    """

    def register(builder: Builder) -> Builder:
        if name in _BUILDERS:
            raise UsageError(f"There is already a network '{name}'. Register this one under another name.")
        _BUILDERS[name] = builder
        return builder

    return register


def network(name: str, dimension: int, seed: int, **options: object) -> nn.Module:
    """The network of that name for points in ℝ^dimension, its initial weights determined by name and seed.

    Built on the CPU, so that the weights do not depend on the device, and without a trace in torch's global
    random state.

    >>> one, two = (network("mlp", dimension=2, seed=7, hidden=8) for _ in range(2))
    >>> all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters()))
    True
    """
    if name not in _BUILDERS:
        raise unknown("network", name, _BUILDERS)
    builder = _BUILDERS[name]
    _check_options(name, builder, options)
    with _BUILDING, torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # Not torch.manual_seed: that would also reseed the generators of every GPU, which nothing restores.
        torch.default_generator.manual_seed(derive(seed, "network", name))
        return builder(dimension, **options)


def networks_with(*options: str) -> list[str]:
    """The names of all networks that take these options, as those that are told attributes take `sizes`."""
    found = ((name, _options(builder)) for name, builder in _BUILDERS.items())
    return [name for name, known in found if known is None or set(options) <= set(known)]


def _check_options(name: str, builder: Callable[..., nn.Module], options: dict[str, object]) -> None:
    known = _options(builder)
    if known is None:
        return
    for option in options:
        if option not in known:
            if not known:
                raise UsageError(f"The network '{name}' has no options, but '{option}' was given. Leave it out.")
            raise unknown(f"{name} option", option, known)


def _options(builder: Callable[..., nn.Module]) -> list[str] | None:
    """What a network can be told beside its dimension; None for one that takes anything."""
    parameters = list(inspect.signature(builder).parameters.values())[1:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters]


@register_network("mlp")
class VelocityMLP(nn.Module):
    """A velocity field v(x, t): `layers` hidden layers of `hidden` SELU units, with t as the last input.

    `forward(x, t)`: x (n, d), t (n,) or a single time; returns (n, d). The defaults are the network of the
    two-dimensional experiments in Tong et al. 2024.
    """

    def __init__(self, dimension: int, hidden: int = 64, layers: int = 3) -> None:
        super().__init__()
        self.stack = _stack(dimension + 1, hidden, layers, dimension, nn.SELU)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        times = t.to(x.dtype).expand(x.shape[:-1]).unsqueeze(-1)
        velocity: Tensor = self.stack(torch.cat([x, times], dim=-1))
        return velocity


@register_network("potential-mlp")
class PotentialMLP(nn.Module):
    """A scalar potential f(x): `layers` hidden layers of `hidden` ReLU units. x (n, d) gives (n,)."""

    def __init__(self, dimension: int, hidden: int = 128, layers: int = 3) -> None:
        super().__init__()
        self.stack = _stack(dimension, hidden, layers, 1, nn.ReLU)

    def forward(self, x: Tensor) -> Tensor:
        potential: Tensor = self.stack(x).squeeze(-1)
        return potential


def _stack(inputs: int, hidden: int, layers: int, outputs: int, activation: type[nn.Module]) -> nn.Sequential:
    sizes = {"dimension": min(inputs, outputs), "hidden": hidden, "layers": layers}
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise UsageError(f"A network cannot have {name} = {size!r}. Give a whole number, one or more.")
    widths = [inputs, *[hidden] * layers]
    modules: list[nn.Module] = []
    for before, after in pairwise(widths):
        # In place: the linear layer needs its output no more, and activations are most of what a pass writes.
        modules += [nn.Linear(before, after), activation(inplace=True)]
    return nn.Sequential(*modules, nn.Linear(hidden, outputs))
