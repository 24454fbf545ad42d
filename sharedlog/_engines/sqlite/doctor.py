"""A look at a log in a SQLite file by the checks of its opening; only reads."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path

from _rifl_ground.findings import Checkup, what_to_do
from _rifl_ground.sqlite.doctor import (
    Unseen,
    look_at_build,
    look_at_file,
    look_at_place,
    read_untouched,
)
from _rifl_ground.sqlite.failures import is_damage, name_of
from sharedlog._core.errors import CorruptLog, LogError, NoSuchLog
from sharedlog._engines.owner import LOG, Owner
from sharedlog._engines.sqlite import rows
from sharedlog._engines.sqlite.counting import counting_of
from sharedlog._engines.sqlite.engine import check_there
from sharedlog._engines.sqlite.file import Counting, Prefixed, check_counted


def examine(path: Path) -> Checkup:
    """Look at the log of a file, also beside programs that use it."""
    return examine_file(path, partial(_check, path.absolute()))


def examine_file(path: Path, check: Callable[[], None]) -> Checkup:
    """Look at a file, and make the check of the log in it, which only reads."""
    checkup = Checkup(f"sqlite {path}", LogError, NoSuchLog)
    look_at_build(checkup)
    if not look_at_place(checkup, path):
        return checkup
    if path.exists():
        look_at_file(checkup, path)
    try:
        checkup.refused("log", check)
    except Unseen as unseen:
        checkup.note("file", f"{unseen}: what it holds is seen when it is opened")
    except sqlite3.Error as error:
        if is_damage(error) or name_of(error) == "SQLITE_ERROR":
            told = f"{path} is damaged, or no log: {error}"
            checkup.error("file", told, what_to_do(CorruptLog))
        else:
            checkup.unreachable(f"{path} cannot be read: {error}", "Look at the file and its disk.")
    return checkup


def _check(path: Path) -> None:
    check_there(path)

    def look(connection: sqlite3.Connection) -> None:
        rows.check(connection, str(path))

    check_commits(path, counting_of(path), LOG, look)


def check_commits(
    path: Path,
    counting: Counting,
    owner: Owner,
    look: Callable[[sqlite3.Connection], object] = lambda _: None,
    prefix: str = Prefixed.prefix,
) -> None:
    """Raise what an opening does for a file that lacks commits; ``look`` is made before that.

    ``prefix``: of the log's tables.
    """
    # Before the file: a commit of others in between is in the file first.
    try:
        noted = counting.note.read()
    except OSError as error:
        raise owner.unavailable(f"cannot read {counting.note.path}: {error}") from error

    def read(connection: Prefixed) -> int:
        connection.prefix = prefix
        look(connection)
        return counting.held(connection)

    check_counted(path, counting, read_untouched(path, read, Prefixed), noted, owner)
