"""The names of a log file and of those beside it, and whether they are still of the open files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

# Those beside it are there as long as anybody has it open.
_SUFFIXES = ("", "-wal", "-shm")
# Kernels count the times of files in steps, which are shorter.
_STEP_NS = 1_000_000_000


class FileNames:
    """Looked at before and behind each transaction. Any thread.

    A name cannot change without the time at which its directory changed, which nobody can set:
    while that is as it was, the names need no look of their own. A directory that changed just
    now may change again within the same step of the clock, and is not relied on.
    """

    def __init__(self, path: Path, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._names = [os.fsencode(f"{path}{suffix}") for suffix in _SUFFIXES]
        # What a link names is in a directory of its own.
        self._directory = None if path.is_symlink() else os.fsencode(path.parent)
        self._now_ns = now_ns
        self._files: tuple[tuple[int, int], ...] | None = None
        self._unchanged: tuple[int, int, int] | None = None

    def remember(self) -> None:
        """These are the open files; raises ``OSError``."""
        self._files = self._look()

    def changed(self) -> str:
        """Say which of the names are of other files now, or of none; empty: none."""
        if self._files is None:
            return ""
        try:
            # First: what changes behind it is seen by the next one.
            directory = self._directory_now()
            if directory is not None and directory == self._unchanged:
                return ""
            old = self._settled(directory)
            found = self._look()
        except (FileNotFoundError, NotADirectoryError) as error:
            return f"{os.fsdecode(error.filename)} is gone"
        except OSError:
            # Not to be seen just now is no sign of anything.
            return ""
        if found != self._files:
            return f"{os.fsdecode(self._names[0])}, or a file beside it, is another file now"
        if old:
            self._unchanged = directory
        return ""

    def _directory_now(self) -> tuple[int, int, int] | None:
        if self._directory is None:
            return None
        found = os.stat(self._directory)
        return found.st_dev, found.st_ino, found.st_ctime_ns

    def _settled(self, directory: tuple[int, int, int] | None) -> bool:
        if directory is None:
            return False
        changed_ns = directory[2]
        if self._unchanged is not None and self._unchanged[2] == changed_ns:
            return True
        return self._now_ns() - changed_ns > _STEP_NS

    def _look(self) -> tuple[tuple[int, int], ...]:
        stats = [os.stat(name) for name in self._names]
        return tuple((found.st_dev, found.st_ino) for found in stats)
