"""Reader of a log's entries in etcd, a page at a time."""

from __future__ import annotations

from curp.log import _checks as checks
from curp.log._engine import Entry
from curp.log._errors import CorruptLog
from curp.log._etcd.connection import Connection
from curp.log._etcd.records import unpack_append
from sharedlog._engines.etcd.calls import equal, scan
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb

# Appends a page: few at first, since a large one is as much as a request may be.
_FIRST_PAGE = 16
_LARGEST_PAGE = 256
_SMALL_BYTES = 1 << 20


class Reading:
    """Reads one log's entries, and knows the last append it saw: what follows must
    follow that one. Any thread.
    """

    def __init__(self, log: Connection) -> None:
        self._log = log
        self._known = (0, b"")

    def know(self, lsn: int, append_id: bytes) -> None:
        """Note which append ends at that LSN."""
        self._known = lsn, append_id

    def known(self, lsn: int) -> bytes:
        """Return the id of the append that was seen to end there, empty if none was."""
        found, append_id = self._known
        return append_id if found == lsn else b""

    def read(self, after: int, limit: int, max_bytes: int, tag: str | None) -> list[Entry]:
        """Return entries; see ``LogEngine.read``."""
        found: list[Entry] = []
        size, at, page = 0, after, _FIRST_PAGE
        while True:
            trimmed, tail, kvs = self._page(at, page)
            if not found or trimmed <= at:
                checks.check_position(at, trimmed + 1, tail)
            else:
                return found
            began = at
            for kv in kvs:
                if len(found) == limit:
                    return found
                last = self._log.keys.last_of(kv.key)
                entries = unpack_append(last, kv.value)
                # One that a trim or a reader stands amid of begins before.
                if entries[0].lsn > at + 1 or last > tail or (at > began and entries[0].lsn <= at):
                    raise CorruptLog.without(at + 1)
                for entry in entries[at + 1 - entries[0].lsn :]:
                    if tag is None or tag in entry.tags:
                        size += len(entry.body)
                        if len(found) == limit or (found and size > max_bytes):
                            return found
                        found.append(entry)
                at = last
                self.know(last, kv.value[: checks.APPEND_ID_BYTES])
            if at == tail or len(found) == limit or size > max_bytes:
                return found
            if at == began:
                raise CorruptLog.without(at + 1)
            if sum(len(kv.value) for kv in kvs) < _SMALL_BYTES:
                page = min(2 * page, _LARGEST_PAGE)

    def _page(self, after: int, limit: int) -> tuple[int, int, list[pb.KeyValue]]:
        """Return what is trimmed, the tail, and appends behind ``after``, of one revision."""
        keys = self._log.keys
        asked = scan(keys.append(after + 1), keys.log_end, limit)
        known = self.known(after)
        facts, found = self._log.read(asked, compare=self._begins(after, known))
        if found is None:
            if facts.trimmed < after:
                raise CorruptLog.with_another(after)
            # What could be compared was trimmed.
            facts, found = self._log.read(asked)
        return facts.trimmed, facts.tail.lsn, list(found[0].kvs) if found else []

    def _begins(self, lsn: int, append_id: bytes) -> list[pb.Compare]:
        """Require that the append that ends there has that id, which its value begins with."""
        if not append_id:
            return []
        key = self._log.keys.append(lsn)
        above = equal(key, append_id, pb.Compare.GREATER)
        behind = int.from_bytes(append_id) + 1
        if behind.bit_length() > 8 * len(append_id):
            return [above]
        return [above, equal(key, behind.to_bytes(len(append_id)), pb.Compare.LESS)]
