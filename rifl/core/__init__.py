"""The protocol rules: no I/O, no threads, no clock, no randomness.

Imports the standard library, bitarray and the ground's refusals only. Everything here is driven
from outside with events and times, by the server, the client, the stores, the replicated groups
and the simulator alike.

What is public here:

- The trackers of RIFL's paper, of one client each: ``RequestTracker`` has its incomplete
  calls, ``ResultTracker`` and ``KeyedTracker`` the server's records of them, by seq and by
  key. ``CompletedSet`` and ``BitVecQueue`` count in them, and ``Verdict`` is their decision.
  Plain objects in memory, not thread-safe; a store restores them after a crash.
- ``RpcId``, ``Outcome``, ``CompletionRecord``: a call, and how it ended. They do not change.
- ``RiflError`` and its subclasses, one for each reason for which a call is refused. Each pickles,
  and its outcome says whether the call can have run.
- ``invariant``, ``InvariantViolated``: checks of rifl's own rules, also in production.

``_serving`` has the server's rules, ``_calling`` the client's, ``_shared`` what both need.
"""

from _rifl_ground.refusals import Outcome
from rifl.core._calling.request_tracker import RequestTracker
from rifl.core._serving.keyed_tracker import KeyedTracker
from rifl.core._serving.result_tracker import ResultTracker
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.bit_vec_queue import BitVecQueue
from rifl.core._shared.completed_set import CompletedSet
from rifl.core._shared.errors import (
    AnswerLost,
    BadHeader,
    BatchTooLarge,
    Deposed,
    Draining,
    ForkedProcess,
    InProgress,
    LeaseExpired,
    NotDeduplicated,
    NotExecuted,
    NotLeader,
    NotRecorded,
    NotWrapped,
    NotYours,
    OutcomeUnknown,
    Overloaded,
    PayloadMismatch,
    RecordPending,
    ReentrantCall,
    RequestTooLarge,
    ResponseTooLarge,
    RiflError,
    SessionClosed,
    StaleRpc,
    StoreMismatch,
    StoreUnavailable,
    WindowExceeded,
)
from rifl.core._shared.identity import RpcId
from rifl.core._shared.invariant import InvariantViolated, invariant
from rifl.core._shared.record import CompletionRecord

__all__ = [
    "AnswerLost",
    "BadHeader",
    "BatchTooLarge",
    "BitVecQueue",
    "CompletedSet",
    "CompletionRecord",
    "Deposed",
    "Draining",
    "ForkedProcess",
    "InProgress",
    "InvariantViolated",
    "KeyedTracker",
    "LeaseExpired",
    "NotDeduplicated",
    "NotExecuted",
    "NotLeader",
    "NotRecorded",
    "NotWrapped",
    "NotYours",
    "Outcome",
    "OutcomeUnknown",
    "Overloaded",
    "PayloadMismatch",
    "RecordPending",
    "ReentrantCall",
    "RequestTooLarge",
    "RequestTracker",
    "ResponseTooLarge",
    "ResultTracker",
    "RiflError",
    "RpcId",
    "SessionClosed",
    "StaleRpc",
    "StoreMismatch",
    "StoreUnavailable",
    "Verdict",
    "WindowExceeded",
    "invariant",
]
