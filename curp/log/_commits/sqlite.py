"""Groups' logs in a SQLite file, each under tables of its own."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from curp.log._commits.keys import CONFIGURATION, FORMAT, first_keys, loss_puts
from curp.log._errors import log_exists, no_such_log
from curp.log._owner import GROUPS
from curp.log._values import NewLog
from sharedlog._core.commit import Commit
from sharedlog._engines.formats import check_format
from sharedlog._engines.sqlite import SqliteEngine, rows
from sharedlog._engines.sqlite.commit_note import CommitNote
from sharedlog._engines.sqlite.file import Counting, LogFile
from sharedlog._engines.terms import BootClock

if TYPE_CHECKING:
    from _rifl_ground.findings import Checkup

_META = "CREATE TABLE curp_meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID"
_LOGS = "CREATE TABLE curp_log (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)"
_HAS_LOGS = "SELECT count(*) FROM sqlite_master WHERE name IN ('curp_meta', 'curp_log')"
_FIND = "SELECT number FROM curp_log WHERE name = ?"


def open_sqlite(
    path: Path,
    group: str,
    *,
    new: NewLog | None = None,
    read_only: bool = False,
    timeout_s: float = 5.0,
    clock: BootClock | None = None,
) -> SqliteEngine:
    """Open a group's log, or create it. Raises errors of both kinds.

    ``read_only``: a file that lacks commits is looked at, too.
    """
    path = path.absolute()
    if new is None and not path.exists():
        raise no_such_log(str(path), group)
    file = LogFile(path, timeout_s, GROUPS, create=new is not None)
    try:
        if new is None:
            with file.reading() as connection:
                number = _find(connection, path, group)
            file.under(_prefix(number))
        else:
            with file.writing() as connection:
                number = _register(connection, path, group)
                file.under(_prefix(number))
                rows.make(connection, first_keys(new), new.trimmed)
        if not read_only:
            file.guard(_counting_of(path, number), new=new is not None)
        return SqliteEngine(path, clock=clock, file=file)
    except BaseException:
        file.close()
        raise


def examine_sqlite(path: Path, group: str) -> Checkup:
    """Look at a group's log by the checks of its opening; only reads."""
    from _rifl_ground.sqlite.doctor import read_untouched
    from sharedlog._engines.sqlite.doctor import check_commits, examine_file

    path = path.absolute()

    def check() -> None:
        if not path.exists():
            raise no_such_log(str(path), group)
        number = read_untouched(path, lambda connection: _find(connection, path, group))
        check_commits(path, _counting_of(path, number), GROUPS, prefix=_prefix(number))

    return examine_file(path, check)


def accept_loss(path: Path, group: str, told: dict[str, str]) -> str:
    """Have a log go on that lacks commits; what it lacks. Empty, and nothing done, if nothing."""
    path = path.absolute()
    if not path.exists():
        raise no_such_log(str(path), group)
    with closing(LogFile(path, 5.0, GROUPS, create=False)) as file:
        with file.reading() as connection:
            number = _find(connection, path, group)
        file.under(_prefix(number))
        counting = _counting_of(path, number)
        with closing(counting.note) as note:
            noted = file.noted(note) or 0
            with file.writing() as connection:
                head = rows.head_of(connection)
                if head.commits >= noted:
                    return ""
                lost = f"it lacks {noted - head.commits} commits"
                found = rows.values_of(connection, (CONFIGURATION,))
                batch = rows.WriteBatch(connection, head, {})
                batch.add(Commit(puts=loss_puts(found, {**told, "lost": lost})))
                batch.write()
            note.raise_to(batch.head.commits)
            return lost


def _find(connection: sqlite3.Connection, path: Path, group: str) -> int:
    """Return a log's number in the file. Raises ``NoSuchLog``, ``NewerFormat``, ``CorruptLog``."""
    if _has_logs(connection, path):
        found = connection.execute(_FIND, (group,)).fetchone()
        if found is not None:
            return int(found[0])
    raise no_such_log(str(path), group)


def _register(connection: sqlite3.Connection, path: Path, group: str) -> int:
    """Give a new log its number, which no other of the file has. Raises ``LogExists``."""
    if not _has_logs(connection, path):
        connection.execute(_META)
        connection.execute("INSERT INTO curp_meta VALUES ('format', ?)", (FORMAT,))
        connection.execute(_LOGS)
    elif connection.execute(_FIND, (group,)).fetchone() is not None:
        raise log_exists(str(path), group)
    number = connection.execute("INSERT INTO curp_log (name) VALUES (?)", (group,)).lastrowid
    return int(number or 0)


def _has_logs(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the file has groups' logs; raises for a format that is not known here."""
    if not connection.execute(_HAS_LOGS).fetchone()[0]:
        return False
    row = connection.execute("SELECT value FROM curp_meta WHERE name = 'format'").fetchone()
    check_format(row and row[0], FORMAT, str(path))
    return True


def _prefix(number: int) -> str:
    return f"curp_{number}_"


def _counting_of(path: Path, number: int) -> Counting:
    def held(connection: sqlite3.Connection) -> int:
        return rows.head_of(connection).commits

    note = CommitNote(path.with_name(path.name + ".curp"), "curp log commits", number)
    return Counting(note, held)
