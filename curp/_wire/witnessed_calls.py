"""The requests that a witness holds, as a leader reads them and has them collected."""

from __future__ import annotations

from curp._core.garbage_collection import Collectable
from curp._core.witnessed_call import WitnessedCall
from curp.v1 import curp_pb2 as pb
from rifl._wire.header import parse_call
from rifl.core._shared.errors import BadHeader


def witnessed_call(message: pb.WitnessedCall) -> WitnessedCall | None:
    """Read a request that a witness held; None if it is no call at all.

    Its own acknowledgements are left out (invariant 6).
    """
    try:
        call = parse_call(message.header, message.method, message.request)
    except BadHeader:
        return None
    call.first_incomplete, call.completed = 1, ()
    call.peer = message.peer
    return WitnessedCall(call, message.request, frozenset(message.conflict_keys))


def collected_to_message(synced: Collectable) -> pb.Collected:
    """Return the message that has a witness drop a request that is in the log (invariant 12)."""
    message = pb.Collected(client_id=synced.client_id, conflict_keys=sorted(synced.keys))
    if synced.key is None:
        message.seq = synced.seq or 0
    else:
        message.key = synced.key
    return message
