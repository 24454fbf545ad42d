"""A watch of a log file, which tells waiters that some process may have appended."""

from __future__ import annotations

import threading
from pathlib import Path

from sharedlog._core.errors import LogError
from sharedlog._engines.sqlite.file import LogFile
from sharedlog._engines.sqlite.inotify import FileEvents
from sharedlog._engines.waiting import Waiters

# A file event precedes the commit that it is of, by a sync: looks follow it in short steps, and
# ever longer ones. A look asks a counter in memory that the processes share.
_SHORTEST_S = 0.0001
_GROWTH = 1.1
_LONGEST_S = 0.5
# Without events, of all that is appended after some silence.
_LONGEST_UNHEARD_S = 0.010


class Watcher:
    """One thread, while anybody waits: hints for ``waiters``. Any thread."""

    def __init__(self, file: LogFile, waiters: Waiters) -> None:
        self._file = file
        self._waiters = waiters
        self._gate = threading.Lock()
        self._thread: threading.Thread | None = None
        self._events: FileEvents | None = None
        self._closed = False

    def begin(self) -> None:
        """Watch, if nobody does."""
        with self._gate:
            if self._thread is None and not self._closed:
                path = self._file.path
                self._events = FileEvents(Path(f"{path}-wal"))
                self._thread = threading.Thread(
                    target=self._watch, args=(self._events,), name="log-watcher", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """End the thread; idempotent."""
        with self._gate:
            self._closed = True
            thread, self._thread = self._thread, None
            events, self._events = self._events, None
        if thread is not None and events is not None:
            events.wake()
            thread.join()
            events.close()

    def _watch(self, events: FileEvents) -> None:
        longest_s = _LONGEST_S if events.heard else _LONGEST_UNHEARD_S
        pause_s, seen = _SHORTEST_S, -1
        while not self._closed:
            try:
                with self._file.watching() as connection:
                    version = connection.execute("PRAGMA data_version").fetchone()[0]
            except LogError:
                # It stopped, or is busy: those who wait find out.
                version = -1
            if version != seen:
                seen = version
                self._waiters.hint()
                pause_s = _SHORTEST_S
            # While events come, the commit has yet to.
            wrote = events.wait(pause_s)
            pause_s = _SHORTEST_S if wrote else min(pause_s * _GROWTH, longest_s)
