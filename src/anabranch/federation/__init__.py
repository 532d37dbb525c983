"""What crosses the wire, how? Messages, silos, engines, weights, privacy, the byte ledger.

A method speaks only `Federation.ask` and `Federation.mean`, so it runs on every engine.
"""

from anabranch.federation._encoding import decode, encode, size
from anabranch.federation._federation import Engine, Federation, Mean
from anabranch.federation._ledger import Entry, Ledger
from anabranch.federation._local import LocalEngine, Replies
from anabranch.federation._message import KINDS, Envelope, Message, check, same_shapes, tensors_of
from anabranch.federation._optimizer import OPTIMIZERS, SCHEDULES, OptimizerState, ServerOptimizer
from anabranch.federation._privacy import Clip, Noise, Postprocessor
from anabranch.federation._silo import Silo, answers, answers_together
from anabranch.federation._standing import Done, Join, Joined, Keep, Rewind
from anabranch.federation._store import load, save, write_atomically
from anabranch.federation._weights import WEIGHTINGS, Participation, weights

__all__ = [
    "KINDS",
    "OPTIMIZERS",
    "SCHEDULES",
    "WEIGHTINGS",
    "Clip",
    "Done",
    "Engine",
    "Entry",
    "Envelope",
    "Federation",
    "Join",
    "Joined",
    "Keep",
    "Ledger",
    "LocalEngine",
    "Mean",
    "Message",
    "Noise",
    "OptimizerState",
    "Participation",
    "Postprocessor",
    "Replies",
    "Rewind",
    "ServerOptimizer",
    "Silo",
    "answers",
    "answers_together",
    "check",
    "decode",
    "encode",
    "load",
    "same_shapes",
    "save",
    "size",
    "tensors_of",
    "weights",
    "write_atomically",
]
