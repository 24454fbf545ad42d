"""The requests that a witness held, as a leader reads them."""

from __future__ import annotations

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
