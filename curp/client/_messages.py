"""The messages that a group path sends beside the call itself (DESIGN §7)."""

from __future__ import annotations

from typing import Any

from _rifl_ground.refusals import Outcome
from curp._core.group_call import LeaderAnswer
from curp._wire.labels import SYNCED_KEY
from curp.v1 import curp_pb2
from rifl._client.answers import read_answer
from rifl._wire.header import HEADER_KEY
from rifl._wire.varint import varint
from rifl.core._shared.reasons import error_class, told_outcome
from rifl.v1 import rifl_pb2

# A witness that has not answered by then is as good as gone.
RECORD_TIMEOUT_S = 5.0
Metadata = Any
# Fields with a length: RecordRequest.call; header, method and request of a WitnessedCall.
_CALL_TAG = b"\x12"
_HEADER_TAG, _METHOD_TAG, _REQUEST_TAG = b"\x0a", b"\x12", b"\x1a"


def split_header(metadata: Metadata) -> tuple[tuple[Any, ...], bytes] | None:
    """Return the caller's entries and the call's header; None if it has none."""
    # The client puts it last.
    if not metadata or metadata[-1][0] != HEADER_KEY:
        return None
    return tuple(metadata[:-1]), metadata[-1][1]


def number_field(configuration: int) -> bytes:
    """Return what is appended to a header under a configuration number."""
    return rifl_pb2.CallHeader(configuration=configuration).SerializeToString()


def with_number(header: bytes, number: bytes, conflict_keys: frozenset[int] = frozenset()) -> bytes:
    """Return the header with its ``number_field``: fields may simply be appended.

    ``conflict_keys``: those that the caller found, of a method whose keys others cannot find.
    """
    if not conflict_keys:
        return header + number
    more = rifl_pb2.CallHeader(conflict_keys=sorted(conflict_keys))
    return header + number + more.SerializeToString()


def record_fields(configuration: int, log: int) -> bytes:
    """Return what is alike in all records of a configuration of the log of that id."""
    return curp_pb2.RecordRequest(configuration=configuration, log=log).SerializeToString()


def record_request(fields: bytes, header: bytes, method: bytes, request: bytes) -> bytes:
    """Return what every witness is sent: a RecordRequest that begins with ``record_fields``.

    As protobuf writes it, at a third of the cost: every call pays it. Without conflict keys: a
    witness finds them by itself, or in the header, which the leader is sent too (DESIGN §7,
    invariants 2 and 3).
    """
    call = b"".join(
        (
            _HEADER_TAG,
            varint(len(header)),
            header,
            _METHOD_TAG,
            varint(len(method)),
            method,
            _REQUEST_TAG,
            varint(len(request)),
            request,
        )
    )
    return b"".join((fields, _CALL_TAG, varint(len(call)), call))


def sync_request(configuration: int, header: bytes) -> curp_pb2.SyncRequest:
    """Return what asks the leader that a call be in the log."""
    call = rifl_pb2.CallHeader.FromString(header)
    request = curp_pb2.SyncRequest(
        configuration=configuration, client_id=call.client_id, token=call.token
    )
    if call.WhichOneof("identity") == "key":
        request.key = call.key
    else:
        request.seq = call.seq
    return request


def synced_number(trailing: Any) -> int | None:
    """Return the leader's configuration number if the answer is in the log, else None."""
    for key, value in trailing or ():
        if key == SYNCED_KEY:
            try:
                return int(value)
            except ValueError:
                return 0
    return None


def read_leader_answer(status: Any, header: bytes) -> LeaderAnswer:
    """Read an error answer of the leader's."""
    answer = read_answer(status)
    outcome = answer.outcome
    if outcome is None and answer.reason:
        # A refusal of rifl's that says nothing of the call: whether it ran is not known.
        outcome = Outcome.UNKNOWN
    refusal = error_class(answer.reason)
    if refusal is not None and outcome is told_outcome(refusal, keyed=True):
        # What the attempt is told, whose key may be others', too: here it is this attempt.
        outcome = refusal.outcome
    first = rifl_pb2.CallHeader.FromString(header).attempt <= 1
    synced = synced_number(status.trailing_metadata()) is not None
    return LeaderAnswer(outcome, synced, answer.reason, first)
