"""The file beside a log file that says how many commits each log in it held at least."""

from __future__ import annotations

import os
from pathlib import Path

from _rifl_ground.files import open_beside
from _rifl_ground.sqlite.folders import sync_folder
from _rifl_ground.system import sync


class CommitNote:
    """What was acknowledged, in a place of its own: an older copy of the log file has less.

    Written over after each commit, by every process: one that is overtaken leaves a lower
    number, which claims less and is as true, and so does a loss of power. Any thread.

    ``words``: three, in front of each number; lines have one length, so that every process
    writes over its own log's, which is the one with ``number``.
    """

    def __init__(self, path: Path, words: str, number: int = 0) -> None:
        self.path = path
        self._line = words.encode() + b" %020d\n"
        self._at = number * len(self._line % 0)
        self._file: int | None = None

    def read(self) -> int | None:
        """Return how many commits the log had at least, None if nothing is noted; ``OSError``."""
        try:
            with open(open_beside(self.path, os.O_RDONLY), "rb") as file:
                file.seek(self._at)
                words = file.read(len(self._line % 0)).split()
        except FileNotFoundError:
            return None
        return int(words[3]) if len(words) == 4 and words[3].isdigit() else None

    def raise_to(self, commits: int) -> bool:
        """Note that so many commits are on the disk; False: the file had been removed."""
        # It only guards against what others do to the files: no call depends on it.
        there = True
        try:
            if self._file is not None and not os.fstat(self._file).st_nlink:
                there = False
                self.close()
            new = self._file is None and not self.path.exists()
            if self._file is None:
                self._file = open_beside(self.path, os.O_WRONLY | os.O_CREAT)
            os.pwrite(self._file, self._line % commits, self._at)
            if new:
                # That it is missing means something: its name outlives a loss of power.
                sync(self._file)
                sync_folder(self.path.parent)
        except OSError:
            pass
        return there

    def close(self) -> None:
        """Close the file; idempotent."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
