"""The tables of a log in a SQLite file, and what is read from them and written to them.

All of it works on a connection that is in a transaction: an engine's, or one that others began.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sharedlog._core.commit import Commit, Refused, only_renews, stamped
from sharedlog._core.entry import Row
from sharedlog._core.errors import CorruptLog, NoSuchLog
from sharedlog._core.steps import Lsns
from sharedlog._engines.checksums import damage, kept, value_of
from sharedlog._engines.engine import READ_BYTES
from sharedlog._engines.formats import check_format
from sharedlog._engines.sqlite import tags
from sharedlog._engines.sqlite.terms import FileTerms, Terms, read_terms

FORMAT = 1
_TABLES = """
CREATE TABLE sharedlog_meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
-- Through which LSN entries were removed, and the last one's time; how many transactions have
-- written the log without an entry; through which LSN entries are in sharedlog_tag. Most
-- transactions with entries do not change it.
CREATE TABLE sharedlog_head (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    removed INTEGER NOT NULL,
    at_us INTEGER NOT NULL,
    silent INTEGER NOT NULL,
    indexed INTEGER NOT NULL
);
-- tags is a line each; mark is the CRC-32 of lsn, at_us and tags, checksum goes on from it over
-- the body.
CREATE TABLE sharedlog_entry (
    lsn INTEGER PRIMARY KEY,
    at_us INTEGER NOT NULL,
    tags TEXT NOT NULL,
    mark INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    body BLOB NOT NULL
);
-- One row for what a tag got in some hundreds of entries: the last LSN, and how far below it the
-- others are, 4 bytes each, growing. NULL where there are none.
CREATE TABLE sharedlog_tag (
    tag TEXT NOT NULL,
    last INTEGER NOT NULL,
    below BLOB,
    PRIMARY KEY (tag, last)
) WITHOUT ROWID;
-- value begins with a checksum over key and value.
CREATE TABLE sharedlog_key (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
-- Of keys that have one: it is over at expires_at seconds after that boot.
CREATE TABLE sharedlog_term (
    key TEXT PRIMARY KEY,
    boot TEXT NOT NULL,
    expires_at REAL NOT NULL,
    term_s REAL NOT NULL
) WITHOUT ROWID
"""
_IS_THERE = "SELECT count(*) FROM sqlite_master WHERE name = 'sharedlog_meta'"
_FORMAT = "SELECT value FROM sharedlog_meta WHERE name = 'format'"
_HEAD = (
    "SELECT coalesce(lsn, removed), removed, coalesce(entry.at_us, head.at_us), silent, indexed "
    "FROM sharedlog_head AS head LEFT JOIN sharedlog_entry AS entry "
    "ON lsn = (SELECT max(lsn) FROM sharedlog_entry)"
)
_REMOVED = (
    "UPDATE sharedlog_head SET removed = ?1, at_us = ?2, silent = ?3, indexed = max(indexed, ?1)"
)
_SILENT = "UPDATE sharedlog_head SET silent = ?"
# A flipped bit makes a text of a value, which may be none that can be read.
_VALUE = "CASE typeof(value) WHEN 'blob' THEN value END"
_KEY = f"SELECT {_VALUE} FROM sharedlog_key WHERE key = ?"  # noqa: S608 - our own words
_SET_KEY = (
    "INSERT INTO sharedlog_key VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
)
_DROP_KEY = "DELETE FROM sharedlog_key WHERE key = ?"
# Keys of one prefix are neighbours; no byte of UTF-8 is 255.
_SCAN = (
    f"SELECT key, {_VALUE} FROM sharedlog_key "  # noqa: S608 - our own words
    "WHERE key >= ? AND key < CAST(? AS TEXT)"
)
_ALL = f"SELECT CAST(key AS BLOB), {_VALUE} FROM sharedlog_key ORDER BY key"  # noqa: S608
_INSERT = "INSERT INTO sharedlog_entry VALUES (?, ?, ?, ?, ?, ?)"
_READ = "SELECT * FROM sharedlog_entry WHERE lsn > ? ORDER BY lsn LIMIT ?"
_READ_SOME = (
    "SELECT entry.* FROM json_each(?) AS wanted "
    "CROSS JOIN sharedlog_entry AS entry ON lsn = wanted.value"
)


class Head(NamedTuple):
    """Newest LSN, newest removed one, newest row's time, transactions without an entry.

    ``indexed``: through which LSN entries are in the index of tags.
    """

    tail: int
    removed: int
    at_us: int
    silent: int
    indexed: int

    @property
    def commits(self) -> int:
        """A number that every transaction raises."""
        return self.tail + self.silent


def is_there(connection: sqlite3.Connection) -> bool:
    """Whether the file holds a log."""
    return bool(connection.execute(_IS_THERE).fetchone()[0])


def make(connection: sqlite3.Connection, keys: Mapping[str, bytes], removed: int = 0) -> None:
    """Make an empty log that begins with these keys, behind so many LSNs."""
    for statement in _TABLES.split(";\n"):
        connection.execute(statement)
    connection.execute("INSERT INTO sharedlog_meta VALUES ('format', ?)", (FORMAT,))
    connection.execute("INSERT INTO sharedlog_head VALUES (1, ?1, 0, 0, ?1)", (removed,))
    put_keys(connection, keys)


def put_keys(connection: sqlite3.Connection, keys: Mapping[str, bytes | None]) -> None:
    """Write keys; None deletes one."""
    if None in keys.values():
        gone = [(key,) for key, value in keys.items() if value is None]
        connection.executemany(_DROP_KEY, gone)
        keys = {key: value for key, value in keys.items() if value is not None}
    values = map(kept, keys, keys.values())  # type: ignore[arg-type]  # none of them is None
    connection.executemany(_SET_KEY, zip(keys, values, strict=True))


def check(connection: sqlite3.Connection, where: str) -> None:
    """Raise ``NoSuchLog``, ``NewerFormat``, ``CorruptLog`` unless a usable log is there."""
    if not is_there(connection):
        raise NoSuchLog(f"{where}: a SQLite file without a log; create makes one in it")
    row = connection.execute(_FORMAT).fetchone()
    check_format(row and row[0], FORMAT, where)


def head_of(connection: sqlite3.Connection) -> Head:
    """Return where the log stands."""
    row = connection.execute(_HEAD).fetchone()
    if row is None:
        raise CorruptLog("the log's head is gone")
    # SQLite keeps values of any type, and a flipped bit makes one of another.
    if not all(type(value) is int for value in row):
        raise CorruptLog("the log's head is damaged: what should be numbers is none")
    head = Head(*row)
    if not head.removed <= head.indexed <= head.tail:
        raise CorruptLog("the log's head is damaged: it says another end of the index of tags")
    return head


def wrote_none(connection: sqlite3.Connection, head: Head) -> Head:
    """Count a transaction without an entry; where the log stands then."""
    connection.execute(_SILENT, (head.silent + 1,))
    return head._replace(silent=head.silent + 1)


def values_of(connection: sqlite3.Connection, keys: Iterable[str]) -> dict[str, bytes | None]:
    """Return what keys hold."""
    found: dict[str, bytes | None] = {}
    for key in keys:
        row = connection.execute(_KEY, (key,)).fetchone()
        found[key] = None if row is None else value_of(key, row[0])
    return found


def scan(connection: sqlite3.Connection, prefix: str) -> dict[str, bytes]:
    """Return the keys with this prefix, and what they hold."""
    # All at once: see ``_bounded``.
    rows = connection.execute(_SCAN, (prefix, prefix.encode() + b"\xff")).fetchall()
    return {key: value_of(key, value) for key, value in rows}


def damaged(connection: sqlite3.Connection) -> list[str]:
    """Return what is wrong with keys, in words."""
    return damage(connection.execute(_ALL))


class WriteBatch:
    """Commits judged one after the other, whose rows are then written at once.

    ``values``: what keys hold that the conditions ask for; those that are missing are read.
    Puts go in as well, so that it is what they hold afterwards, if the transaction commits.
    ``terms``: of keys that have one; those of the file if none are given. A put that only renews
    one is written with the rows, or beside the file if there are none. ``newest``: LSN and tags of
    what was appended last, as far as that is known, above the index of tags; its entries go in as
    well.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        head: Head,
        values: dict[str, bytes | None],
        terms: Terms | None = None,
        newest: list[tuple[int, str]] | None = None,
    ) -> None:
        self._terms = Terms(read_terms(connection), FileTerms()) if terms is None else terms
        self._connection = connection
        self._values = values
        self._newest = [] if newest is None else newest
        self.head = head
        self._puts: dict[str, bytes | None] = {}
        self._entries: list[tuple[Any, ...]] = []

    @property
    def empty(self) -> bool:
        """Whether there is nothing to be written into the file."""
        return not (self._puts or self._entries)

    def add(self, commit: Commit) -> Lsns | Refused:
        """Judge a commit behind those before it, and take its rows; or say what refuses it."""
        values, terms = self._values, self._terms
        some = terms.any
        conditions, puts, entries, now_us = commit
        holds = True
        for key, value in conditions:
            if key not in values:
                values[key] = self._value(key)
            if some and terms.over(key):
                values[key] = None
            if values[key] != value:
                holds = False
        if not holds:
            return Refused({key: values[key] for key, _ in conditions})
        tail, removed, at_us, silent, indexed = self.head
        last = tail + len(entries)
        first = tail + 1 if entries else tail
        for put in puts:
            key, _, _, term_s = put
            if term_s is not None:
                if only_renews(put, conditions) and terms.renew(key, term_s):
                    continue
                terms.put(key, term_s)
            elif some:
                terms.put(key, None)
            self._puts[key] = value = stamped(put, first, last)
            if key in values:
                values[key] = value
        if entries:
            at_us = max(at_us, now_us)
            crc32, mark_of, join = zlib.crc32, tags.mark_of, tags.BETWEEN.join
            add, note = self._entries.append, self._newest.append
            for lsn, (body, names) in enumerate(entries, first):
                text = join(names)
                mark = mark_of(lsn, at_us, text)
                add((lsn, at_us, text, mark, crc32(body, mark), body))
                note((lsn, text))
            self.head = Head(last, removed, at_us, silent, indexed)
        return Lsns(first, last)

    def write(self) -> None:
        """Write all rows."""
        connection = self._connection
        if not self._entries:
            self.head = wrote_none(connection, self.head)
        put_keys(connection, self._puts)
        self._terms.write(connection)
        connection.executemany(_INSERT, self._entries)
        tail, indexed = self.head.tail, self.head.indexed
        if tail - indexed >= tags.UNINDEXED:
            tags.index(connection, indexed, tail, self._newest)
            self._newest.clear()
            self.head = self.head._replace(indexed=tail)

    def _value(self, key: str) -> bytes | None:
        # A put of this batch counts, also if no condition had read the key before it.
        if key in self._puts:
            return self._puts[key]
        return values_of(self._connection, (key,))[key]


