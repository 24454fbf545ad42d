"""The protocol rules: no I/O, no threads, no clock, no randomness.

Imports the standard library and bitarray only. Everything here is driven from
outside with events and times, by the server, the client, the stores, the
replicated groups and the simulator alike.
"""

from rifl.core.bit_vec_queue import BitVecQueue
from rifl.core.completed_set import CompletedSet
from rifl.core.errors import (
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
    PayloadMismatch,
    RecordPending,
    RequestTooLarge,
    ResponseTooLarge,
    RiflError,
    SessionClosed,
    StaleRpc,
    StoreMismatch,
    StoreUnavailable,
    WindowExceeded,
)
from rifl.core.identity import RpcId
from rifl.core.invariant import InvariantViolated, invariant
from rifl.core.keyed_tracker import KeyedTracker
from rifl.core.outcome import Outcome
from rifl.core.record import CompletionRecord
from rifl.core.request_tracker import RequestTracker
from rifl.core.result_tracker import ResultTracker
from rifl.core.verdict import Verdict

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
    "PayloadMismatch",
    "RecordPending",
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
