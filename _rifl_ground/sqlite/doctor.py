"""A look at a SQLite file before a start: nothing is made, written or locked beside it."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from _rifl_ground.files import others_rights
from _rifl_ground.findings import Checkup
from _rifl_ground.sqlite.failures import Stopped
from _rifl_ground.sqlite.long_wal import LONG_WAL_BYTES
from _rifl_ground.sqlite.opening import check_build, check_length, reading
from _rifl_ground.system import file_system

_T = TypeVar("_T")
LEAST_FREE_BYTES = 256 << 20
_TRIES = 5
_IN_MEMORY = ("tmpfs", "ramfs")
_OVER_NETWORK = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gfs2", "ocfs2"),
    *("fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse"),
)
_MODES = {"effective_ids": True} if os.access in os.supports_effective_ids else {}


class Unseen(Exception):
    """The file cannot be read whole without a change; the text says why."""


def look_at_place(checkup: Checkup, path: Path) -> bool:
    """Judge folder, disk and rights; whether a file can be made and read there."""
    folder = path.resolve().parent
    if not folder.is_dir():
        checkup.error("file", f"there is no folder {folder}", "Make it, or correct the URL.")
        return False
    look_at_disk(checkup, folder)
    if path.exists() and not path.is_file():
        checkup.error("file", f"{path} is not a file", "Correct the URL.")
        return False
    usable = True
    if not os.access(folder, os.W_OK | os.X_OK, **_MODES):
        checkup.error(
            "rights",
            f"this user may not make files in {folder}: SQLite and the locks need some there",
            "Give the user that right, or run this as the server's user.",
        )
        usable = path.exists()
    if path.exists() and not os.access(path, os.R_OK | os.W_OK, **_MODES):
        checkup.error(
            "rights",
            f"this user may not read and write {path}",
            "Give the user that right, or run this as the server's user.",
        )
        usable = os.access(path, os.R_OK, **_MODES)
    return usable


def look_at_disk(checkup: Checkup, folder: Path) -> None:
    """Judge the file system: what it is, and its room."""
    kind = file_system(folder)
    if kind in _IN_MEMORY:
        checkup.warning(
            "file system",
            f"{folder} is in memory ({kind}): a restart of the machine loses all of it",
            "Use a folder on a disk.",
        )
    if kind in _OVER_NETWORK:
        checkup.warning(
            "file system",
            f"{folder} is on a network file system ({kind}), whose locks and syncs SQLite cannot "
            "rely on: commits may be lost, and the file damaged",
            "Use a folder on a disk of this machine.",
        )
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE_BYTES:
        checkup.warning(
            "disk",
            f"{free >> 20} MiB are free in {folder}: once none is, nothing more is taken",
            "Make room.",
        )
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        checkup.error(
            "file system", f"{folder} is read-only", "Mount it so that it can be written."
        )


def look_at_file(checkup: Checkup, path: Path) -> None:
    """Judge who may open the file, and how long its ``-wal`` is."""
    if rights := others_rights(path):
        checkup.warning(
            "rights",
            f"{path} may be opened by {rights}: it holds answers and secrets",
            "chmod go-rwx it, and the files beside it.",
        )
    with suppress(OSError):
        size = os.stat(f"{path}-wal").st_size
        if size > LONG_WAL_BYTES:
            checkup.warning(
                "wal",
                f"{path}-wal has {size >> 20} MiB: a connection that reads keeps it from being "
                "emptied, and once it is too long nothing more is taken",
                "End that connection's transaction: docs/reference/sqlite.md.",
            )


def look_at_build(checkup: Checkup) -> None:
    """Judge this process's SQLite."""
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            check_build(connection)
        except Stopped as error:
            checkup.error("sqlite", str(error), "Use another build.")


def read_untouched(
    path: Path,
    read: Callable[[Any], _T],
    factory: type[sqlite3.Connection] = sqlite3.Connection,
) -> _T:
    """Return what ``read`` does of the file as of one moment. Nothing is made or changed by it.

    ``read`` is given a connection of the class ``factory``. Raises SQLite's errors, and ``Unseen``.
    ``read`` is called again if the file changed under it.
    """
    check_length(path)
    for last in (*[False] * (_TRIES - 1), True):
        before = _seen(path)
        try:
            found = _read(path, read, factory, wal=before.wal)
        except Exception:
            if last or _seen(path) == before:
                raise
            # Such as: a server opened or closed the file meanwhile.
            continue
        if last or before.wal or _seen(path) == before:
            return found
    raise AssertionError("the last try returns, or raises")


def _read(
    path: Path, read: Callable[[Any], _T], factory: type[sqlite3.Connection], *, wal: bool
) -> _T:
    if wal and not os.path.exists(f"{path}-shm"):
        raise Unseen(f"{path} has a -wal that a crash or a copy left, and no -shm")
    if not wal and os.path.exists(f"{path}-journal"):
        raise Unseen(f"{path} has a -journal: it is being written, or a crash left that")
    with closing(reading(path, factory, alone=not wal, makes_none=True)) as connection:
        connection.execute("BEGIN")
        return read(connection)


class _Seen(NamedTuple):
    """By which a change of the one file is seen, and whether there is a ``-wal``."""

    size: int
    mtime_ns: int
    wal: bool


def _seen(path: Path) -> _Seen:
    found = os.stat(path)
    return _Seen(found.st_size, found.st_mtime_ns, os.path.exists(f"{path}-wal"))
