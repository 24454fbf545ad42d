"""Snapshots in etcd: piece by piece, in force all at once."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from curp.log import _checks as checks
from curp.log._engine import Snapshot
from curp.log._errors import CorruptLog, EngineUnavailable, TrimmedLog
from curp.log._etcd.connection import Connection
from curp.log._etcd.records import cut, join
from sharedlog._engines.etcd.calls import delete, equal, get, put, revision_of, scan, unchanged
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb

_PIECE_BYTES = 512 << 10
_AT_ONCE = 8
_ROUNDS = 20


class Found(NamedTuple):
    """The newest whole snapshot's place; ``revision`` of the key that says so."""

    name: str
    lsn: int
    pieces: int
    revision: int


class Snapshots:
    """A group's snapshots."""

    def __init__(self, log: Connection) -> None:
        self._log = log

    def save(self, lsn: int, chunks: Iterable[bytes], configuration: int) -> None:
        """Write the pieces beside the older snapshot, then put them in its place.

        Each step is conditional on the configuration number. What a save that broke
        off leaves behind is removed by the next one.
        """
        name = secrets.token_hex(16)
        saving = equal(self._log.keys.saving, name.encode())
        self._begin(name, lsn, configuration)
        count = 0
        for chunk in chunks:
            checks.check_chunk(chunk)
            for piece in cut(chunk, _PIECE_BYTES, count):
                written = self._log.write(
                    [self._log.current(configuration), saving],
                    [put(self._log.keys.piece(name, count), piece)],
                    again=True,
                )
                if written.facts is not None:
                    checks.require_configuration(configuration, written.facts.configuration)
                    raise EngineUnavailable("another snapshot was begun meanwhile")
                count += 1
        self._finish(name, lsn, count, configuration)

    def load(self) -> Snapshot | None:
        """Return the newest whole snapshot; its chunks are read when asked for."""
        _, found = self._log.read(get(self._log.keys.snapshot))
        newest = find(found)
        if newest is None:
            return None
        return Snapshot(newest.lsn, join(self._pieces(newest)))

    def _pieces(self, snapshot: Found) -> Iterator[bytes]:
        keys, at = self._log.keys, 0
        _, end = keys.pieces(snapshot.name)
        while at < snapshot.pieces:
            facts, found = self._log.read(
                get(keys.snapshot), scan(keys.piece(snapshot.name, at), end, _AT_ONCE)
            )
            if find(found) != snapshot:
                raise TrimmedLog.with_snapshot(snapshot.lsn, facts.trimmed + 1)
            for kv in found[1].kvs if found else ():
                if kv.key != keys.piece(snapshot.name, at):
                    break
                yield kv.value
                at += 1
            else:
                if found and found[1].kvs:
                    continue
            if at < snapshot.pieces:
                raise CorruptLog(f"the snapshot at {snapshot.lsn} lacks its piece {at}")

    def _begin(self, name: str, lsn: int, configuration: int) -> None:
        keys = self._log.keys
        for _ in range(_ROUNDS):
            facts, found = self._log.read(get(keys.snapshot), get(keys.saving))
            checks.require_configuration(configuration, facts.configuration)
            newest = find(found)
            checks.check_snapshot(lsn, newest and newest.lsn, facts.tail.lsn)
            # What a save that broke off has left.
            old = found[1].kvs[0] if found and found[1].kvs else None
            writes = [put(keys.saving, name.encode())]
            if old is not None:
                writes.append(delete(*keys.pieces(old.value.decode())))
            conditions = [
                self._log.current(configuration),
                unchanged(keys.saving, revision_of(old)),
            ]
            if self._log.write(conditions, writes).facts is None:
                return
        raise EngineUnavailable("other snapshots are begun at the same time")

    def _finish(self, name: str, lsn: int, pieces: int, configuration: int) -> None:
        keys = self._log.keys
        whole = json.dumps({"id": name, "lsn": lsn, "pieces": pieces}).encode()
        for _ in range(_ROUNDS):
            facts, found = self._log.read(get(keys.snapshot))
            checks.require_configuration(configuration, facts.configuration)
            old = find(found)
            checks.check_snapshot(lsn, old and old.lsn, facts.tail.lsn)
            writes = [put(keys.snapshot, whole), delete(keys.saving)]
            if old is not None:
                writes.append(delete(*keys.pieces(old.name)))
            conditions = [
                self._log.current(configuration),
                equal(keys.saving, name.encode()),
                unchanged(keys.snapshot, old.revision if old else 0),
            ]
            written = self._log.write(conditions, writes, get(keys.saving))
            if written.facts is None:
                return
            checks.require_configuration(configuration, written.facts.configuration)
            (saving,) = written.found
            if saving is None or saving.value != name.encode():
                raise EngineUnavailable("another snapshot was begun meanwhile")
        raise EngineUnavailable("other snapshots are finished at the same time")


def find(found: list[pb.RangeResponse] | None) -> Found | None:
    """Return what the snapshot's key, the first that was read, says; raises ``CorruptLog``."""
    if not found or not found[0].kvs:
        return None
    kv = found[0].kvs[0]
    try:
        told = json.loads(kv.value)
        return Found(str(told["id"]), int(told["lsn"]), int(told["pieces"]), kv.mod_revision)
    except (ValueError, KeyError, TypeError):
        raise CorruptLog("the log's snapshot is damaged") from None
