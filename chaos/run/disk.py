"""A disk that can be full: a small tmpfs, or where none can be mounted a file size limit."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from pathlib import Path
from typing import Self

from chaos.run.scenario import Scenario

__all__ = ["SmallDisk", "disks_to_fill"]

_SIZE = "16m"
_BLOCK = 1 << 16


class SmallDisk:
    """A directory whose disk is small; mounted while the context lasts.

    ``mounted`` tells whether it is: who is not root has an ordinary directory there.
    """

    def __init__(self, directory: Path, size: str = _SIZE) -> None:
        self.directory = directory
        self._size = size
        self.mounted = False

    def __enter__(self) -> Self:
        """Make it, and mount it if that is allowed."""
        self.directory.mkdir(parents=True, exist_ok=True)
        mount = shutil.which("mount")
        if mount is not None and os.geteuid() == 0:
            command = [mount, "-t", "tmpfs", "-o", f"size={self._size}", "rifl-chaos"]
            done = subprocess.run([*command, str(self.directory)], capture_output=True, check=False)
            self.mounted = done.returncode == 0
        return self

    def __exit__(self, *_: object) -> None:
        """Unmount it: what was on it is gone."""
        if self.mounted:
            umount = shutil.which("umount") or "umount"
            subprocess.run([umount, "-l", str(self.directory)], capture_output=True, check=False)

    @property
    def _filler(self) -> Path:
        return self.directory / "filler"

    def fill(self) -> None:
        """Write until there is no room for another byte."""
        with self._filler.open("ab", buffering=0) as file:
            for size in (_BLOCK, 1):
                try:
                    while file.write(b"\0" * size):
                        pass
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        """Make room again."""
        with contextlib.suppress(FileNotFoundError):
            self._filler.unlink()


def disks_to_fill(scenario: Scenario) -> set[str]:
    """Return whose disks will be full."""
    return {target for fault in scenario.faults if fault.kind == "fill" for target in fault.targets}
