"""Hints of the kernel that a file was written to; Linux alone has them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
from pathlib import Path

_MODIFY = 0x00000002
_CLOEXEC, _NONBLOCK = os.O_CLOEXEC, os.O_NONBLOCK


class FileEvents:
    """Of one file; one thread waits. Where the kernel gives none, waiting is sleeping."""

    def __init__(self, path: Path) -> None:
        self._wake_out, self._wake_in = os.pipe2(_CLOEXEC | _NONBLOCK)
        self._events = _open(path)

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
        """Let go, once nobody waits or wakes any more."""
        for each in (self._wake_out, self._wake_in, self._events):
            if each is not None:
                os.close(each)


def _open(path: Path) -> int | None:
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        events: int = libc.inotify_init1(_CLOEXEC | _NONBLOCK)
    except (OSError, AttributeError):
        return None
    if events < 0:
        return None
    if libc.inotify_add_watch(events, os.fsencode(path), _MODIFY) < 0:
        os.close(events)
        return None
    return events
