"""The call header, by hand: written for every attempt and read for every call (DESIGN §3).

Writer and reader stand here together, and no other module knows the bytes. Composed of cached
parts, a header costs half of what building and serialising the message costs; protobuf's
concatenation rule makes the result the same message.

A server reads one for every call. Nearly all come from clients whose token it has
verified, in one order of fields: their beginning, id and token, is the same bytes
in all of a client's headers, and the rest of a first attempt's is a few numbers, at
places that follow from its length. Whatever looks different in any way is left to
``rifl._wire.header.parse_call``, which says what it means.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import Any

from lease_server._tokens import TOKEN_BYTES, peer_bound
from rifl._wire.header import fingerprint
from rifl._wire.varint import varint
from rifl.core._calling.batch_rpc import BatchRpc
from rifl.core._calling.client_lease import ClientLease
from rifl.core._calling.issued_call import IssuedCall
from rifl.core._shared.call import Call, pairs_from_ranges
from rifl.v1 import rifl_pb2

_MAX_CLIENTS = 8192
# Every call makes one: without __init__, which would cost as much as all the rest.
_new: Any = object.__new__
# Field 2 with its length, where it comes first, and its value.
_TOKEN = slice(2, 2 + TOKEN_BYTES)
# A first attempt without completed ranges: fields 3 (seq) and 5 (first incomplete), both
# of one, two or four bytes, field 7 (attempt 1), 8 (time_us) and 9 (seed), with their tags.
_SEQ, _FIRST, _ATTEMPT_1_TIME, _SEED = b"\x18", 0x28, b"\x38\x01\x41", 0x49
# Field 16 (for how long the call may be tried), which comes last where it is: its tag.
_TRY = b"\x85\x01"
_TRY_BYTES = 6
# Of a field's bytes: how they are unpacked, and which bits of a number say how many there are.
_FIELDS = (("B", 0x80, 0), ("H", 0x8080, 0x80), ("I", 0x80808080, 0x808080))


def _struct(field: str, begins: int = len(_SEQ)) -> Struct:
    """Return the layout; ``begins``: how many bytes there are up to the tag of field 3."""
    return Struct(f"<{begins}s{field}B{field}3sQBQ")


_ONE, _TWO, _FOUR = (_struct(field) for field, _, _ in _FIELDS)


@lru_cache(maxsize=256)
def _layouts(begins: int) -> dict[int, tuple[Callable[[bytes], tuple[Any, ...]], int, int]]:
    """Return how a whole header is unpacked, by its length."""
    found: dict[int, tuple[Callable[[bytes], tuple[Any, ...]], int, int]] = {}
    for field, lengths, wanted in _FIELDS:
        struct = _struct(field, begins)
        found[struct.size] = struct.unpack, lengths, wanted
    return found


def header_prefix(client_id: int, token: bytes, max_response_bytes: int, store: int) -> bytes:
    """Return how all headers of a client begin: fields 2, 1 and, if any, 12 and 15.

    The token first, whose length is always the same, so that a reader finds it.
    """
    limit = b"\x60" + varint(max_response_bytes) if max_response_bytes else b""
    of_store = b"\x79" + store.to_bytes(8, "little") if store else b""
    return b"\x12" + varint(len(token)) + token + b"\x08" + varint(client_id) + limit + of_store


def first_attempt(seq: int, first_incomplete: int, time_us: int, seed: int) -> bytes:
    """Return what follows the prefix in a first attempt's header; empty for a seq from 2^28.

    Numbers are varints, in one, two or four bytes: a reader of protobuf's takes longer ones
    than need be, and so both are as long and the length tells where they are.
    """
    if seq < 1 << 7:
        return _ONE.pack(_SEQ, seq, _FIRST, first_incomplete, _ATTEMPT_1_TIME, time_us, _SEED, seed)
    first = first_incomplete
    if seq < 1 << 14:
        return _TWO.pack(
            _SEQ, seq & 0x7F | seq << 1 & 0x7F00 | 0x80,
            _FIRST, first & 0x7F | first << 1 & 0x7F00 | 0x80,
            _ATTEMPT_1_TIME, time_us, _SEED, seed,
        )  # fmt: skip
    if seq < 1 << 28:
        return _FOUR.pack(
            _SEQ, _four(seq), _FIRST, _four(first), _ATTEMPT_1_TIME, time_us, _SEED, seed
        )
    return b""


def _four(number: int) -> int:
    return (
        number & 0x7F | number << 1 & 0x7F00 | number << 2 & 0x7F0000 | number << 3 & 0x7F000000
    ) | 0x808080


def _of_four(word: int) -> int:
    return word & 0x7F | word >> 1 & 0x3F80 | word >> 2 & 0x1FC000 | word >> 3 & 0xFE00000


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
    time_us, seed = call.stamp
    numbers = first_attempt(call.seq, first, time_us, seed) if call.attempt == 1 else b""
    header += (
        numbers
        or rifl_pb2.CallHeader(
            seq=call.seq,
            first_incomplete=first,
            attempt=call.attempt,
            time_us=time_us,
            seed=seed,
        ).SerializeToString()
    )
    if call.completed:
        pairs = pairs_from_ranges(first, call.completed)
        if len(pairs) < 128 and max(pairs) < 128:
            # Field 6, packed; every number is one byte.
            header += bytes((0x32, len(pairs), *pairs))
        else:
            header += rifl_pb2.CallHeader(completed=pairs).SerializeToString()
    if call.try_ms:
        header += _TRY + call.try_ms.to_bytes(4, "little")
    return header


def encode_batch_header(rpc: BatchRpc, max_response_bytes: int = 0) -> bytes:
    """Return the value of ``rifl-bin`` for one RPC of a batch: it names no call."""
    call = rpc.calls[0]
    time_us, seed = call.stamp
    return (call.lease.encoded or _prefix(call.lease, max_response_bytes)) + rifl_pb2.CallHeader(
        first_incomplete=rpc.first_incomplete,
        completed=pairs_from_ranges(rpc.first_incomplete, rpc.completed),
        attempt=rpc.attempt,
        time_us=time_us,
        seed=seed,
    ).SerializeToString()


def _keyed(call: IssuedCall, max_response_bytes: int) -> bytes:
    time_us, seed = call.stamp
    return (call.lease.encoded or _prefix(call.lease, max_response_bytes)) + rifl_pb2.CallHeader(
        key=call.key, attempt=call.attempt, time_us=time_us, seed=seed, try_ms=call.try_ms
    ).SerializeToString()


def _prefix(lease: ClientLease, max_response_bytes: int) -> bytes:
    lease.encoded = header_prefix(lease.client_id, lease.token, max_response_bytes, lease.store)
    return lease.encoded


class _Client:
    """A client whose token was found genuine, and while which secrets were valid."""

    __slots__ = (
        "client_id",
        "constants",
        "layouts",
        "max_response_bytes",
        "secrets",
        "store",
        "token",
    )

    def __init__(self, call: Call, prefix: bytes, secrets: Any) -> None:
        self.client_id = call.client_id
        self.token = call.token
        self.max_response_bytes = call.max_response_bytes
        self.store = call.store
        begins = prefix + _SEQ
        # What does not differ between its headers, in its order there.
        self.constants = begins, _FIRST, _ATTEMPT_1_TIME, _SEED
        self.layouts = _layouts(len(begins))
        self.secrets = secrets


class KnownClients:
    """Clients whose token was verified, by how their headers begin. Any thread.

    Bounded: when it is full it is emptied, and who comes again is verified again.
    Tokens are compared by looking them up: a dictionary compares what has the same
    hash under a key of this process's, so its timing tells nothing of them.
    """

    def __init__(self) -> None:
        self._clients: dict[bytes, _Client] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def read(self, value: bytes, method: str, request: bytes, secrets: Any) -> Call | None:
        """Return the call of a header, None where ``parse_call`` has to look at it.

        ``secrets`` is what identifies the secrets that are valid now.
        """
        client = self._clients.get(value[_TOKEN])
        if client is None or client.secrets is not secrets:
            return None
        layout = client.layouts.get(len(value))
        if layout is None:
            return self._read_longer(client, value, method, request)
        unpack, lengths, wanted = layout
        begins, seq, tag_first, first, attempt_time, time_us, tag_seed, seed = unpack(value)
        alone = first == seq
        if (
            (begins, tag_first, attempt_time, tag_seed) != client.constants
            or seq & lengths != wanted
            or not (alone or first & lengths == wanted)
        ):
            # Its length may be that of another one.
            return self._read_longer(client, value, method, request)
        if wanted == 0x80:
            seq = seq & 0x7F | seq >> 1 & 0x3F80
            first = seq if alone else first & 0x7F | first >> 1 & 0x3F80
        elif wanted:
            seq = _of_four(seq)
            first = seq if alone else _of_four(first)
        if not 0 < first <= seq:
            return None
        call: Call = _new(Call)
        call.client_id = client.client_id
        call.token = client.token
        call.seq = call.identity = seq
        call.first_incomplete = first
        call.fingerprint = fingerprint(method, request)
        call.method = method
        call.max_response_bytes = client.max_response_bytes
        call.store = client.store
        call.stamp = (time_us, seed)
        call.seed = seed
        return call

    def _read_longer(
        self, client: _Client, value: bytes, method: str, request: bytes
    ) -> Call | None:
        """Read a header that ends with how long the call may be tried, if it does."""
        begins = len(value) - _TRY_BYTES
        if begins not in client.layouts or value[begins:-4] != _TRY:
            return None
        # All of a header, without its last field, or none.
        call = self.read(value[:begins], method, request, client.secrets)
        if call is not None:
            call.try_ms = int.from_bytes(value[-4:], "little")
        return call

    def knows(self, call: Call, secrets: Any) -> bool:
        """Whether a call's token was verified, for its id and store, by the secrets valid now."""
        client = self._clients.get(call.token)
        return (
            client is not None
            and client.client_id == call.client_id
            and client.store == call.store
            and client.secrets is secrets
        )

    def note(self, call: Call, value: bytes, secrets: Any) -> None:
        """Know a client from now on, whose token was verified for anyone who holds it."""
        if call.seq is None or len(call.token) != TOKEN_BYTES or peer_bound(call.token):
            return
        prefix = header_prefix(call.client_id, call.token, call.max_response_bytes, call.store)
        if not value.startswith(prefix):
            return
        if len(self._clients) >= _MAX_CLIENTS:
            self._clients.clear()
        self._clients[call.token] = _Client(call, prefix, secrets)
