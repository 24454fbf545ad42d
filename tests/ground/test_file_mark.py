"""The mark of a SQLite file, raised by one connection while another one commits."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from _rifl_ground.sqlite.mark import FileMark
from _rifl_ground.sqlite.opening import Connection, connect


def test_a_commit_notes_only_the_mark_that_it_raised_itself(tmp_path: Path) -> None:
    """Another thread's transaction may roll back: its mark is not in the file (§6)."""
    path = tmp_path / "s.db"
    with (
        closing(connect(path, Connection, busy_s=1.0, create=True, wal=True)) as one,
        closing(connect(path, Connection, busy_s=1.0, create=True, wal=True)) as two,
    ):
        mark = FileMark(path)
        mark.opened(one, wal=True)
        for connection in (one, two):
            connection.execute("BEGIN IMMEDIATE")
            raised = mark.write(connection)
            if connection is two:
                # A handler's commit on a connection of its own raised nothing.
                mark.committed(None)
                assert mark.due
                connection.execute("ROLLBACK")
            else:
                connection.execute("COMMIT")
        assert raised is not None
        # The next commit raises it; what opens the file again finds no older copy.
        two.execute("BEGIN IMMEDIATE")
        again = mark.write(two)
        two.execute("COMMIT")
        mark.committed(again)
        assert again == raised
        assert not mark.due
        mark.opened(one, wal=True)
        assert _number(path) == again.number


def _number(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        (number,) = connection.execute("SELECT number FROM rifl_file").fetchone()
        return int(number)
