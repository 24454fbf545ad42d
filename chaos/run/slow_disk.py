"""Disks of processes that are slow for a while: each write, and each sync, takes longer.

``slow_disk.c`` is preloaded into a process, and waits before what it writes into files. The
disk itself is as it was: a device that is slow for all of a machine needs root and a kernel
that has dm-delay.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from chaos.run.preloaded import compile_library, shared_file

__all__ = ["SlowDisk", "slow_disks"]

_SOURCE = Path(__file__).with_suffix(".c")
# Of a write, of one where a file ends, of a sync; how many waited: see ``struct delays``.
_DELAYS, _DELAYED, _SIZE = 0, 24, 32
_MS_NS = 1_000_000


class SlowDisk:
    """The disk that one process writes to, also when it is started again.

    Threads may share it.
    """

    def __init__(self, library: Path, file: Path) -> None:
        """Make its ``file``: the disk has its own speed until a delay is set."""
        self._file = shared_file(file, _SIZE)
        self._lock = threading.Lock()
        self._delays_ms: tuple[int, ...] = (0, 0, 0)
        # What a process has to be started with.
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": str(library),
            "RIFL_SLOW_DISK": str(file),
        }

    @property
    def delayed(self) -> int:
        """How many writes and syncs took longer."""
        (count,) = struct.unpack_from("=q", self._file, _DELAYED)
        return int(count)

    def slow_down(self, write_ms: int, grow_ms: int, sync_ms: int) -> None:
        """Let each write and each sync take so much longer than they do; less, if below 0.

        ``grow_ms``: of a write where the file ends so far, beside ``write_ms``.
        """
        with self._lock:
            more = zip(self._delays_ms, (write_ms, grow_ms, sync_ms), strict=True)
            self._delays_ms = tuple(before + each for before, each in more)
            delays = [each * _MS_NS for each in self._delays_ms]
            struct.pack_into("=3q", self._file, _DELAYS, *delays)


def slow_disks(names: Iterable[str], directory: Path) -> dict[str, SlowDisk]:
    """Make a disk for each name, and compile what slows them; raises ``NoCompiler``."""
    library = compile_library(_SOURCE, directory)
    return {name: SlowDisk(library, directory / f"{name}.disk") for name in names}
