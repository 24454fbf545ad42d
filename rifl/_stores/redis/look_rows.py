"""Rows of a look into the store: calls and clients, as its script tells them."""

from __future__ import annotations

from typing import NamedTuple

from rifl._stores.inspection import CallRow, ClientRow, SessionInfo
from rifl._stores.redis.session_rows import read_session
from rifl.core._shared.identity import RpcId

FIRST_SEQ = b"0000000000000001"


class FoundCall(NamedTuple):
    """A call as the script tells it."""

    row: CallRow
    token: bytes
    # Who runs it, or may run it still though it was taken for lost.
    owner: str | None


class FoundClient(NamedTuple):
    """The row of a client as the script tells it, and the calls beside it."""

    client_id: int
    memory_bytes: int
    first: bytes
    ranges: bytes
    lease_left_s: float | None
    field: bytes
    calls: list[CallRow]


def member_of(rpc_id: RpcId) -> bytes:
    """Return a call as the store's indices have it."""
    return b"s%016x" % (rpc_id.seq or 0) if rpc_id.key is None else b"k" + rpc_id.key


def rpc_id_of(client_id: int, member: bytes) -> RpcId:
    """Return the call that is ``member`` in an index."""
    is_key = member[:1] == b"k"
    return RpcId(client_id, None, member[1:]) if is_key else RpcId(client_id, int(member[1:], 16))


def found_call(client_id: int, entry: list[bytes]) -> FoundCall:
    """Read one entry of the script's."""
    member, runs, fingerprint, method, at_ms, token, owner, size = entry
    running = runs == b"1"
    row = CallRow(
        rpc_id_of(client_id, member),
        method.decode(errors="replace"),
        fingerprint or None,
        None if running else int(size),
        int(at_ms) // 1000,
        owner.decode() if running else None,
    )
    return FoundCall(row, token, owner.decode() or None)


def client_row(client: FoundClient, sessions: dict[bytes, bytes]) -> ClientRow:
    """Return a client's row; ``sessions``: the store's, or the one that it is."""
    times = [call.changed_at_unix_s for call in client.calls]
    sizes = [call.record_bytes for call in client.calls if call.record_bytes is not None]
    value = sessions.get(client.field)
    session = None
    if value is not None:
        row = read_session(client.field, value)
        session = SessionInfo(
            row.name, row.peer, row.state.value, row.retention_s, row.changed_at_unix_s
        )
    return ClientRow(
        client_id=client.client_id,
        first_incomplete=int(client.first, 16),
        completed=[
            (int(client.ranges[at : at + 16], 16), int(client.ranges[at + 16 : at + 32], 16) - 1)
            for at in range(0, len(client.ranges), 32)
        ],
        intents=len(client.calls) - len(sizes),
        records=len(sizes),
        record_bytes=sum(sizes),
        registered_at_unix_s=None,
        changed_at_unix_s=max(times, default=None),
        session=session,
        lease_left_s=client.lease_left_s,
    )
