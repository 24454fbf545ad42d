"""The medium under a SQLite store: its files, their owner, and the thread that commits."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from _rifl_ground.threads import begin_in_thread
from rifl._stores.pending import Pending
from rifl._stores.sqlite.file_guard import Guard, StoreFileGuard
from rifl._stores.sqlite.journal import Journal
from rifl._stores.sqlite.ownership import Ownership
from rifl._stores.sqlite.schema import connect


class OwnedFile(Protocol):
    """A file that is this process's."""

    def release(self) -> None:
        """Let the next process have it."""


class Medium:
    """Files on a disk, locked for one process, and a thread that commits to them.

    The simulator has another one. Immutable; any thread.
    """

    def own(self, path: Path, lock_timeout_s: float) -> OwnedFile:
        """Take the file for this process; raises ``StoreLocked``."""
        return Ownership(path, lock_timeout_s)

    def guard(self, path: Path) -> Guard:
        """Return what sees to it that the file is and stays the store's; it is the process's."""
        return StoreFileGuard(path)

    def connect(self, path: Path) -> sqlite3.Connection:
        """Return a connection to the file; see ``schema.connect``."""
        return connect(path)

    def journal(
        self,
        connection: sqlite3.Connection,
        on_health: Callable[[Exception | None], None],
        name: str,
        guard: Guard,
        on_commit: Callable[[int, float, Exception | None], None] | None = None,
    ) -> Journal:
        """Start a journal, which alone writes to the connection from now on."""
        return Journal(connection, on_health, name, guard, on_commit)

    def free_bytes(self, path: Path) -> int | None:
        """Return how much room is left where the file is."""
        return shutil.disk_usage(path.parent).free

    def in_background(self, work: Callable[[], Any]) -> Pending:
        """Do what may block, for a caller on an event loop."""
        done = Pending()

        def carry_out() -> None:
            try:
                done.result = work()
            except Exception as error:  # noqa: BLE001 - raised where it is awaited
                done.fail(error)
            else:
                done.succeed()

        self._begin(carry_out)
        return done

    def _begin(self, step: Callable[[], None]) -> None:
        try:
            begin_in_thread(step)
        except RuntimeError:
            # The interpreter ends, and begins no thread any more.
            step()


FILES = Medium()
