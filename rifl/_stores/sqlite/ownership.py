"""The lock by which one process owns a SQLite store at a time (DESIGN §6)."""

from __future__ import annotations

import contextlib
import io
import os
import time
from pathlib import Path

from _rifl_ground.files import open_beside
from _rifl_ground.owned_lock import OwnedLock
from _rifl_ground.sqlite.opening import is_inherited
from _rifl_ground.system import at_forks, is_locked_elsewhere, lock_for_process
from rifl._stores.errors import StoreLocked, StoreUnreachable

_POLL_S = 0.05
# With their locks' files: one that is collected would be closed, and its lock dropped.
_owned: dict[Path, io.FileIO] = {}
_owned_lock = OwnedLock(StoreLocked)


def owner_of(path: Path) -> str | None:
    """Return who holds a store, as ``pid 123``; None if it is free. Never blocks."""
    path = path.resolve()
    lock_path = path.with_name(path.name + ".lock")
    with _owned_lock:
        # Closing any descriptor of the lock's file would drop this process's lock.
        if _is_owned(path, lock_path):
            return f"pid {os.getpid()}"
        try:
            file = open_beside(lock_path, os.O_RDONLY)
        except OSError:
            return None
        try:
            if not is_locked_elsewhere(file):
                return None
            return f"pid {os.pread(file, 32, 0).decode(errors='replace').strip() or 'unknown'}"
        finally:
            os.close(file)


def _is_owned(path: Path, lock_path: Path) -> bool:
    """Whether this process owns a store, also by a name that differs in case, as on macOS.

    The lock's file is not opened for that.
    """
    if path in _owned:
        return True
    with contextlib.suppress(OSError):
        found = lock_path.lstat()
        open_files = [file.fileno() for file in _owned.values() if not file.closed]
        return any(os.path.samestat(os.fstat(file), found) for file in open_files)
    return False


class Ownership:
    """Holds a store until it is released or the process ends, however it ends.

    A POSIX record lock on a file beside the store, which a forked child does not
    inherit, and, since such a lock is the process's, a register in memory. The
    file stays behind; it names the owner. Raises ``StoreLocked`` if another owner
    holds the store for ``timeout_s``.
    """

    def __init__(self, path: Path, timeout_s: float) -> None:
        self._path = path.resolve()
        lock_path = self._path.with_name(self._path.name + ".lock")
        with _owned_lock:
            if is_inherited(self._path):
                raise StoreLocked(
                    f"{path} was open in the parent process (pid {os.getppid()}) at the fork: "
                    "open it in the child only, or close it before the fork"
                )
            if _is_owned(self._path, lock_path):
                raise StoreLocked(f"{path} is open in this process (pid {os.getpid()}) already")
            try:
                file = open_beside(lock_path, os.O_RDWR | os.O_CREAT)
            except OSError as error:
                raise StoreUnreachable(f"cannot open {lock_path}: {error}") from error
            self._file = _owned[self._path] = io.FileIO(file, "r+")
        try:
            self._acquire(path, timeout_s)
        except BaseException:
            self.release()
            raise
        # The name is a hint for people: a full disk must not keep the store shut.
        with contextlib.suppress(OSError):
            self._file.truncate(0)
            os.pwrite(self._file.fileno(), f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Release the store; idempotent."""
        with _owned_lock:
            # Two steps of C that can be repeated: an interrupt may come between.
            self._file.close()
            _owned.pop(self._path, None)

    def _acquire(self, path: Path, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                lock_for_process(self._file.fileno())
                return
            except OSError as error:
                if time.monotonic() >= deadline:
                    owner = os.pread(self._file.fileno(), 32, 0).decode(errors="replace").strip()
                    raise StoreLocked(
                        f"{path} is owned by another process (pid {owner or 'unknown'}), "
                        f"waited {timeout_s:g} s"
                    ) from error
            time.sleep(_POLL_S)


def _forget_parents() -> None:
    global _owned_lock
    # A thread of the parent may have held it.
    _owned_lock = OwnedLock(StoreLocked)
    _owned.clear()


at_forks(after_in_child=_forget_parents)
