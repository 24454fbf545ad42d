"""A process that stops itself within a commit of SQLite's, and tells what it was told.

    python -m tests.sharedlog.log.locking_writer URL

It publishes a message that gets there, and stops with the next one written and not committed: the
file's lock is its own.
"""

import os
import signal
import sys

import sharedlog


class _Stopping:
    """A connection that stops this process before its next COMMIT."""

    def __init__(self, connection):
        self._connection = connection
        self._stops = True

    def execute(self, statement, *args):
        if statement == "COMMIT" and self._stops:
            self._stops = False
            os.kill(os.getpid(), signal.SIGSTOP)
        return self._connection.execute(statement, *args)

    def __getattr__(self, name):
        return getattr(self._connection, name)


def main(url):
    """Print what each ``publish`` was told."""
    with sharedlog.open(url) as log:
        print("told", log.publish("s", "first").lsn, flush=True)
        file = log._engine._file
        file._writer = _Stopping(file._writer)
        print("told", log.publish("s", "held up").lsn, flush=True)


main(*sys.argv[1:])
