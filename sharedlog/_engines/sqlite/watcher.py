"""A watch of a log file, which tells waiters that some process may have appended."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from _rifl_ground.owned_lock import OwnedLock
from _rifl_ground.system import watch_writes
from sharedlog._core.errors import LogError, ReentrantUse
from sharedlog._engines.sqlite.file import LogFile
from sharedlog._engines.sqlite.rows import head_of
from sharedlog._engines.waiting import Waiters


class FileEvents:
    """Of one file; one thread waits. Where the kernel gives none, waiting is sleeping."""

    def __init__(self, path: Path) -> None:
        self._wake_out, self._wake_in = os.pipe()
        for each in (self._wake_out, self._wake_in):
            os.set_blocking(each, False)
        self._events = watch_writes(path)

    @property
    def heard(self) -> bool:
        """Whether the kernel tells of the file."""
        return self._events is not None

    def wait(self, timeout_s: float) -> bool:
        """Wait for a write, ``wake`` or the time; whether the file was written to."""
        wanted = [self._wake_out] if self._events is None else [self._wake_out, self._events]
        ready = select.select(wanted, [], [], timeout_s)[0]
        for each in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(each, 65536)
        return self._events in ready

    def rest(self) -> None:
        """Wait for ``wake`` alone."""
        select.select([self._wake_out], [], [])
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_out, 65536)

    def wake(self) -> None:
        """End the wait, or the rest; any thread."""
        with contextlib.suppress(OSError):
            os.write(self._wake_in, b".")

    def close(self) -> None:
        """Close the files, once no thread waits or wakes any more."""
        for each in (self._wake_out, self._wake_in, self._events):
            if each is not None:
                os.close(each)


# A file event precedes the commit that it is of, by a sync: looks follow it in short steps, and
# ever longer ones, until that is there. A look asks a counter in memory that the processes share.
_SHORTEST_S = 0.0001
_GROWTH = 1.2
_LONGEST_S = 0.5
# Without events, of all that is appended after some silence.
_LONGEST_UNHEARD_S = 0.010
# Who waited comes again, mostly, once it has read.
_LINGER_S = 0.2


class Watcher:
    """One thread, from the first wait on: hints for ``waiters``. Any thread.

    It rests while no call waits: else it would look at each commit, also without followers.
    """

    def __init__(self, file: LogFile, waiters: Waiters) -> None:
        self._file = file
        self._waiters = waiters
        self._gate = OwnedLock(ReentrantUse)
        self._thread: threading.Thread | None = None
        self._events: FileEvents | None = None
        self._closed = False
        self._count = 0
        # Whether it looks at nothing until the next one waits.
        self.rests = False
        # When the last one of them had waited.
        self._left = 0.0

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Have the file watched meanwhile."""
        self._begin()
        try:
            yield
        finally:
            with self._gate:
                self._count -= 1
                self._left = time.monotonic()

    def _begin(self) -> None:
        with self._gate:
            self._count += 1
            if self.rests and self._events is not None:
                self.rests = False
                self._events.wake()
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
        pause_s, seen, tail, wrote = _SHORTEST_S, -1, -1, True
        while not self._closed:
            version, there = self._looked(seen, tail)
            if there != tail:
                tail = there
                self._waiters.hint()
            if version != seen:
                seen = version
                # An event that came since the look before may be of the next commit; else the
                # next one has not begun, and says so when it does.
                pause_s = _SHORTEST_S if wrote or not events.heard else longest_s
            if self._may_rest():
                events.rest()
                pause_s, wrote = _SHORTEST_S, True
                continue
            # While events come, the commit has yet to.
            wrote = events.wait(pause_s)
            pause_s = _SHORTEST_S if wrote else min(pause_s * _GROWTH, longest_s)

    def _looked(self, seen: int, tail: int) -> tuple[int, int]:
        """Return the file's version, and where the log ends, by the one seen before if that is it.

        -1: it stopped, is busy or damaged: those who wait find out.
        """
        try:
            with self._file.watching() as connection:
                version = connection.execute("PRAGMA data_version").fetchone()[0]
                return version, tail if version == seen else head_of(connection).tail
        except LogError:
            return -1, -1

    def _may_rest(self) -> bool:
        with self._gate:
            self.rests = (
                not (self._count or self._closed) and time.monotonic() - self._left > _LINGER_S
            )
            return self.rests
