"""A log's first moment, and the one at which an operator says that its end is lost."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from _rifl_ground.sqlite.folders import sync_folder
from sharedlog._core.errors import LogExists, LogUnavailable, NoSuchLog
from sharedlog._engines.checks import check_key
from sharedlog._engines.owner import LOG
from sharedlog._engines.sqlite import rows
from sharedlog._engines.sqlite.counting import counting_of, note_of
from sharedlog._engines.sqlite.file import LogFile

BUSY_S = 30.0


def create(path: Path, keys: Mapping[str, bytes] | None = None) -> None:
    """Make an empty log that begins with ``keys``, in one step; durable when this returns.

    In a file of its own, which is made, or in a SQLite file that is there: beside the tables of a
    rifl store, or of an application. Raises ``LogExists`` if there is a log, ``CorruptLog`` for
    a file that is none of SQLite's, ``LogUnavailable`` if none can be made. Broken off, it
    leaves a file without a log, and is done again.
    """
    path = path.absolute()
    for key in keys or {}:
        check_key(key)
    note = note_of(path)
    with closing(LogFile(path, BUSY_S, LOG, create=True)) as file, closing(note):
        with file.writing() as connection:
            if rows.is_there(connection):
                raise LogExists(f"{path}: a log is there already: open it")
            # What is noted of one that was lost is not held against this one.
            if file.noted(note):
                note.raise_to(0)
            rows.make(connection, keys or {})
        try:
            sync_folder(path.parent)
        except OSError as error:
            raise LogUnavailable(f"{path}: {error}") from error


def accept_loss(path: Path, keys: Mapping[str, bytes]) -> str:
    """Have a log go on that lacks commits; what it lacks, empty if nothing: then nothing is done.

    ``keys`` are put in the same step: a new incarnation, since what is lost was known to others.
    """
    path = path.absolute()
    if not path.is_file():
        raise NoSuchLog(f"{path}: no log is there")
    with closing(LogFile(path, BUSY_S, LOG, create=False)) as file:
        counting = counting_of(path)
        with closing(counting.note) as note:
            noted = file.noted(note)
            with file.writing() as connection:
                rows.check(connection, str(path))
                head = rows.head_of(connection)
                if head.commits >= (noted or 0) and (noted is not None or not head.commits):
                    return ""
                rows.put_keys(connection, keys)
                after = rows.wrote_none(connection, head)
            note.raise_to(after.commits)
            if noted is None:
                return "the note beside it is missing"
            return f"it lacks {noted - head.commits} commits"
