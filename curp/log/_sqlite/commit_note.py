"""The file beside a log file that says how many commits each of its logs held at least."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from curp.log._errors import EngineUnavailable

# Lines of one length, so that every process writes over its log's own.
_LINE = b"curp log commits %020d\n"
_BYTES = len(_LINE % 0)


class CommitNote:
    """What was acknowledged, in a place of its own: an older copy of the log file has less.

    Written over after each commit, by every process: one that is overtaken leaves a lower
    number, which claims less and is as true, and so does a loss of power. Any thread.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name + ".curp")
        self._file: int | None = None

    def read(self, group_id: int) -> int:
        """Return how many commits the log had at least, 0 if nothing is noted."""
        try:
            with self.path.open("rb") as file:
                file.seek(group_id * _BYTES)
                words = file.read(_BYTES).split()
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise EngineUnavailable(f"cannot read {self.path}: {error}") from error
        return int(words[3]) if len(words) == 4 and words[3].isdigit() else 0

    def raise_to(self, group_id: int, commits: int) -> None:
        """Note that so many commits are on the disk."""
        # It only guards against what others do to the files: no call depends on it.
        with contextlib.suppress(OSError):
            if self._file is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
                self._file = os.open(self.path, flags, 0o600)
            os.pwrite(self._file, _LINE % commits, group_id * _BYTES)

    def close(self) -> None:
        """Let go of the file; idempotent."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
