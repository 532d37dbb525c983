"""What crosses the wire, how? Messages, silos, engines, weights, privacy, the byte ledger.

A method speaks only `Federation.ask` and `Federation.mean`, so it runs on every engine.
"""

from anabranch.federation._audit import AuditLog, read_log
from anabranch.federation._encoding import decode, encode, size
from anabranch.federation._engine import Engine
from anabranch.federation._exhausted import exhausted
from anabranch.federation._federation import Federation, first_few
from anabranch.federation._following import Following
from anabranch.federation._halves import answers, answers_together, begins, reply_type
from anabranch.federation._ledger import Entry, Ledger
from anabranch.federation._local import LocalEngine
from anabranch.federation._mean import Mean
from anabranch.federation._means import Means
from anabranch.federation._message import KINDS, Envelope, Message, check, same_shapes, tensors_of
from anabranch.federation._optimizer import OPTIMIZERS, SCHEDULES, OptimizerState, ServerOptimizer
from anabranch.federation._policy import WITHDRAWN, Policy
from anabranch.federation._privacy import Clip, Noise, Postprocessor
from anabranch.federation._ranked import RankedEngine
from anabranch.federation._ranks import ALONE, Ranks
from anabranch.federation._remote import Carry, RemoteEngine
from anabranch.federation._replies import Replies
from anabranch.federation._silo import STEP, Silo
from anabranch.federation._site import Site
from anabranch.federation._standing import Done, Gathered, Join, Joined, Keep, Rewind
from anabranch.federation._store import drop_leftovers, load, save, write_atomically
from anabranch.federation._verdict import Verdict
from anabranch.federation._weights import WEIGHTINGS, Participation, weights
from anabranch.federation._wire import Refused, decode_question, encode_question, installed_version

__all__ = [
    "ALONE",
    "KINDS",
    "OPTIMIZERS",
    "SCHEDULES",
    "STEP",
    "WEIGHTINGS",
    "WITHDRAWN",
    "AuditLog",
    "Carry",
    "Clip",
    "Done",
    "Engine",
    "Entry",
    "Envelope",
    "Federation",
    "Following",
    "Gathered",
    "Join",
    "Joined",
    "Keep",
    "Ledger",
    "LocalEngine",
    "Mean",
    "Means",
    "Message",
    "Noise",
    "OptimizerState",
    "Participation",
    "Policy",
    "Postprocessor",
    "RankedEngine",
    "Ranks",
    "Refused",
    "RemoteEngine",
    "Replies",
    "Rewind",
    "ServerOptimizer",
    "Silo",
    "Site",
    "Verdict",
    "answers",
    "answers_together",
    "begins",
    "check",
    "decode",
    "decode_question",
    "drop_leftovers",
    "encode",
    "encode_question",
    "exhausted",
    "first_few",
    "installed_version",
    "load",
    "read_log",
    "reply_type",
    "same_shapes",
    "save",
    "size",
    "tensors_of",
    "weights",
    "write_atomically",
]
