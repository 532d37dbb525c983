"""How fast is it? The same work, done here and with torchcfm's classes, turn by turn in one run."""

from anabranch.bench._clock import Budget, exponent, interleaved
from anabranch.bench._couplings import coupling_rows, lookup_rows
from anabranch.bench._ours import Ours
from anabranch.bench._peer import Peer, require_torchcfm
from anabranch.bench._row import Measured, Row, compared
from anabranch.bench._run import THREADS, measure
from anabranch.bench._steps import sampling_rows, silos_of, step_rows

__all__ = [
    "THREADS",
    "Budget",
    "Measured",
    "Ours",
    "Peer",
    "Row",
    "compared",
    "coupling_rows",
    "exponent",
    "interleaved",
    "lookup_rows",
    "measure",
    "require_torchcfm",
    "sampling_rows",
    "silos_of",
    "step_rows",
]
