"""Wall clocks of processes: wrong by hours, or running too fast or too slowly.

Linux has one wall clock for all processes, and its time namespaces leave that one alone.
``wall_clock.c`` is preloaded into a process and moves what it reads of it.

libfaketime is the library for that, and does not do here: Debian's 0.9.10 makes Python's
``time.sleep`` fail when monotonic clocks are left alone; python-libfaketime's build does
not, but a killed process leaves its shared memory and semaphore behind.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from chaos.run.preloaded import compile_library, shared_file

__all__ = ["WallClock", "wall_clocks"]

_SOURCE = Path(__file__).with_suffix(".c")
# In force; two times since, ahead and drift; reads: see ``struct clock``.
_IN_FORCE, _STATES, _READS, _SIZE = 0, (8, 32), 56, 64
_SECOND_NS = 1_000_000_000
_PPB_OF_PERCENT = 10_000_000


class WallClock:
    """What one process takes for the time of day, also when it is started again.

    Threads may share it.
    """

    def __init__(self, library: Path, file: Path) -> None:
        """Make its ``file``: the clock is right until something else is said."""
        self._file = shared_file(file, _SIZE)
        self._lock = threading.Lock()
        self._since_ns = self._ahead_ns = self._drift_ppb = 0
        # What a process has to be started with.
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": str(library),
            "RIFL_WALL_CLOCK": str(file),
        }

    @property
    def reads(self) -> int:
        """How often it was looked at."""
        (count,) = struct.unpack_from("=q", self._file, _READS)
        return int(count)

    def step(self, seconds: float) -> None:
        """Set it forward, or back."""
        self._set(round(seconds * _SECOND_NS), 0)

    def drift(self, percent: float) -> None:
        """Let it gain, or lose, so much more than it does; what it gained it keeps."""
        self._set(0, round(percent * _PPB_OF_PERCENT))

    def _set(self, ahead_ns: int, drift_ppb: int) -> None:
        with self._lock:
            now = time.time_ns()
            gained = (now - self._since_ns) * self._drift_ppb // _SECOND_NS
            self._since_ns = now
            self._ahead_ns += gained + ahead_ns
            self._drift_ppb += drift_ppb
            (in_force,) = struct.unpack_from("=q", self._file, _IN_FORCE)
            state = self._since_ns, self._ahead_ns, self._drift_ppb
            struct.pack_into("=3q", self._file, _STATES[1 - in_force], *state)
            struct.pack_into("=q", self._file, _IN_FORCE, 1 - in_force)


def wall_clocks(names: Iterable[str], directory: Path) -> dict[str, WallClock]:
    """Make a clock for each name, and compile what moves them; raises ``NoCompiler``."""
    library = compile_library(_SOURCE, directory)
    return {name: WallClock(library, directory / f"{name}.clock") for name in names}
