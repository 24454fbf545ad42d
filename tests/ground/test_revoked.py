"""Revocation of a lent connection of SQLite, whose thread is in a statement that does not end."""

import sqlite3
import threading
from contextlib import closing

from _rifl_ground.sqlite.owned import keep
from tests.helpers.at_a_line import bounded

ENDLESS = (
    "WITH RECURSIVE n (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n) SELECT count(*) FROM n"
)


def _revoked():
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as connection:
        connection.execute("CREATE TABLE t (x)")
        owned, begun = keep(connection), threading.Event()
        owned.lend(connection)
        connection.execute("INSERT INTO t VALUES (1)")

        def run():
            begun.set()
            try:
                connection.execute(ENDLESS).fetchall()
            except sqlite3.Error:
                return

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        begun.wait()
        assert owned.revoke()
        thread.join()
        owned.free()
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)


def test_threads_that_compute_do_not_keep_a_revoked_one_from_leaving():
    """It takes SQLite's lock with the interpreter's; who revokes, the reverse (DESIGN-LOG §15)."""
    done = threading.Event()

    def compute():
        while not done.is_set():
            pass

    threads = [threading.Thread(target=compute, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        bounded(lambda: [_revoked() for _ in range(6)], 60)
    finally:
        done.set()
        for thread in threads:
            thread.join()
