"""A process that stands still where it holds up nobody."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from pathlib import Path

from tests.helpers.waiting import until

__all__ = ["stands", "suspend"]

_DEADLINE_S = 60.0


def stands(pid: int) -> None:
    """Wait until a process that got SIGSTOP stands still: on a busy machine it runs on a little."""
    stat = Path(f"/proc/{pid}/stat")
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "it stands still")


def suspend(pid: int, log: Path | None) -> None:
    """Stop it; with a log in a file of SQLite not within a transaction, which keeps others out."""

    def stands_aside() -> bool:
        os.kill(pid, signal.SIGSTOP)
        stands(pid)
        if log is None:
            return True
        with contextlib.closing(sqlite3.connect(log, timeout=0.1)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                os.kill(pid, signal.SIGCONT)
                return False
        return True

    until(stands_aside, "it stops where it holds up nobody", _DEADLINE_S)
