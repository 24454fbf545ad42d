"""Reads call headers as our own clients write them, without protobuf (DESIGN §3).

A server reads one for every call. Nearly all come from clients whose token it has
verified, in one order of fields: their beginning, id and token, is the same bytes
in all of a client's headers, and the rest is a few numbers. Whatever looks
different in any way is left to ``rifl.wire.parse_call``, which says what it means.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, error
from typing import Any

from lease_server.tokens import TOKEN_BYTES, peer_bound
from rifl.core.call import Call, ranges_from_pairs
from rifl.core.identity import MAX_SEQ
from rifl.core.result_tracker import check_acknowledgements
from rifl.wire import fingerprint, varint

__all__ = ["KnownClients", "header_prefix"]

_MAX_CLIENTS = 8192
# Field 2 with its length, where it comes first, and its value.
_TOKEN = slice(2, 2 + TOKEN_BYTES)
# Fields 7 (of one byte), 8 and 9: tag and attempt, tag and time_us, tag and seed.
_END = Struct("<BBBQBQ")
_read_end = _END.unpack_from
_END_BYTES = _END.size


def header_prefix(client_id: int, token: bytes, max_response_bytes: int) -> bytes:
    """Return how all headers of a client begin: fields 2, 1 and, if any, 12.

    The token first, whose length is always the same, so that a reader finds it.
    """
    limit = b"\x60" + varint(max_response_bytes) if max_response_bytes else b""
    return b"\x12" + varint(len(token)) + token + b"\x08" + varint(client_id) + limit


class _Client:
    """A client whose token was found genuine, and while which secrets were valid."""

    __slots__ = ("client_id", "max_response_bytes", "prefix", "secrets", "start", "token")

    def __init__(self, call: Call, prefix: bytes, secrets: Any) -> None:
        self.client_id = call.client_id
        self.token = call.token
        self.max_response_bytes = call.max_response_bytes
        self.prefix = prefix
        self.start = len(prefix)
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

        ``secrets`` is what identifies the secrets that are valid now. Raises
        ``BadHeader`` where ``parse_call`` would.
        """
        client = self._clients.get(value[_TOKEN])
        if client is None or client.secrets is not secrets or not value.startswith(client.prefix):
            return None
        try:
            at = client.start
            if value[at] != 0x18:
                return None
            seq = value[at + 1]
            at += 2
            if seq > 127:
                seq, at = _long(value, at, seq)
            if value[at] != 0x28:
                return None
            first_incomplete = value[at + 1]
            at += 2
            if first_incomplete > 127:
                first_incomplete, at = _long(value, at, first_incomplete)
            tag, attempt, tag_time, time_us, tag_seed, seed = _read_end(value, at)
        except (IndexError, error):
            return None
        if tag != 0x38 or tag_time != 0x41 or tag_seed != 0x49 or not 0 < attempt < 128:
            return None
        at += _END_BYTES
        completed: Sequence[tuple[int, int]] = ()
        if len(value) != at:
            pairs = value[at + 2 :]
            # Field 6, packed, every number of one byte.
            if value[at] != 0x32 or value[at + 1 : at + 2] != bytes((len(pairs) & 127,)):
                return None
            if len(pairs) > 127 or max(pairs, default=128) > 127:
                return None
            completed = ranges_from_pairs(first_incomplete, pairs)
        if completed or not 1 <= first_incomplete <= seq <= MAX_SEQ:
            check_acknowledgements(seq, first_incomplete, completed)
        call = Call(
            client.client_id,
            client.token,
            seq,
            None,
            first_incomplete,
            completed,
            attempt,
            fingerprint(method, request),
            method,
        )
        call.stamp = (time_us, seed)
        if client.max_response_bytes:
            call.max_response_bytes = client.max_response_bytes
        return call

    def note(self, call: Call, value: bytes, secrets: Any) -> None:
        """Know a client from now on, whose token was verified for anyone who holds it."""
        if call.seq is None or len(call.token) != TOKEN_BYTES or peer_bound(call.token):
            return
        prefix = header_prefix(call.client_id, call.token, call.max_response_bytes)
        if not value.startswith(prefix):
            return
        if len(self._clients) >= _MAX_CLIENTS:
            self._clients.clear()
        self._clients[call.token] = _Client(call, prefix, secrets)


def _long(value: bytes, at: int, low: int) -> tuple[int, int]:
    """Return a number of two to nine bytes, of which ``low`` is the first, and its end."""
    number = low & 127
    for shift in range(7, 63, 7):
        byte = value[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise IndexError