def read(
    connection: sqlite3.Connection, after: int, limit: int, tail: int
) -> tuple[list[Row], bool]:
    """Return rows, and whether a bound cut them short."""
    wanted = range(after + 1, after + 1 + limit)
    found, cut = _bounded(connection.execute(_READ, (after, limit)), wanted)
    if not cut and after + len(found) < tail:
        raise CorruptLog(f"LSN {after + len(found) + 1} is missing")
    return found, cut


def read_tagged(
    connection: sqlite3.Connection, tag: str, after: int, limit: int, head: Head
) -> tuple[list[Row], bool]:
    """Return rows with the tag, and whether a bound cut them short."""
    wanted = tags.tagged(connection, tag, after, limit, head.indexed, head.tail)
    if not wanted:
        return [], False
    if wanted[-1] - wanted[0] + 1 == len(wanted):
        cursor = connection.execute(_READ, (wanted[0] - 1, len(wanted)))
    else:
        cursor = connection.execute(_READ_SOME, (json.dumps(wanted),))
    found, cut = _bounded(cursor, wanted)
    if not cut:
        raise CorruptLog(f"entries with the tag {tag!r} behind LSN {after} are missing")
    if any(tag not in row.tags for row in found):
        raise CorruptLog(f"an entry behind LSN {after} does not have its tag {tag!r}")
    return found, len(found) < len(wanted) or len(wanted) == limit


