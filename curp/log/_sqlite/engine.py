"""``LogEngine`` over a SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from curp.log import _checks as checks
from curp.log._engine import (
    READ_BYTES,
    READ_ENTRIES,
    Entry,
    Leadership,
    MetadataCondition,
    NewEntry,
    NewLog,
    Snapshot,
)
from curp.log._entries import require_tag, unpack_tags
from curp.log._errors import CorruptLog, LeaseHeld, NoSuchLog
from curp.log._lease_clocks import this_machine
from curp.log._owner import GROUPS
from curp.log._sqlite.counting import counting_of
from curp.log._sqlite.rows import (
    GroupRow,
    append_rows,
    appended,
    entry_of,
    group_row,
    place,
    write_metadata,
)
from curp.log._sqlite.schema import begin_to_count, counts_commits, find_group, make_group
from curp.log._sqlite.snapshots import Snapshots, newest
from curp.log._sqlite.watch import TailWatch
from rifl._stores.forks import belongs_here
from sharedlog._engines.sqlite.file import LogFile
from sharedlog._engines.terms import BootClock, BootTerms, Term

_READ = "SELECT * FROM curp_entry WHERE place > ? AND place <= ? ORDER BY place LIMIT ?"
_READ_TAG = (
    "SELECT curp_entry.* FROM curp_tag CROSS JOIN curp_entry ON place = ? + lsn "
    "WHERE group_id=? AND tag=? AND lsn > ? ORDER BY lsn LIMIT ?"
)
_TAGGED = "SELECT lsn FROM curp_tag WHERE group_id=? AND tag=? AND lsn > ? ORDER BY lsn LIMIT ?"
_ALL_KEYS = "SELECT key, value FROM curp_metadata WHERE group_id=?"
_VALUE = "SELECT value FROM curp_metadata WHERE group_id=? AND key=?"
_LEAD = (
    "UPDATE curp_group SET configuration=?, replica=?, address=?, boot=?, expires_at=?, term_s=? "
    "WHERE group_id=?"
)
_RENEW = "UPDATE curp_group SET boot=?, expires_at=?, term_s=? WHERE group_id=?"
# A trim gives way to appends after each of these.
_TRIMMED_AT_ONCE = 1000


class SqliteEngine:
    """One process's way to one group's log in a file on this machine; see ``LogEngine``.

    The file may hold several groups. ``new`` creates the group's log, and the file
    where there is none (``LogExists``); without it the log must be there
    (``NoSuchLog``). ``read_only``: for tools, which look at a file that lacks commits, too.
    Raises ``CorruptLog`` and ``EngineUnavailable``, too.
    ``timeout_s``: how long a write waits for other processes' writes. ``clock`` is what
    leases end by. Linux only, and no network file system: WAL needs memory that its
    processes share.
    """

    limits = checks.LIMITS
    durability = (
        "SQLite, WAL, synchronous=FULL: an append is on this machine's disk before it is "
        "acknowledged, and is lost only with the disk"
    )

    def __init__(
        self,
        path: Path | str,
        group: str,
        *,
        new: NewLog | None = None,
        read_only: bool = False,
        timeout_s: float = 5.0,
        clock: BootClock | None = None,
    ) -> None:
        path = Path(path).absolute()
        self._lease = BootTerms(clock or this_machine())
        if new is None and not path.exists():
            raise NoSuchLog.of(str(path), group)
        self._file = LogFile(path, timeout_s, GROUPS, create=new is not None)
        try:
            if new is None:
                with self._file.reading() as connection:
                    found = find_group(connection, path, group)
            else:
                with self._file.writing() as connection:
                    found = make_group(connection, path, group, new)
            if found is None:
                raise NoSuchLog.of(str(path), group)
            if not read_only:
                self._guard(found, new=new is not None)
        except BaseException:
            self._file.close()
            raise
        self._group_id = group_id = found
        self._watch = TailWatch(self._file, group_id)
        self._snapshots = Snapshots(self._file, group_id)
        belongs_here(self, "log engine")

    # Leadership.

    def leadership(self) -> Leadership | None:
        """See ``LogEngine``."""
        with self._file.reading() as connection:
            row = self._row(connection)
            if row.configuration == 0:
                return None
            left_s = self._lease.remaining_s(row.lease)
            return Leadership(row.configuration, row.replica, row.address, left_s)

    def take_leadership(self, replica: str, address: str, *, term_s: float) -> int:
        """See ``LogEngine``."""
        checks.check_leader(replica, address, term_s)
        with self._file.writing() as connection:
            row = self._row(connection)
            if row.configuration and row.replica != replica:
                left_s = self._lease.remaining_s(row.lease)
                if left_s > 0:
                    raise LeaseHeld.by(row.replica, left_s)
            return self._begin(connection, row, replica, address, term_s)

    def renew_leadership(self, configuration: int, *, term_s: float) -> None:
        """See ``LogEngine``."""
        checks.check_term(term_s)
        with self._file.writing() as connection:
            row = self._row(connection)
            checks.require_configuration(configuration, row.configuration)
            self._renew(connection, self._lease.term(configuration, term_s))

    def end_leadership(self, configuration: int) -> None:
        """See ``LogEngine``."""
        with self._file.writing() as connection:
            row = self._row(connection)
            if row.configuration == configuration and row.term_s > 0:
                # With no term, it is over in every other boot, too.
                self._renew(connection, self._lease.term(configuration, 0.0))

    def next_configuration(
        self, configuration: int, metadata: Mapping[str, bytes | None], *, term_s: float
    ) -> int:
        """See ``LogEngine``."""
        checks.check_term(term_s)
        checks.check_metadata(metadata)
        with self._file.writing() as connection:
            row = self._row(connection)
            checks.require_configuration(configuration, row.configuration)
            write_metadata(connection, self._group_id, metadata)
            return self._begin(connection, row, row.replica, row.address, term_s)

    # The log.

    def append(
        self,
        entries: Sequence[NewEntry],
        *,
        configuration: int,
        expected_tail: int,
        append_id: bytes,
        condition: MetadataCondition | None = None,
        metadata: Mapping[str, bytes | None] | None = None,
    ) -> int:
        """See ``LogEngine``."""
        checks.check_append(entries, expected_tail, append_id, condition, metadata)
        with self._file.writing() as connection:
            row = self._row(connection)
            known = appended(connection, self._group_id, row.tail, expected_tail, append_id)
            if known is not None:
                return known
            checks.require_configuration(configuration, row.configuration)
            checks.require_tail(expected_tail, row.tail)
            self._require(connection, condition)
            write_metadata(connection, self._group_id, metadata or {})
            return append_rows(connection, self._group_id, row.tail, append_id, entries)

    def tail(self) -> int:
        """See ``LogEngine``."""
        with self._file.reading() as connection:
            return self._row(connection).tail

    def first(self) -> int:
        """See ``LogEngine``."""
        with self._file.reading() as connection:
            return self._row(connection).trimmed + 1

    def read(
        self,
        after: int,
        *,
        limit: int = READ_ENTRIES,
        max_bytes: int = READ_BYTES,
        tag: str | None = None,
    ) -> list[Entry]:
        """See ``LogEngine``."""
        checks.check_read(after, limit, max_bytes, tag)
        with self._file.reading() as connection:
            row = self._row(connection)
            checks.check_position(after, row.trimmed + 1, row.tail)
            if tag is None:
                expected: Iterable[int] = range(after + 1, row.tail + 1)
                keys = (place(self._group_id, after), place(self._group_id, row.tail), limit)
                rows = connection.execute(_READ, keys)
            else:
                names = (self._group_id, tag, after, limit)
                expected = [lsn for (lsn,) in connection.execute(_TAGGED, names)]
                rows = connection.execute(_READ_TAG, (place(self._group_id, 0), *names))
            found = self._collect(rows, expected, limit, max_bytes)
        for entry in found:
            require_tag(entry, tag)
        return found

    def wait(self, after: int, *, timeout_s: float) -> int:
        """See ``LogEngine``."""
        return self._watch.wait(after, timeout_s)

    def trim(self, through: int, *, configuration: int) -> None:
        """See ``LogEngine``. In force at once; the room is given back piece by piece."""
        with self._file.writing() as connection:
            row = self._row(connection)
            checks.require_configuration(configuration, row.configuration)
            checks.check_trim(through, newest(connection, self._group_id))
            connection.execute(
                "UPDATE curp_group SET trimmed=max(trimmed, ?) WHERE group_id=?",
                (through, self._group_id),
            )
        while self._remove_some(configuration):
            pass

    # Metadata.

    def metadata(self, key: str) -> bytes | None:
        """See ``LogEngine``."""
        with self._file.reading() as connection:
            return self._value(connection, key)

    def all_metadata(self) -> dict[str, bytes]:
        """See ``LogEngine``."""
        with self._file.reading() as connection:
            return dict(connection.execute(_ALL_KEYS, (self._group_id,)))

    def put_metadata(
        self,
        metadata: Mapping[str, bytes | None],
        *,
        configuration: int,
        condition: MetadataCondition | None = None,
    ) -> None:
        """See ``LogEngine``."""
        checks.check_metadata(metadata, condition)
        with self._file.writing() as connection:
            checks.require_configuration(configuration, self._row(connection).configuration)
            self._require(connection, condition)
            write_metadata(connection, self._group_id, metadata)

    # Snapshots.

    def save_snapshot(self, lsn: int, chunks: Iterable[bytes], *, configuration: int) -> None:
        """See ``LogEngine``."""
        self._snapshots.save(lsn, chunks, configuration)

    def load_snapshot(self) -> Snapshot | None:
        """See ``LogEngine``."""
        return self._snapshots.load()

    def close(self) -> None:
        """See ``LogEngine``."""
        self._file.close()

    def _guard(self, group_id: int, *, new: bool) -> None:
        with self._file.reading() as connection:
            counts = counts_commits(connection)
        if not counts:
            with self._file.writing() as connection:
                begin_to_count(connection)
        self._file.guard(counting_of(self._file.path, group_id), new=new)

    def _row(self, connection: sqlite3.Connection) -> GroupRow:
        return group_row(connection, self._group_id)

    def _begin(
        self,
        connection: sqlite3.Connection,
        row: GroupRow,
        replica: str,
        address: str,
        term_s: float,
    ) -> int:
        lease = self._lease.term(row.configuration + 1, term_s)
        connection.execute(_LEAD, (lease[0], replica, address, *lease[1:], self._group_id))
        return lease.number

    def _renew(self, connection: sqlite3.Connection, lease: Term) -> None:
        connection.execute(_RENEW, (*lease[1:], self._group_id))

    def _value(self, connection: sqlite3.Connection, key: str) -> bytes | None:
        row = connection.execute(_VALUE, (self._group_id, key)).fetchone()
        return None if row is None else bytes(row[0])

    def _require(self, connection: sqlite3.Connection, condition: MetadataCondition | None) -> None:
        if condition is not None:
            checks.require_condition(condition, self._value(connection, condition.key))

    def _collect(
        self, rows: sqlite3.Cursor, expected: Iterable[int], limit: int, max_bytes: int
    ) -> list[Entry]:
        """Return the rows' entries, which must be the expected ones, up to the bounds."""
        found: list[Entry] = []
        size = 0
        for lsn in expected:
            if len(found) == limit:
                break
            row = rows.fetchone()
            if row is None or row[0] != place(self._group_id, lsn):
                raise CorruptLog.without(lsn)
            entry = entry_of(row, self._group_id)
            size += len(entry.body)
            if found and size > max_bytes:
                break
            found.append(entry)
        return found

    def _remove_some(self, configuration: int) -> bool:
        """Remove rows of trimmed entries; return whether there were any."""
        with self._file.writing() as connection:
            row = self._row(connection)
            checks.require_configuration(configuration, row.configuration)
            keys = (place(self._group_id, 0), place(self._group_id, row.trimmed))
            gone = connection.execute(
                "SELECT place, tags FROM curp_entry WHERE place > ? AND place <= ? "
                "ORDER BY place LIMIT ?",
                (*keys, _TRIMMED_AT_ONCE),
            ).fetchall()
            if gone:
                tags = [
                    (self._group_id, tag, key - keys[0])
                    for key, packed in gone
                    for tag in unpack_tags(packed)
                ]
                connection.executemany(
                    "DELETE FROM curp_tag WHERE group_id=? AND tag=? AND lsn=?", tags
                )
                connection.execute(
                    "DELETE FROM curp_entry WHERE place > ? AND place <= ?", (keys[0], gone[-1][0])
                )
            return len(gone) == _TRIMMED_AT_ONCE
