"""Writes a call's header: ``rifl.v1.CallHeader``, by hand (DESIGN §3).

One header is written for every attempt. Composed of cached parts it costs half
of what building and serialising the message costs; protobuf's concatenation
rule makes the result the same message.
"""

from __future__ import annotations

from rifl._header import first_attempt, header_prefix
from rifl.core._calling.attempt import IssuedCall
from rifl.core._calling.batch_steps import Leg
from rifl.core._calling.client_lease import ClientLease
from rifl.core._shared.call import pairs_from_ranges
from rifl.v1 import rifl_pb2


def encode_header(call: IssuedCall, max_response_bytes: int = 0) -> bytes:
    """Return the value of ``rifl-bin`` for the call's current attempt.

    ``max_response_bytes`` is the client's receive limit, 0 for gRPC's default;
    the same in all headers of a lease, since it is cached with it.
    """
    if call.key is not None:
        return _keyed(call, max_response_bytes)
    lease = call.lease
    first = call.first_incomplete
    header = lease.encoded or _prefix(lease, max_response_bytes)
    numbers = first_attempt(call.seq, first, call.time_us, call.seed) if call.attempt == 1 else b""
    header += (
        numbers
        or rifl_pb2.CallHeader(
            seq=call.seq,
            first_incomplete=first,
            attempt=call.attempt,
            time_us=call.time_us,
            seed=call.seed,
        ).SerializeToString()
    )
    if call.completed:
        pairs = pairs_from_ranges(first, call.completed)
        if len(pairs) < 128 and max(pairs) < 128:
            # Field 6, packed; every number is one byte.
            header += bytes((0x32, len(pairs), *pairs))
        else:
            header += rifl_pb2.CallHeader(completed=pairs).SerializeToString()
    return header


def encode_batch_header(leg: Leg, max_response_bytes: int = 0) -> bytes:
    """Return the value of ``rifl-bin`` for one RPC of a batch: it names no call."""
    call = leg.calls[0]
    return (call.lease.encoded or _prefix(call.lease, max_response_bytes)) + rifl_pb2.CallHeader(
        first_incomplete=leg.first_incomplete,
        completed=pairs_from_ranges(leg.first_incomplete, leg.completed),
        attempt=leg.attempt,
        time_us=call.time_us,
        seed=call.seed,
    ).SerializeToString()


def _keyed(call: IssuedCall, max_response_bytes: int) -> bytes:
    return (call.lease.encoded or _prefix(call.lease, max_response_bytes)) + rifl_pb2.CallHeader(
        key=call.key, attempt=call.attempt, time_us=call.time_us, seed=call.seed
    ).SerializeToString()


def _prefix(lease: ClientLease, max_response_bytes: int) -> bytes:
    lease.encoded = header_prefix(lease.client_id, lease.token, max_response_bytes, lease.store)
    return lease.encoded
