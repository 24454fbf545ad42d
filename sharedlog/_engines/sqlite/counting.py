"""The count of the log's commits in its file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sharedlog._engines.sqlite import rows
from sharedlog._engines.sqlite.commit_note import CommitNote
from sharedlog._engines.sqlite.file import Counting


def counting_of(path: Path) -> Counting:
    """Return how the log's commits are counted: every commit writes the log's head."""

    def held(connection: sqlite3.Connection) -> int:
        return rows.head_of(connection).commits

    return Counting(note_of(path), held, always_noted=True)


def note_of(path: Path) -> CommitNote:
    """Return what is noted of the log beside its file."""
    return CommitNote(path.with_name(path.name + ".sharedlog"), "shared log commits")


def renewals_of(path: Path) -> Path:
    """Return the file beside a log file that has the terms which were renewed."""
    return path.with_name(path.name + ".sharedlog-terms")
