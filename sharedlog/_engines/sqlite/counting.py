"""The count of the log's commits in its file, and the errors that the shared log raises of it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from rifl._log import get_logger
from sharedlog._core.errors import CorruptLog, LogFull, LogStopped, LogUnavailable
from sharedlog._engines.sqlite import rows
from sharedlog._engines.sqlite.commit_note import CommitNote
from sharedlog._engines.sqlite.file import Counting, Meanings

_log = get_logger("sharedlog")


def _tell_stopped(why: str) -> None:
    _log.critical("shared_log_stopped", why=why)


def _tell_note_gone(path: Path) -> None:
    _log.error("commit_note_gone", file=str(path))


def _not_begun(why: str) -> LogStopped:
    found = LogStopped(why)
    found.appended = False
    return found


MEANINGS = Meanings(
    CorruptLog,
    LogFull,
    LogStopped,
    _not_begun,
    LogUnavailable,
    tell_stopped=_tell_stopped,
    tell_note_gone=_tell_note_gone,
    remedy="accept the loss (sharedlog restored)",
)


def counting_of(path: Path) -> Counting:
    """Return how the log's commits are counted: by whoever writes its head, which is everybody."""

    def held(connection: sqlite3.Connection) -> int:
        return rows.head_of(connection).commits

    return Counting(note_of(path), held, held, always_noted=True)


def note_of(path: Path) -> CommitNote:
    """Return what is noted of the log beside its file."""
    return CommitNote(path.with_name(path.name + ".sharedlog"), "shared log commits")
