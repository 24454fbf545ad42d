"""Rows of a log file: those of entries, and the group's own."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from curp.log._engine import Entry, NewEntry
from curp.log._entries import entry_checksum, pack_tags, unpack_entry
from curp.log._errors import CorruptLog
from curp.log._sqlite.schema import LSN_BITS
from sharedlog._engines.terms import Term

_GROUP = (
    "SELECT tail, trimmed, configuration, replica, address, boot, expires_at, term_s "
    "FROM curp_group WHERE group_id=?"
)
_INSERT = "INSERT INTO curp_entry VALUES (?, ?, ?, ?, ?)"
_SET_KEY = (
    "INSERT INTO curp_metadata VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value=excluded.value"
)
_DROP_KEY = "DELETE FROM curp_metadata WHERE group_id=? AND key=?"


class GroupRow(NamedTuple):
    """Where a group stands."""

    tail: int
    trimmed: int
    configuration: int
    replica: str
    address: str
    boot: str
    expires_at: float
    term_s: float

    @property
    def lease(self) -> Term:
        """When the leader's lease ends."""
        return Term(self.configuration, self.boot, self.expires_at, self.term_s)


def group_row(connection: sqlite3.Connection, group_id: int) -> GroupRow:
    """Return where the group stands, in the connection's transaction."""
    row = connection.execute(_GROUP, (group_id,)).fetchone()
    if row is None:
        raise CorruptLog("the group's row is gone")
    return GroupRow(*row)


def place(group_id: int, lsn: int) -> int:
    """Return the key of an entry."""
    return (group_id << LSN_BITS) + lsn


def entry_of(row: Sequence[Any], group_id: int) -> Entry:
    """Return the entry of a row (place, append_id, tags, checksum, body), checked."""
    key, append_id, tags, checksum, body = row
    return unpack_entry(key - place(group_id, 0), append_id, tags, checksum, body)


def appended(
    connection: sqlite3.Connection, group_id: int, tail: int, expected_tail: int, append_id: bytes
) -> int | None:
    """Return the last LSN of that append if it is in the log already."""
    if expected_tail >= tail:
        return None
    last = None
    rows = connection.execute(
        "SELECT place, append_id FROM curp_entry WHERE place > ? AND place <= ? ORDER BY place",
        (place(group_id, expected_tail), place(group_id, tail)),
    )
    for lsn, (key, found) in enumerate(rows, expected_tail + 1):
        if key != place(group_id, lsn) or found != append_id:
            break
        last = lsn
    return last


def append_rows(
    connection: sqlite3.Connection,
    group_id: int,
    tail: int,
    append_id: bytes,
    entries: Sequence[NewEntry],
) -> int:
    """Write entries behind the tail, with their tags; return the new tail."""
    rows, tags = [], []
    for lsn, entry in enumerate(entries, tail + 1):
        checksum = entry_checksum(lsn, append_id, entry.tags, entry.body)
        key = place(group_id, lsn)
        rows.append((key, append_id, pack_tags(entry.tags), checksum, entry.body))
        tags += [(group_id, tag, lsn) for tag in entry.tags]
    connection.executemany(_INSERT, rows)
    if tags:
        connection.executemany("INSERT INTO curp_tag VALUES (?, ?, ?)", tags)
    tail += len(rows)
    connection.execute("UPDATE curp_group SET tail=? WHERE group_id=?", (tail, group_id))
    return tail


def write_metadata(
    connection: sqlite3.Connection, group_id: int, metadata: Mapping[str, bytes | None]
) -> None:
    """Write keys, None deleting one."""
    items: Iterable[tuple[str, bytes | None]] = metadata.items()
    for key, value in items:
        if value is None:
            connection.execute(_DROP_KEY, (group_id, key))
        else:
            connection.execute(_SET_KEY, (group_id, key, value))
