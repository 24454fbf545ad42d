"""The count of a log's commits in its file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sharedlog._engines.sqlite.commit_note import CommitNote
from sharedlog._engines.sqlite.file import Counting

_COMMITS = "SELECT commits FROM curp_group WHERE group_id=?"
_RAISE = "UPDATE curp_group SET commits=commits+1 WHERE group_id=?"


def counting_of(path: Path, group_id: int) -> Counting:
    """Return how a group's commits are counted."""

    def held(connection: sqlite3.Connection) -> int:
        return int(connection.execute(_COMMITS, (group_id,)).fetchone()[0])

    def count(connection: sqlite3.Connection) -> int:
        # In two: RETURNING is younger than the oldest SQLite that Python comes with.
        connection.execute(_RAISE, (group_id,))
        return held(connection)

    return Counting(note_of(path, group_id), held, count)


def note_of(path: Path, group_id: int) -> CommitNote:
    """Return what is noted of a group beside the file."""
    return CommitNote(path.with_name(path.name + ".curp"), "curp log commits", group_id)
