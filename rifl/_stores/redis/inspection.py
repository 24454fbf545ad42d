"""Inspection of a Redis store beside its servers: a page at a time, so that none waits long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import redis

from _rifl_ground.redis.lua import Script
from _rifl_ground.texts import hides
from lease_server._errors import StorageUnavailable
from rifl._stores.codec import RecordCodec
from rifl._stores.errors import StoreCorrupt, StoreLocked, StoreUnreachable
from rifl._stores.inspection import CallRow, ClientRow, SessionInfo, Summary
from rifl._stores.redis.backend import BUCKETS
from rifl._stores.redis.lease_storage import RedisLeaseStorage, read_session
from rifl._stores.redis.opening import find_backend, fresh_id
from rifl._stores.redis.script_calls import unclaimed_arguments
from rifl._stores.redis.scripts import ACCEPT, ENDS, FINISH_UNCLAIMED, LOOK, RELEASE, SETTLE
from rifl._stores.redis.store_address import RedisStoreAddress
from rifl._stores.shared.backend import BackendError, WentBackwards
from rifl._stores.shared.replicas import LivingReplicas
from rifl._stores.shared.requests import FinishUnclaimed
from rifl.core._serving.namespace import is_namespace
from rifl.core._shared.call import Call
from rifl.core._shared.identity import MAX_SEQ, RpcId
from rifl.core._shared.record import CompletionRecord

FIRST_SEQ = b"0000000000000001"


@hides("token")
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


_PAGE = 100
_IDS_PAGE = 500
# In the place of an attempt's token.
_VERDICT = b"verdict"


class RedisInspection:
    """See ``rifl._stores.inspection.Inspection``.

    The ids come from the store's own indices, not from a scan of all keys. Sizes are
    what Redis says that our keys of clients take.
    """

    def __init__(self, url: str) -> None:
        self._address = RedisStoreAddress.parse(url)
        self._backend, self._layout = find_backend(self._address)
        self._living = LivingReplicas(
            self._beats, beat_s=self._address.beat_s, dead_after_s=self._address.dead_after_s
        )

    def summary(self) -> Summary:
        """See ``Inspection``."""
        intents = records = record_bytes = clients = size_bytes = 0
        oldest: int | None = None
        for client in self._clients():
            clients += 1
            size_bytes += client.memory_bytes
            for call in client.calls:
                intents += call.record_bytes is None
                records += call.record_bytes is not None
                record_bytes += call.record_bytes or 0
                oldest = min(oldest or call.changed_at_unix_s, call.changed_at_unix_s)
        sessions = [read_session(*entry) for entry in self._hash("sessions").items()]
        return Summary(
            url=str(self._address),
            schema_version=self._layout,
            incarnation=None,
            owner=self._living.told(),
            size_bytes=size_bytes,
            clients=clients,
            open_sessions=sum(row.state.value == "open" for row in sessions),
            intents=intents,
            records=records,
            record_bytes=record_bytes,
            oldest_unix_s=oldest,
            stopped=self._read("hget", self._backend.key("meta"), "stopped") is not None,
        )

    def clients(self, limit: int | None = None) -> list[ClientRow]:
        """See ``Inspection``."""
        sessions = self._hash("sessions")
        rows = [client_row(client, sessions) for client in self._clients()]
        rows.sort(key=lambda row: (-row.intents - row.records, row.client_id))
        return rows[:limit]

    def client(self, client_id: int) -> ClientRow | None:
        """See ``Inspection``."""
        found = self._client(client_id)
        if found is None:
            return None
        field = found.field
        value = self._read("hget", self._backend.key("sessions"), field) if field else None
        return client_row(found, {field: value} if value is not None else {})

    def calls(
        self, client_id: int | None = None, *, only_intents: bool = False
    ) -> Iterator[CallRow]:
        """See ``Inspection``. Those of one client are held at once, without their records."""
        for one in self._ids() if client_id is None else [client_id]:
            yield from self._calls(one, only_intents=only_intents)

    def call(self, rpc_id: RpcId) -> CallRow | None:
        """See ``Inspection``."""
        found = self._find(rpc_id)
        return None if found is None else found.row

    def record(self, rpc_id: RpcId) -> CompletionRecord | None:
        """See ``Inspection``."""
        return RecordCodec.inspected(self.stored(rpc_id), rpc_id)

    def stored(self, rpc_id: RpcId) -> bytes | None:
        """See ``Inspection``."""
        reply = self._look(rpc_id.client_id, "call", member_of(rpc_id), 1)
        return None if reply[0] == b"gone" else reply[2] or None

    def replace(self, rpc_id: RpcId, seen: bytes | None, data: bytes, note: str) -> bool:
        """See ``Inspection``. The note is elsewhere in a cluster, so it goes first."""
        found = self._find(rpc_id)
        if found is None or (found.row.record_bytes is None) is not (seen is None):
            return False
        self.remember(rpc_id, note)
        arguments = [member_of(rpc_id), found.token, seen or b"", data]
        return bool(self._run(SETTLE, rpc_id.client_id, arguments)[0] == b"settled")

    def refuse(self, rpc_id: RpcId, seen: bytes | None, data: bytes, note: str) -> bool:
        """See ``Inspection``."""
        if rpc_id.key is not None or self._find(rpc_id) is not None:
            # Keys are claimed, and what is known was, or is recorded.
            return False
        call = Call(rpc_id.client_id, b"", rpc_id.seq)
        # As the end of such a run would.
        request = FinishUnclaimed(call, _VERDICT, "", data, MAX_SEQ)
        ended = self._run(FINISH_UNCLAIMED, rpc_id.client_id, unclaimed_arguments(request))[0]
        if ended in (b"gone", b"acknowledged"):
            return False
        if ended != b"done":
            raise StoreLocked(f"{rpc_id} was recorded or begun just now; look again")
        self.remember(rpc_id, note)
        return True

    def remember(self, rpc_id: RpcId, note: str) -> None:
        """See ``Inspection``."""
        field = b"%d|%s" % (rpc_id.client_id, member_of(rpc_id))
        found = self._find(rpc_id)
        method, since_ms = b"", b"0"
        if found is not None:
            method, since_ms = (
                found.row.method.encode(),
                b"%d" % (1000 * found.row.changed_at_unix_s),
            )
        elif known := self._read(
            "hget", self._backend.index_key(rpc_id.client_id, "unknown"), field
        ):
            since_ms, method, _ = known.split(b"\n", 2)
        entry = b"%s\n%s\n%s" % (since_ms, method, note.encode())
        self._run(ENDS, rpc_id.client_id, ["remember", field, entry])

    def remembered(self) -> Iterator[tuple[RpcId, str, int | None, str | None]]:
        """See ``Inspection``."""
        holds = cache(self._living.holds)
        for bucket in range(BUCKETS if self._backend.clustered else 1):
            found = self._read("hgetall", self._backend.index_key(bucket, "unknown"))
            for field, entry in found.items():
                since_ms, method, note = entry.split(b"\n", 2)
                if note[:1] == b"@":
                    if holds(note[1:].partition(b"@")[0].decode()):
                        # Its caller gave it up, and it runs.
                        continue
                    note = b""
                client_id, _, member = field.partition(b"|")
                yield (
                    rpc_id_of(int(client_id), member),
                    method.decode(errors="replace"),
                    int(since_ms) // 1000 or None,
                    note.decode() or None,
                )

    def holder(self, rpc_id: RpcId) -> str | None:
        """See ``Inspection``."""
        found = self._find(rpc_id)
        if found is None or found.owner is None:
            return None
        return f"replica {found.owner}" if self._living.holds(found.owner) else None

    def release(self, rpc_id: RpcId) -> bool:
        """See ``Inspection``."""
        found = self._find(rpc_id)
        if found is None:
            return False
        if holder := self.holder(rpc_id):
            raise StoreLocked(f"{rpc_id} is run by {holder}, which lives")
        reply = self._run(RELEASE, rpc_id.client_id, [member_of(rpc_id), found.token])
        if reply[0] == b"changed":
            raise StoreLocked(f"{rpc_id} was recorded or taken over just now; look again")
        return bool(reply[0] == b"released")

    def rotate_secret(self) -> int:
        """See ``Inspection``."""
        try:
            return RedisLeaseStorage(self._backend).rotate_secret()[0].key_id
        except StorageUnavailable as error:
            raise StoreUnreachable(f"{self._address} cannot be written: {error}") from error

    def restored(self) -> str:
        """See ``Inspection``."""
        if told := self._living.told():
            raise StoreLocked(f"{self._address} is in use by {told}: stop the servers first")
        fresh = fresh_id()
        for client_id in self._ids():
            ends = "" if is_namespace(client_id) else "all"
            self._run(ACCEPT, client_id, [fresh, "row", ends])
        self._run(ACCEPT, None, [fresh, "store", "rifl restored", "restored from a backup"])
        self._backend.store_id = fresh.encode()
        try:
            RedisLeaseStorage(self._backend).close_all(time.time())
        except StorageUnavailable as error:
            raise StoreUnreachable(f"{self._address} cannot be written: {error}") from error
        return fresh

    def accept_loss(self, who: str, why: str) -> str:
        """See ``Inspection``."""
        fresh = fresh_id()
        # Rows first: done again, all of it is harmless.
        for client_id in self._ids():
            self._run(ACCEPT, client_id, [fresh, "row"])
        self._run(ACCEPT, None, [fresh, "store", who, why])
        return fresh

    def close(self) -> None:
        """See ``Inspection``."""
        self._backend.close()

    # -- reading --------------------------------------------------------------------------

    def _ids(self) -> Iterator[int]:
        """Return all ids that have a row: from the leases, then from what keys are filed."""
        seen: set[int] = set()
        for index in ("due", "ends"):
            cursor = 0
            while True:
                cursor, page = self._read(
                    "zscan", self._backend.key(index), cursor, count=_IDS_PAGE
                )
                seen.update(int(member) for member, _ in page)
                if not cursor:
                    break
        yield from sorted(seen)

    def _clients(self) -> Iterator[FoundClient]:
        for client_id in self._ids():
            client = self._client(client_id)
            if client is not None:
                yield client

    def _client(self, client_id: int) -> FoundClient | None:
        _, now, memory, store, first, ranges, _, _, due, field = self._look(client_id, "client")
        if not store:
            return None
        return FoundClient(
            client_id,
            int(memory),
            first or FIRST_SEQ,
            ranges,
            (int(due) - int(now)) / 1000 if due else None,
            field,
            self._calls(client_id),
        )

    def _calls(self, client_id: int, *, only_intents: bool = False) -> list[CallRow]:
        """Return one client's calls: what is recorded while we look is there once."""
        found: dict[RpcId, CallRow] = {}
        for runs in (1,) if only_intents else (1, 0):
            cursor = b"0"
            while True:
                _, cursor, page = self._look(client_id, "page", runs, cursor, _PAGE)
                for entry in page:
                    row = found_call(client_id, entry).row
                    found[row.rpc_id] = row
                if cursor == b"0":
                    break
        return sorted(found.values(), key=lambda row: (row.rpc_id.seq or 2**63, row.rpc_id.key))

    def _find(self, rpc_id: RpcId) -> FoundCall | None:
        reply = self._look(rpc_id.client_id, "call", member_of(rpc_id), 0)
        return None if reply[0] == b"gone" else found_call(rpc_id.client_id, reply[1])

    def _look(self, client_id: int, *arguments: Any) -> list[Any]:
        return self._run(LOOK, client_id, list(arguments))

    def _run(self, script: Script, client_id: int | None, arguments: list[Any]) -> list[Any]:
        try:
            return self._backend.run(script, client_id, arguments)
        except WentBackwards as error:
            raise StoreCorrupt(f"{self._address}: {error}") from error
        except BackendError as error:
            raise StoreUnreachable(f"{self._address} cannot be used: {error}") from error

    def _hash(self, name: str) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = self._read("hgetall", self._backend.key(name))
        return found

    def _beats(self) -> dict[str, int]:
        return {name.decode(): int(count) for name, count in self._hash("replicas").items()}

    def _read(self, command: str, *arguments: Any, **options: Any) -> Any:
        try:
            return getattr(self._backend.clients.blocking, command)(*arguments, **options)
        except (redis.RedisError, OSError) as error:
            raise StoreUnreachable(f"{self._address} cannot be read: {error}") from error
