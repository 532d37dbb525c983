"""Generative flows and optimal transport on data that stays in its silos.

The rooms: `transport`, `flow`, `data` and `metrics` are the ground; `federation` and `coupling` the joints; `methods`
the papers' algorithms; `runs`, `report`, `recipes`, `bench` and `cli` what people touch.
"""

from anabranch.federation import Federation, Silo
from anabranch.methods.ffm import FlowMatching, FlowServer, TrainedFlow, train_flow

__all__ = ["Federation", "FlowMatching", "FlowServer", "Silo", "TrainedFlow", "train_flow"]
__version__ = "0.1.0"
