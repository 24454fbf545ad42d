"""The names of a SQLite file and of those beside it, and whether they are still of open files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

# Those beside it are there as long as anybody has it open, if it has a WAL.
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
        self._path = path
        self._names: list[bytes] = []
        # What a link names is in a directory of its own.
        self._directory = None if path.is_symlink() else os.fsencode(path.parent)
        self._now_ns = now_ns
        self._files: tuple[tuple[int, int], ...] | None = None
        self._unchanged: tuple[int, int, int] | None = None

    def remember(self, *, wal: bool = True) -> None:
        """These are the open files; raises ``OSError``. ``wal``: there are some beside it."""
        self._names = [os.fsencode(f"{self._path}{each}") for each in _SUFFIXES[: 3 if wal else 1]]
        self._files, self._unchanged = self._look(), None

    @property
    def known(self) -> bool:
        """Whether files were remembered."""
        return self._files is not None

    def same_file(self) -> bool:
        """Whether the one file is the one that was remembered, if one was."""
        if self._files is None:
            return True
        try:
            found = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (found.st_dev, found.st_ino) == self._files[0]

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
