"""A look at a store in a SQLite file by the checks of its start; only reads."""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path

from _rifl_ground.findings import Checkup
from _rifl_ground.sqlite.doctor import (
    Unseen,
    look_at_build,
    look_at_file,
    look_at_place,
    read_untouched,
)
from rifl._stores.errors import StoreError
from rifl._stores.sqlite.address import path_of
from rifl._stores.sqlite.file_guard import FileIdentity, StoreFileGuard
from rifl._stores.sqlite.ownership import owner_of
from rifl._stores.sqlite.schema import (
    check_pages,
    check_version,
    identity_of,
    is_known,
    opening_error,
)

_AGAIN = 2


def examine(url: str) -> Checkup:
    """Look at the store of a URL. Raises ``UnsupportedStore`` for the URL itself."""
    path = path_of(url)
    for last in (*[False] * _AGAIN, True):
        owner = owner_of(path)
        checkup = _examined(path, owner)
        # What a server changes while it opens or closes the file may look like damage.
        if last or not checkup.failed or owner_of(path) == owner:
            return checkup
    raise AssertionError("the last look is returned")


def _examined(path: Path, owner: str | None) -> Checkup:
    checkup = Checkup(f"sqlite {path}", StoreError)
    look_at_build(checkup)
    if not look_at_place(checkup, path):
        return checkup
    if path.exists():
        look_at_file(checkup, path)
    guard = None
    if owner is not None:
        # Its own guard looks at the files before and after each commit.
        checkup.note("store", f"{owner} has it open: another server waits for its end")
    elif (guard := checkup.refused("file", partial(StoreFileGuard, path))) is None:
        return checkup
    held = None
    if path.exists() and path.stat().st_size:
        before = len(checkup.findings)
        try:
            held = checkup.refused("store", partial(_held, path))
        except Unseen as unseen:
            checkup.note("file", f"{unseen}: what it holds is seen at a start")
        if len(checkup.findings) > before:
            return checkup
    if guard is not None:
        before = len(checkup.findings)
        checkup.refused("file", partial(guard.admit, held))
        if len(checkup.findings) > before:
            return checkup
    if held is None:
        checkup.note("store", "there is none yet: the first server makes it")
    return checkup


def _held(path: Path) -> FileIdentity | None:
    """Return what the file says of itself, None if it holds no store; raises ``StoreError``."""

    def read(connection: sqlite3.Connection) -> FileIdentity | None:
        check_pages(connection, path)
        if not is_known(connection):
            return None
        check_version(connection, path)
        return identity_of(connection, path)

    try:
        return read_untouched(path, read)
    except (sqlite3.Error, ValueError, TypeError) as error:
        raise opening_error(path, error) from error
