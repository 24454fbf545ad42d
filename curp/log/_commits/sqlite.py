"""Groups' logs in a SQLite file, each under tables of its own."""

from __future__ import annotations

import contextlib
import sqlite3
from contextlib import closing
from pathlib import Path

from curp.log._commits.keys import CONFIGURATION, first_keys, loss_puts
from curp.log._commits.meanings import GROUPS_LOG
from curp.log._commits.stand_in import stand_in, stands_in
from curp.log._engine import NewLog
from curp.log._errors import LogExists, NoSuchLog
from curp.log._sqlite.schema import make_group
from curp.log._states import MOVED_KEY
from sharedlog._core.commit import Commit
from sharedlog._engines.formats import OlderFormat, check_format
from sharedlog._engines.sqlite import SqliteEngine, rows
from sharedlog._engines.sqlite.commit_note import CommitNote
from sharedlog._engines.sqlite.file import Counting, LogFile
from sharedlog._engines.terms import BootClock

FORMAT = 2
# Of format 1 are the tables curp_group and others; curp_meta is of both.
_META = "CREATE TABLE curp_meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID"
_LOGS = "CREATE TABLE curp_log (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)"
_FIND = "SELECT number FROM curp_log WHERE name = ?"
_FIND_OLDER = (
    "SELECT value FROM curp_group AS g LEFT JOIN curp_metadata AS m "
    "ON m.group_id = g.group_id AND m.key = ? WHERE name = ?"
)


def open_sqlite(
    path: Path,
    group: str,
    *,
    new: NewLog | None = None,
    read_only: bool = False,
    timeout_s: float = 5.0,
    clock: BootClock | None = None,
) -> SqliteEngine:
    """Open a group's log, or create it. Raises errors of both kinds, and ``OlderFormat``.

    ``read_only``: a file that lacks commits is looked at, too.
    """
    path = path.absolute()
    if new is None and not path.exists():
        raise NoSuchLog.of(str(path), group)
    file = LogFile(path, timeout_s, GROUPS_LOG, create=new is not None)
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


def accept_loss(path: Path, group: str, told: dict[str, str]) -> str:
    """Have a log go on that lacks commits; what it lacks. Empty, and nothing done, if nothing."""
    path = path.absolute()
    if not path.exists():
        raise NoSuchLog.of(str(path), group)
    with closing(LogFile(path, 5.0, GROUPS_LOG, create=False)) as file:
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
    """Return a log's number in the file. Raises ``NoSuchLog``, ``OlderFormat``, ``CorruptLog``."""
    tables = _tables(connection, path)
    if "curp_log" in tables:
        found = connection.execute(_FIND, (group,)).fetchone()
        if found is not None:
            return int(found[0])
    if "curp_group" in tables:
        found = connection.execute(_FIND_OLDER, (MOVED_KEY, group)).fetchone()
        if found is not None and not stands_in(found[0]):
            raise OlderFormat(f"{path} has a log of {group!r} of format 1")
    raise NoSuchLog.of(str(path), group)


def _register(connection: sqlite3.Connection, path: Path, group: str) -> int:
    """Give a new log its number, which no other of the file has. Raises ``LogExists``."""
    tables = _tables(connection, path)
    if "curp_meta" not in tables:
        connection.execute(_META)
        connection.execute("INSERT INTO curp_meta VALUES ('format', ?)", (FORMAT,))
    if "curp_log" not in tables:
        connection.execute(_LOGS)
    try:
        _find(connection, path, group)
    except NoSuchLog:
        pass
    except OlderFormat:
        raise LogExists.of(str(path), group) from None
    else:
        raise LogExists.of(str(path), group)
    highest = "SELECT max(number) FROM curp_log"
    if "curp_group" in tables:
        with contextlib.suppress(LogExists):
            # It stands in there already.
            make_group(connection, path, group, stand_in())
        highest += " UNION ALL SELECT max(group_id) FROM curp_group"
    number = 1 + max(found or 0 for (found,) in connection.execute(highest))
    connection.execute("INSERT INTO curp_log VALUES (?, ?)", (number, group))
    return int(number)


def _tables(connection: sqlite3.Connection, path: Path) -> set[str]:
    """Return the names of the file's tables; raises for a format that is not known here."""
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    names = {name for (name,) in found}
    if "curp_meta" in names:
        row = connection.execute("SELECT value FROM curp_meta WHERE name = 'format'").fetchone()
        found_format = row[0] if row else None
        # Where a file began with logs of format 1, it stays theirs.
        if found_format != 1:
            check_format(found_format, FORMAT, str(path))
    return names


def _prefix(number: int) -> str:
    return f"curp_{number}_"


def _counting_of(path: Path, number: int) -> Counting:
    def held(connection: sqlite3.Connection) -> int:
        return rows.head_of(connection).commits

    note = CommitNote(path.with_name(path.name + ".curp"), "curp log commits", number)
    return Counting(note, held, held)
