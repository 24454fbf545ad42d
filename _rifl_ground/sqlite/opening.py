"""The one place where connections to SQLite's files are made, and what they are told."""

from __future__ import annotations

import ctypes
import os
import sqlite3
import stat
import time
import weakref
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar

from _rifl_ground.files import make_private, name_if_open_to_all
from _rifl_ground.forks import in_children
from _rifl_ground.sqlite.failures import CutOff, NoWal, Stopped, is_busy
from _rifl_ground.sqlite.wal_file import KEPT_BYTES
from _rifl_ground.system import MAC, same_file

_Made = TypeVar("_Made", bound="Connection")
_FULL_SYNCS = ("PRAGMA fullfsync=ON", "PRAGMA checkpoint_fullfsync=ON")
# See sqlite.md, which judges every setting of SQLite's. EXTRA: in a rollback journal's modes
# FULL does not sync the directory, and a commit can be taken back by a loss of power; with a WAL
# they are the same.
_SETTINGS = (
    "PRAGMA synchronous=EXTRA",
    "PRAGMA mmap_size=0",
    "PRAGMA locking_mode=NORMAL",
    # Elsewhere they change nothing.
    *(_FULL_SYNCS if MAC else ()),
)
_CHECKPOINT_PAGES = 1000
# Ways to build SQLite in which a commit returns before it is on the disk.
_WEAKENING = frozenset(("NO_SYNC", "DISABLE_DIRSYNC"))
# How this process's SQLite was built, once it was asked.
_built: set[str] = set()
_SMALLEST_PAGE = 512
_RETRY_S = 0.01
_open: weakref.WeakSet[Connection] = weakref.WeakSet()
# Files that were open in the process that forked this one.
_inherited: set[Path] = set()


class Connection(sqlite3.Connection):
    """A connection that we made. A forked child neither uses nor closes it."""

    # None once it is closed.
    file: Path | None = None
    # Whether what the WAL has stays there when the last connection is closed.
    leaves_wal = False

    def close(self) -> None:
        """See ``sqlite3.Connection``."""
        self.file = None
        if self.leaves_wal:
            # It stays open, without a lock: the last connection that is closed moves the WAL, also
            # if that is the application's.
            with suppress(sqlite3.Error):
                sqlite3.Connection.rollback(self)
            _hold(self)
            return
        super().close()


def leave_wal(path: Path) -> None:
    """Have connections to the file not move its WAL into it any more, after a sync that failed.

    The kernel may have thrown away the pages that it could not write, and gives back older ones.
    What is whole in the WAL its checksums tell the next one who opens it.
    """
    for connection in list(_open):
        if connection.file is not None and same_file(connection.file, path.resolve()):
            connection.leaves_wal = True


def is_inherited(path: Path) -> bool:
    """Whether the process that forked this one had the file open at the fork.

    SQLite keeps its locks by file and process: a connection that is made here would take those of
    the inherited one for its own.
    """
    return any(same_file(path.resolve(), each) for each in _inherited)


def connect(
    path: Path,
    factory: type[_Made],
    *,
    busy_s: float,
    create: bool = False,
    any_thread: bool = True,
    statements: int = 128,
    wal: bool = False,
    wal_kept_bytes: int = KEPT_BYTES,
    checkpoint_pages: int = _CHECKPOINT_PAGES,
) -> _Made:
    """Return a connection whose commits are on the disk when they return.

    It is in autocommit mode: transactions are begun and ended by our SQL. ``create``: the file is
    made if there is none, private; SQLite gives its mode to those beside it. ``busy_s``: how long
    a statement waits for other connections. ``statements``: how many of them are kept prepared.
    ``checkpoint_pages``: a commit moves the WAL into the file from this length on;
    ``wal_kept_bytes``: what the WAL keeps of its room then. ``wal``: the file gets a WAL, and
    ``NoWal`` is raised if there can be none.

    Raises ``CutOff``, and ``Stopped`` where SQLite is built so that it does not sync, and in a
    forked child whose parent had the file open.
    """
    file = path.resolve()
    if is_inherited(file):
        raise Stopped(
            f"{path} was open in the parent process (pid {os.getppid()}) at the fork: "
            "open it in the child only, or close it before the fork"
        )
    check_length(path)
    if create:
        # What is in the way SQLite says itself.
        with suppress(OSError):
            make_private(file)
    name_if_open_to_all(file)
    connection: _Made = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw&cache=private",
        uri=True,
        timeout=busy_s,
        isolation_level=None,
        check_same_thread=not any_thread,
        factory=factory,
        cached_statements=statements,
    )
    connection.file = file
    _open.add(connection)
    in_children(connection, _inherit)
    try:
        for setting in _SETTINGS:
            connection.execute(setting)
        if wal:
            _begin_wal(connection, busy_s)
        # What a reader made of the WAL is given back when the next writer begins it anew.
        connection.execute(f"PRAGMA journal_size_limit={wal_kept_bytes}")
        connection.execute(f"PRAGMA wal_autocheckpoint={checkpoint_pages}")
        check_build(connection)
    except BaseException:
        Connection.close(connection)
        raise
    return connection


def check_length(path: Path) -> None:
    """Raise ``CutOff`` for a file that SQLite would take for a new one."""
    with suppress(OSError):
        found = path.stat()
        if stat.S_ISREG(found.st_mode) and 0 < found.st_size < _SMALLEST_PAGE:
            raise CutOff(f"{path} is cut off in its first page")


def has_wal(connection: sqlite3.Connection) -> bool:
    """Whether the file has a WAL, not a rollback journal."""
    return bool(connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal")


def _begin_wal(connection: sqlite3.Connection, busy_s: float) -> None:
    # Two processes that make the same file at once: SQLite refuses one of them without waiting.
    end = time.monotonic() + busy_s
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= end:
                raise
            time.sleep(_RETRY_S)
            continue
        if mode != "wal":
            raise NoWal(f"SQLite cannot keep a WAL here, but {mode}")
        return


def _inherit(connection: Connection) -> None:
    if connection.file is not None:
        _inherited.add(connection.file)
        # Closing would undo the parent's transaction.
        _hold(connection)


def _hold(connection: Connection) -> None:
    """Keep a connection for the life of the process."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def check_build(connection: sqlite3.Connection) -> None:
    """Raise ``Stopped`` where this process's SQLite is built so that it does not sync."""
    if not _built:
        _built.update([name for (name,) in connection.execute("PRAGMA compile_options")])
    if weak := sorted(_built & _WEAKENING):
        raise Stopped(
            f"this SQLite is built with {', '.join(weak)}: a loss of power takes back what it has "
            "committed. Use another build"
        )


def reading(
    path: Path,
    factory: type[sqlite3.Connection] = sqlite3.Connection,
    *,
    alone: bool = False,
    makes_none: bool = False,
) -> sqlite3.Connection:
    """Return a connection that only reads.

    ``alone``: it reads the one file, without its ``-wal``, and takes no lock. ``makes_none``: it
    makes and writes no file beside it, and cannot read where there is a ``-wal`` without ``-shm``.
    """
    how = "&immutable=1" * alone + "&readonly_shm=1" * makes_none
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro&cache=private{how}",
        uri=True,
        isolation_level=None,
        factory=factory,
    )


def read_alone(path: Path, query: str, settings: Iterable[str] = ()) -> list[Any]:
    """Return what the one file says without its ``-wal``, whose pages hide what is beneath."""
    with closing(reading(path, alone=True)) as connection:
        for setting in settings:
            connection.execute(setting)
        return connection.execute(query).fetchall()