def remove(connection: sqlite3.Connection, head: Head, last: int) -> None:
    """Remove the rows up to this LSN, and their tags'."""
    # Damaged rows, too: what a snapshot has reached is not read again.
    texts = connection.execute(
        "SELECT DISTINCT tags FROM sharedlog_entry WHERE lsn <= ? AND typeof(tags) = 'text'",
        (last,),
    ).fetchall()
    tags.remove(connection, (text for (text,) in texts), last)
    connection.execute("DELETE FROM sharedlog_entry WHERE lsn <= ?", (last,))
    # The newest row's time is asked for here once no row is left.
    connection.execute(_REMOVED, (last, head.at_us, head.silent + 1))


def _bounded(cursor: sqlite3.Cursor, wanted: Sequence[int]) -> tuple[list[Row], bool]:
    """Return the rows that are there of these LSNs, up to the bound of bytes.

    And whether a bound cut them short: that of bytes, or the last LSN that is wanted.
    """
    try:
        return _rows_of(cursor, wanted)
    finally:
        # An error's traceback keeps it, and while it is alive, the next one sees what it saw.
        cursor.close()


def _rows_of(found: Iterable[tuple[Any, ...]], wanted: Sequence[int]) -> tuple[list[Row], bool]:
    rows: list[Row] = []
    size = 0
    crc32, mark_of, tags_of, new = zlib.crc32, tags.mark_of, tags.tags_of, tuple.__new__
    for (lsn, at_us, text, mark, checksum, body), expected in zip(found, wanted, strict=False):
        if not isinstance(body, bytes):
            raise CorruptLog(f"LSN {lsn} is damaged")
        size += len(body)
        if size > READ_BYTES and rows:
            return rows, True
        if mark_of(lsn, at_us, text) != mark or crc32(body, mark) != checksum:
            raise CorruptLog(f"LSN {lsn} is damaged")
        if lsn != expected:
            raise CorruptLog(f"LSN {expected} is missing")
        # What ``Row`` does by itself, a third less of it: see ``reading``.
        rows.append(new(Row, (lsn, body, tags_of(text), at_us)))
    return rows, len(rows) == len(wanted)
