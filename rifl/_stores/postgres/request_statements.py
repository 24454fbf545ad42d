"""The requests of a shared store as statements over our functions (``sql/``), and their replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from _rifl_ground.postgres.settings import settings_with
from lease_server._storage import Acknowledgements
from lease_server._tokens import writer_of
from rifl._stores.postgres.schema import tables
from rifl._stores.postgres.statements import Statement
from rifl._stores.shared.requests import (
    Abandon,
    Claim,
    Claimed,
    CountBeat,
    Ending,
    Finish,
    Finished,
    FinishUnclaimed,
    Found,
    GetRows,
    Look,
    LookAtClient,
    MoveRows,
    SeenClient,
    TakeBack,
)
from rifl.core._serving.policy import Kind
from rifl.core._shared.call import Call
from rifl.core._shared.identity import MAX_SEQ

# A statement and its arguments.
Packed = tuple[bytes | Statement, tuple[Any, ...]]
_NOW = "extract(epoch FROM clock_timestamp())::float8"
# Where these are among the arguments.
_CLIENT, _ENDING, _REFUSING = 1, 6, 11
_CLAIM_TYPES = (
    "text int8 int8 bytea int8 int8multirange bytea text text text text bool int8 int8 int8 "
    "text bytea float8 float8 bytea"
)
_CLAIM_RESULTS = "text text text text bytea bool"
_FINISH_TYPES = "text int8 int8 bytea text bytea text bytea"
_FINISH_UNCLAIMED_TYPES = "text int8 int8 text text bytea bytea text int8 int8multirange int8 bool"
_BEAT_TYPES = "text text int8 bool text[] int8[] float8"
_ENDS = {Abandon: "abandon", Look: "look"}


class RequestStatements:
    """What is sent for each kind of request to the store with this id, in this schema."""

    def __init__(self, schema: str, store_id: str) -> None:
        self._store_id = store_id
        self.claim = Statement(schema, "claim_1", _CLAIM_TYPES, _CLAIM_RESULTS)
        self.finish = Statement(schema, "finish_1", _FINISH_TYPES, "text bytea")
        self.finish_unclaimed = Statement(
            schema, "finish_unclaimed_1", _FINISH_UNCLAIMED_TYPES, "text bytea"
        )
        self.expire = _statement(schema, "expire_1", "text bytea int8")
        self.unresolved = _statement(schema, "unresolved_1", "")
        self.take_back = _statement(schema, "finish_1", _FINISH_TYPES, f"ending, {_NOW}")
        self.look_at_client = _statement(schema, "look_at_client_1", "text int8")
        self.get_rows = _statement(schema, "rows_1", "text text[]")
        self.move_rows = _statement(schema, "move_rows_1", "text text[] bytea[] bytea[]")
        looked = f"{_NOW}, {schema}.copied_1(), {settings_with(tables(schema))}"
        self._beat = _statement(schema, "beat_1", _BEAT_TYPES, f"*, {looked}")

    def pack(self, request: Any, beats: int) -> Packed:
        """Return the statement of a request, and its arguments.

        ``beats``: what this replica knows of its own.
        """
        if isinstance(request, Claim):
            return self.claim, (self._store_id, *_claim_arguments(request))
        if isinstance(request, Finish | Abandon | Look):
            record = request.record if isinstance(request, Finish) else None
            arguments = (*identity_of(request.call), request.token.decode(), record)
            fingerprint = request.call.fingerprint or b""
            how = request.how if isinstance(request, Finish) else _ENDS[type(request)]
            return self.finish, (self._store_id, *arguments, how, fingerprint)
        if isinstance(request, FinishUnclaimed):
            call = request.call
            client_id, seq, _ = identity_of(call)
            return self.finish_unclaimed, (
                *(self._store_id, client_id, seq, request.token.decode(), request.owner),
                *(request.record, call.fingerprint or b"", call.method, call.first_incomplete),
                *(acknowledged_of(call), request.window, request.unknown),
            )
        if isinstance(request, TakeBack):
            taken = (*identity_of(request.call), request.token.decode(), None, "abandon", b"")
            return self.take_back, (self._store_id, *taken)
        if isinstance(request, CountBeat):
            owners = [owner for owner, _ in request.dead]
            counts = [count for _, count in request.dead]
            return self._beat, (
                self._store_id,
                request.owner,
                beats,
                request.leaving,
                owners,
                counts,
                request.reading_s,
            )
        if isinstance(request, LookAtClient):
            return self.look_at_client, (self._store_id, request.client_id)
        if isinstance(request, GetRows):
            return self.get_rows, (self._store_id, list(request.keys))
        if isinstance(request, MoveRows):
            moves = sorted(request.moves)
            keys = [each.key for each in moves]
            expected = [each.expected or b"" for each in moves]
            return self.move_rows, (self._store_id, keys, expected, [m.value for m in moves])
        raise TypeError(f"not a request: {request!r}")

    def needs_disk(self, statement: bytes | Statement, arguments: tuple[Any, ...]) -> bool:
        """Whether it is only of use if it is durable."""
        if statement is self.finish:
            return bool(arguments[_ENDING] == "finish")
        if statement is self.move_rows or statement is self.finish_unclaimed:
            return True
        return statement is self.claim and not arguments[_REFUSING]

    def claimant(self, statement: bytes | Statement, arguments: tuple[Any, ...]) -> int | None:
        """Return the client whose call is claimed; None if it is no claim."""
        return arguments[_CLIENT] if statement is self.claim else None


def read_reply(request: Any, status: str, rest: Sequence[Any]) -> Any:
    """Return the reply to a request that is no beat."""
    if isinstance(request, TakeBack):
        return rest[0]
    if isinstance(request, LookAtClient):
        if status == "gone":
            return None
        holder, first_incomplete, lows, ends = rest
        highs = [MAX_SEQ if end is None else end - 1 for end in ends]
        return SeenClient(bytes(holder), first_incomplete, list(zip(lows, highs, strict=True)))
    if isinstance(request, GetRows):
        return dict(zip(rest[0] or (), rest[1] or (), strict=True))
    if isinstance(request, MoveRows):
        return status == "moved"
    if isinstance(request, Claim):
        noted = status != "recording"
        found = Found(status) if noted else Found.RUNNING
        if found is Found.RUNNING:
            token, owner, kind = rest[:3]
            return Claimed(found, token.encode(), owner, Kind(kind), noted=noted)
        if found is Found.COMPLETED:
            return Claimed(found, record=rest[3], verified=rest[4])
        return Claimed(found)
    ending = Ending(status)
    return Finished(ending, rest[0] if ending is Ending.STANDS else b"")


def identity_of(call: Call) -> tuple[int, int, bytes]:
    """Return what a call is filed under: client id, seq (0 for a key), key."""
    return call.client_id, call.seq or 0, call.key or b""


def acknowledged_of(told: Call | Acknowledgements) -> str:
    """Return what is acknowledged above first incomplete, as a multirange."""
    if not told.completed:
        return "{}"
    # The last seq of all has no successor to end a range with.
    ranges = ",".join(
        f"[{first},{'' if last == MAX_SEQ else last + 1})" for first, last in told.completed
    )
    return f"{{{ranges}}}"


def _statement(schema: str, function: str, types: str, wanted: str = "*") -> bytes:
    parameters = ", ".join(f"%s::{name}" for name in types.split())
    return f"SELECT {wanted} FROM {schema}.{function}({parameters})".encode()


def _claim_arguments(request: Claim) -> tuple[Any, ...]:
    call = request.call
    return (
        *identity_of(call),
        call.first_incomplete,
        acknowledged_of(call),
        call.fingerprint or b"",
        call.method,
        request.kind.value,
        request.token.decode(),
        request.owner,
        request.refusing,
        request.window,
        request.max_keys,
        request.max_key_bytes,
        request.take_over.decode(),
        request.lost,
        request.retention_s,
        request.until_s,
        b"" if call.key is None else writer_of(call.token),
    )
