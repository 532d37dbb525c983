"""The short way in: silos with attributes in, a flow of any combination out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from numbers import Integral
from typing import Any

from torch import Tensor

from anabranch import seeds
from anabranch.data.attributes import AttributeSpace, Coverage
from anabranch.errors import UsageError, unknown
from anabranch.federation import Federation, Ledger, Silo
from anabranch.methods._records import checked
from anabranch.methods.dcfm._presets import COMPOSITIONS, check_stages
from anabranch.methods.dcfm._server import CompositionServer
from anabranch.methods.dcfm._settings import Composition
from anabranch.methods.experts import Mixture, check_weights
from anabranch.methods.ffm import Progress

_OPTIONS = ("self", "count", "seed", "nfe", "solver", "how", "weights", "until", "attributes")  # of `sample`


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

    def sample(
        self,
        count: int,
        seed: int = 0,
        nfe: int | None = 50,
        *,
        solver: str = "midpoint",
        how: str = "auto",
        weights: Sequence[float] | float | None = None,
        until: float = 1.0,
        attributes: Mapping[str, str] | None = None,
        **named: str,
    ) -> Tensor:
        """`count` samples with these attributes, as in `sample(10, digit="0", color="yellow")`, where the experts are.

        `how`, `weights` and `until` are those of `Mixture.field`: `sample(10, how="guided", weights=3, until=0.5, …)`
        sharpens whole labels. With the solver "dopri5" `nfe` is None. Attributes can be given as a mapping instead;
        those of which one has the name of an option must be.
        """
        if isinstance(count, bool) or not isinstance(count, Integral) or count < 1:
            raise UsageError(f"{count!r} samples were asked for; ask for a whole number of them, at least one.")
        y = self._codes(attributes, named).expand(int(count), -1)
        check_weights(self.coverage.space, how, weights, until)
        generator = seeds.generator(seed, "sample")
        flow = self.mixture.sample(y, generator, nfe, solver, how, weights, dimension=self.dimension, until=until)
        return flow.x1

    def _codes(self, attributes: Mapping[str, str] | None, named: Mapping[str, str]) -> Tensor:
        """The codes (k,) of what was asked for; refuses what could be an option as well as an attribute."""
        space = self.coverage.space
        if attributes is not None and not isinstance(attributes, Mapping):
            raise UsageError(f"attributes is {attributes!r}; give a mapping, as in attributes={{'digit': '0'}}.")
        both = [name for name in space.names if name in _OPTIONS]
        if both and attributes is None:
            raise UsageError(
                f"'{both[0]}' is an attribute here, and an option of sample; give all attributes as a mapping, as in"
                f" attributes={{'{both[0]}': '{dict(space.attributes)[both[0]][0]}'}}."
            )
        pairs = [*(attributes or {}).items(), *named.items()]
        return space.parse(",".join(f"{name}={outcome}" for name, outcome in pairs))


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
    check_stages(method, settings)
    return settings


def _laid_over(settings: Composition, section: str, values: Any) -> Composition:
    names = {f.name for f in fields(Composition)}
    if section not in names:
        raise unknown("section", section, sorted(names))
    before = getattr(settings, section)
    kind = type(before)
    if is_dataclass(kind) and not isinstance(values, Mapping | kind):
        key = fields(kind)[0].name
        raise UsageError(f"{section} is {values!r}; it is a section: give its keys, as in {section}={{{key!r}: …}}.")
    if is_dataclass(kind) and isinstance(values, Mapping):
        values = replace(before, **checked(kind, section, values))
    return replace(settings, **{section: values})


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
    >>> flow.sample(5, how="guided", weights=3, until=0.5, horizontal="right", vertical="top").shape  # sharpened
    torch.Size([5, 2])
    """
    if not isinstance(method, str | Composition):
        raise UsageError(f"method is {method!r}; give the name of one, such as 'dcfm-b', or a Composition.")
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
