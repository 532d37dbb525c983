"""The short way in: silos with attributes in, a flow of any combination out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch import Tensor

from anabranch import seeds
from anabranch.data.attributes import AttributeSpace, Coverage
from anabranch.errors import UsageError, unknown
from anabranch.federation import Federation, Ledger, Silo
from anabranch.methods.dcfm._presets import COMPOSITIONS
from anabranch.methods.dcfm._server import CompositionServer
from anabranch.methods.dcfm._settings import Composition
from anabranch.methods.experts import Mixture
from anabranch.methods.ffm import Progress


@dataclass(frozen=True)
class ComposedFlow:
    """A trained composition: `sample` any combination of attributes, also one that no silo has seen.

    `experts` are the silos' own flows, by silo, where the method has them.
    """

    mixture: Mixture = field(repr=False)
    dimension: int
    ledger: Ledger = field(repr=False)
    history: list[Progress] = field(repr=False)
    experts: dict[str, dict[str, Tensor]] = field(repr=False)

    @property
    def coverage(self) -> Coverage:
        """Which combinations are known, and to whom."""
        return self.mixture.coverage

    def sample(self, count: int, seed: int = 0, nfe: int = 50, **attributes: str) -> Tensor:
        """`count` samples with these attributes, as in `sample(10, digit="0", color="yellow")`."""
        text = ",".join(f"{name}={outcome}" for name, outcome in attributes.items())
        y = self.coverage.space.parse(text).expand(count, -1)
        generator = seeds.generator(seed, "sample")
        return self.mixture.sample(y, generator, nfe, dimension=self.dimension).x1


def composition(method: str, **sections: Mapping[str, Any]) -> Composition:
    """A method's preset with sections laid over it, as in `composition("dcfm-b", student={"steps": 400})`.

    >>> composition("dcfm-b", experts={"steps": 50}).student.steps
    1200
    """
    if method not in COMPOSITIONS:
        raise unknown("method", method, COMPOSITIONS)
    settings = Composition()
    for layer in (COMPOSITIONS[method], sections):
        for section, values in layer.items():
            settings = _laid_over(settings, section, values)
    return settings


def _laid_over(settings: Composition, section: str, values: Any) -> Composition:
    names = {f.name for f in fields(Composition)}
    if section not in names:
        raise unknown("section", section, sorted(names))
    if not isinstance(values, Mapping):
        return replace(settings, **{section: values})
    before = getattr(settings, section)
    known = {f.name for f in fields(before)}
    for key in values:
        if key not in known:
            raise unknown(f"key in [{section}]", key, sorted(known))
    return replace(settings, **{section: replace(before, **values)})


def train_composition(
    silos: Sequence[Silo] | Federation,
    method: str | Composition = "dcfm-b",
    seed: int = 0,
    space: AttributeSpace | None = None,
    start_from: Mapping[str, dict[str, Tensor]] | None = None,
    watch: Callable[[Progress], None] = lambda progress: None,
    **sections: Any,
) -> ComposedFlow:
    """Trains a method on silos whose labels stand for combinations of attributes.

    With `start_from`, the experts of an earlier flow by silo, Stage I is not repeated.

    >>> from anabranch.data.attributes import attributed
    >>> data = attributed("corners", count=200)
    >>> known = data[data.label != 2]                                        # nobody has seen right and top together
    >>> silos = [Silo(name, known.x[i::2], known.label[i::2], space=data.space) for i, name in enumerate("ab")]
    >>> flow = train_composition(silos, "dcfm-b", experts={"steps": 20}, student={"steps": 20})
    >>> flow.sample(5, horizontal="right", vertical="top").shape
    torch.Size([5, 2])
    """
    settings = composition(method, **sections) if isinstance(method, str) else method
    if sections and not isinstance(method, str):
        raise UsageError("Sections change a method's preset; with settings of your own, change those.")
    federation = silos if isinstance(silos, Federation) else Federation(silos)
    federation.open(f"train_composition/{seed}/{seeds.derive(seed, repr(settings))}", seed)
    server = CompositionServer(settings, federation, space, start_from)
    history = []
    for progress in server.run():
        history.append(progress)
        watch(progress)
    return ComposedFlow(server.mixture(), federation.dimension, federation.ledger, history, server.experts)
