"""The lock of who writes a SQLite file, as the kernel knows it: to name its holder to people."""

from __future__ import annotations

import os
from pathlib import Path

from _rifl_ground.system import kernels_locks

# SQLite's WAL_WRITE_LOCK: a byte of the file's -shm.
_WRITE_LOCK = 120


def holder_of(path: Path) -> int | None:
    """Return the id of the process that has a transaction open which writes; None: not known.

    The file is not opened for that: closing it would release this process's own locks.
    """
    try:
        shm = os.stat(f"{path}-shm")
        where = f"{os.major(shm.st_dev):02x}:{os.minor(shm.st_dev):02x}:{shm.st_ino}"
    except OSError:
        return None
    for each in kernels_locks():
        # NUMBER: POSIX ADVISORY WRITE PID DEVICE:INODE FIRST LAST; who waits has "->" before that.
        fields = each.split()[1:]
        if len(fields) != 7 or fields[0] != "POSIX" or fields[4] != where:
            continue
        mode, pid, first, last = fields[2], fields[3], fields[5], fields[6]
        if mode == "WRITE" and pid.isdigit() and int(first) <= _WRITE_LOCK and _reaches(last):
            return int(pid)
    return None


def _reaches(last: str) -> bool:
    return last == "EOF" or int(last) >= _WRITE_LOCK
