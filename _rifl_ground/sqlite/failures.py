"""The meaning of SQLite's errors: what ends the use of a file, and what passes."""

from __future__ import annotations

import sqlite3


class Stopped(sqlite3.Error):
    """A file is not used through this handle any more; the text says why, and what to do."""


class Replaced(Stopped):
    """The files are not those that were opened: what is written now would be lost."""


class SyncFailed(Stopped):
    """A sync of the file failed: what is on the disk is unknown."""


class CutOff(sqlite3.DatabaseError):
    """A file is shorter than any of SQLite's."""


class NoWal(sqlite3.OperationalError):
    """The file's place, or this build of SQLite, allows no WAL."""


def name_of(error: BaseException) -> str:
    """Return SQLite's name of an error; empty: it has none."""
    return getattr(error, "sqlite_errorname", None) or ""


def is_failed_sync(error: BaseException) -> bool:
    """Whether a sync of a commit failed.

    It is never tried again: the kernel takes the pages for written after it has said once that
    they are not, so that the next sync succeeds without them. A sync that fails while a checkpoint
    moves pages from the WAL is none of these: the WAL has the pages, and they are written again.
    """
    return "FSYNC" in name_of(error)


def is_damage(error: BaseException) -> bool:
    """Whether the file is damaged, or none of SQLite's."""
    named = name_of(error).startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))
    return named or isinstance(error, CutOff)


def is_busy(error: BaseException) -> bool:
    """Whether another connection has the file."""
    return name_of(error).startswith("SQLITE_BUSY")
