"""The ``sharedlog`` command, kept at a point of an append: ``... stopping POINT COMMAND ...``.

It tells on standard output that it is there: ``before`` the log has the append, or ``after`` that
and before the one who appends is told.
"""

import sys
import threading

from sharedlog._cli import main
from sharedlog._engines.sqlite.engine import SqliteEngine


def _stop() -> None:
    sys.stdout.write("here\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    _, point, *command = sys.argv
    commit = SqliteEngine.commit

    def stopping(self, asked):
        if not asked.entries:
            return commit(self, asked)
        if point == "before":
            _stop()
        found = commit(self, asked)
        _stop()
        return found

    SqliteEngine.commit = stopping
    sys.exit(main(command))
