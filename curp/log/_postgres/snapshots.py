"""Snapshots in PostgreSQL: chunk by chunk, in force all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from curp.log import _checks as checks
from curp.log._engine import Snapshot
from curp.log._entries import chunk_checksum, require_chunk
from curp.log._errors import CorruptLog, TrimmedLog
from sharedlog._engines.postgres.connection import Connection, FunctionRefused

_NEWEST = """
SELECT s.snapshot_id, s.lsn, s.chunks FROM {0}.snapshot s JOIN {0}.log l USING (log_id)
WHERE l.incarnation = %s AND s.chunks IS NOT NULL ORDER BY s.snapshot_id DESC LIMIT 1
"""
_CHUNK = """
SELECT l.trimmed, s.snapshot_id, c.checksum, c.body FROM {0}.log l
LEFT JOIN {0}.snapshot s ON s.log_id = l.log_id AND s.snapshot_id = %s
LEFT JOIN {0}.chunk c ON c.snapshot_id = s.snapshot_id AND c.number = %s
WHERE l.incarnation = %s
"""


class Snapshots:
    """A group's snapshots. ``refuse`` raises what a refusal means to a writer of a number."""

    def __init__(
        self, connection: Connection, refuse: Callable[[FunctionRefused, int], None]
    ) -> None:
        self._connection = connection
        self._refuse = refuse

    def save(self, lsn: int, chunks: Iterable[bytes], configuration: int) -> None:
        """Write the chunks beside the older snapshot, then put them in its place."""

        def step(function: str, types: str, *arguments: Any) -> Any:
            try:
                row = self._connection.call(function, f"int8 {types}", (configuration, *arguments))
            except FunctionRefused as refused:
                self._refuse(refused, configuration)
                facts = refused.facts
                checks.check_snapshot(lsn, facts["snapshot"], facts["tail"])
                raise CorruptLog(f"a snapshot was refused for no reason: {facts}") from None
            return row[0]

        snapshot = step("begin_snapshot_1", "int8", lsn)
        count = 0
        for number, chunk in enumerate(chunks):
            checks.check_chunk(chunk)
            checksum = chunk_checksum(number, chunk)
            step("save_chunk_1", "int8 int8 int8 bytea", snapshot, number, checksum, bytes(chunk))
            count += 1
        step("finish_snapshot_1", "int8 int8 int8", snapshot, lsn, count)

    def load(self) -> Snapshot | None:
        """Return the newest whole snapshot; its chunks are read when asked for."""
        connection = self._connection
        found = connection.read(_NEWEST.format(connection.schema), (connection.incarnation,))
        if not found:
            return None
        snapshot_id, lsn, count = found[0]
        return Snapshot(lsn, self._chunks(snapshot_id, lsn, count))

    def _chunks(self, snapshot_id: int, lsn: int, count: int) -> Iterator[bytes]:
        connection = self._connection
        for number in range(count):
            rows = connection.read(
                _CHUNK.format(connection.schema), (snapshot_id, number, connection.incarnation)
            )
            trimmed, there, checksum, chunk = rows[0] if rows else (0, None, None, None)
            if there is None:
                raise TrimmedLog.with_snapshot(lsn, trimmed + 1)
            yield require_chunk(lsn, number, count, checksum, chunk)
