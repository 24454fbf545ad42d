"""Snapshots in Redis: chunk by chunk, in force all at once."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from curp.log import _checks as checks
from curp.log._engine import Snapshot
from curp.log._entries import chunk_checksum, require_chunk
from curp.log._errors import EngineUnavailable, TrimmedLog
from curp.log._redis.connection import Connection
from curp.log._redis.scripts import LOAD, SNAPSHOT

_CHECKSUM_BYTES = 4


class Snapshots:
    """A group's snapshots. ``refuse`` raises what a refused reply means."""

    def __init__(self, redis: Connection, refuse: Callable[[list[Any], int], None]) -> None:
        self._redis = redis
        self._refuse = refuse

    def save(self, lsn: int, chunks: Iterable[bytes], configuration: int) -> None:
        """Write the chunks beside the older snapshot, then put them in its place."""
        name = secrets.token_hex(16)

        def step(action: str, old: bytes, *more: Any) -> bytes:
            keys = [self._key(name), self._key(old.decode())]
            arguments = [action, configuration, name, lsn, *(more or (old,))]
            reply = self._redis.run(SNAPSHOT, keys, arguments)
            if reply[0] == b"refused":
                self._refuse(reply, configuration)
                _, _, tail, _, newest, _ = reply
                checks.check_snapshot(lsn, None if newest < 0 else newest, tail)
            if reply[0] == b"superseded":
                raise EngineUnavailable("another snapshot was begun meanwhile")
            status: bytes = reply[0]
            return status

        self._until_done(lambda: step("begin", self._found()[3]))
        for number, chunk in enumerate(chunks):
            checks.check_chunk(chunk)
            checksum = chunk_checksum(number, chunk).to_bytes(_CHECKSUM_BYTES, "big")
            step("chunk", b"", number, checksum + chunk)
        self._until_done(lambda: step("finish", self._found()[0]))

    def load(self) -> Snapshot | None:
        """Return the newest whole snapshot; its chunks are read when asked for."""
        name, lsn, count, _ = self._found()
        if not name:
            return None
        return Snapshot(int(lsn), self._chunks(name, int(lsn), int(count)))

    def _chunks(self, name: bytes, lsn: int, count: int) -> Iterator[bytes]:
        for number in range(count):
            reply = self._redis.run(LOAD, [self._key(name.decode())], [name, number])
            if reply[3] != name:
                raise TrimmedLog.with_snapshot(lsn, int(reply[2]) + 1)
            found = reply[7]
            checksum, chunk = None, None
            if found is not None:
                checksum = int.from_bytes(found[:_CHECKSUM_BYTES], "big")
                chunk = found[_CHECKSUM_BYTES:]
            yield require_chunk(lsn, number, count, checksum, chunk)

    def _found(self) -> list[bytes]:
        """Return the snapshot's id, LSN and chunks, and the id of one being written."""
        found: list[bytes] = self._redis.run(LOAD, [], ["", ""])[3:7]
        return found

    def _key(self, name: str) -> str:
        return self._redis.key("snapshot", name)

    def _until_done(self, step: Callable[[], bytes]) -> None:
        # Again: somebody else's snapshot came between the look and the step.
        while step() == b"again":
            pass
