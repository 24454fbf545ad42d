"""Means of which each operating system has its own: chosen here, and nowhere else.

Servers run on Linux. On macOS, where they are developed, another means stands beside each of
Linux'. On Windows the client works, and what needs POSIX is refused (``refusal``).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

try:
    import fcntl
except ModuleNotFoundError:
    # Windows.
    fcntl = None  # type: ignore[assignment]

_LINUX, MAC, WINDOWS = sys.platform == "linux", sys.platform == "darwin", os.name == "nt"


def refusal(what: str) -> str:
    """Return why this system cannot have something that needs POSIX; empty: it can."""
    if not WINDOWS:
        return ""
    return (
        f"{what} needs POSIX, whose locks of files Windows does not have: keep it elsewhere, or "
        "run this in WSL"
    )


# -- Forks -----------------------------------------------------------------------------------------


def at_forks(**told: Callable[[], None]) -> None:
    """Register functions as ``os.register_at_fork`` does, if the system forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**told)


# -- Files -----------------------------------------------------------------------------------------

# macOS: a plain fsync leaves what was written in the disk's own cache.
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
# Linux' struct flock.
_LOCK = struct.Struct("hhqqi0q")
# How a file system says that it has no such command.
_UNSUPPORTED = (errno.ENOTSUP, errno.ENOTTY, errno.EINVAL)


def sync(file: int) -> None:
    """Have what was written to an open file, or folder, on the disk; raises ``OSError``."""
    if _FULL_SYNC is not None:
        try:
            fcntl.fcntl(file, _FULL_SYNC)
            return
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
    os.fsync(file)


def lock_opened(file: int, *, shared: bool = False) -> bool:
    """Lock a file for this opening of it, without waiting; False: another opening has it.

    Closing other descriptors of the file keeps the lock; a forked child shares it. Raises
    ``OSError`` where the file system has no such locks.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock_opened(file: int) -> None:
    """Give back what ``lock_opened`` got."""
    fcntl.flock(file, fcntl.LOCK_UN)


def lock_for_process(file: int, *, shared: bool = False) -> None:
    """Lock a file for this process, without waiting; raises ``OSError``: another process has it.

    Closing any descriptor of the file gives the lock back. A forked child does not have it.
    """
    fcntl.lockf(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def is_locked_elsewhere(file: int) -> bool:
    """Whether another process has ``lock_for_process``'s lock. On Linux the file is not locked."""
    if _LINUX:
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        return bool(_LOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, asked))[0] != fcntl.F_UNLCK)
    try:
        # For an instant this may keep an opener waiting: it tries again.
        lock_for_process(file, shared=True)
    except OSError:
        return True
    return False


def same_file(one: Path, other: Path) -> bool:
    """Whether two resolved names are of one file, such as two that differ in case on macOS."""
    if one == other:
        return True
    with suppress(OSError):
        return one.samefile(other)
    return False


_MODIFY = 0x00000002


def watch_writes(path: Path) -> int | None:
    """Return a descriptor that can be read when the file is written to; None: look at it."""
    import ctypes

    try:
        libc = ctypes.CDLL(None, use_errno=True)
        events: int = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, AttributeError):
        return None
    if events < 0:
        return None
    if libc.inotify_add_watch(events, os.fsencode(path), _MODIFY) < 0:
        os.close(events)
        return None
    return events


def file_system(folder: Path) -> str:
    """Return the name of the file system's kind; empty where the kernel does not tell."""
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            mount, _, source = line.partition(" - ")
            if mount.split()[2] == wanted:
                return source.split()[0]
    return ""


# -- The machine's boot ----------------------------------------------------------------------------


# The raw clock counts sleep on macOS, and not on Linux.
_NOT_ON_LINUX = "CLOCK_MONOTONIC_RAW" if MAC else "CLOCK_MONOTONIC"
_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", getattr(time, _NOT_ON_LINUX, 0))


def boottime() -> float:
    """Return seconds since the machine's boot, its sleep included (DESIGN §7, invariant 10)."""
    return time.clock_gettime(_CLOCK)


_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_alone = os.urandom(16).hex()


def boot() -> str:
    """Return what names the boot that ``boottime`` counts from, and its time namespace.

    A process has a name of its own where the system does not tell: to it, terms of others then
    run in full from when it first sees them.
    """
    with suppress(OSError):
        return f"{_text(_BOOT_ID)} {os.readlink('/proc/self/ns/time')}"
    if MAC:
        with suppress(OSError, AttributeError):
            return _boot_session()
    return _alone


def _boot_session() -> str:
    import ctypes

    read = ctypes.CDLL(None).sysctlbyname
    size_p = ctypes.POINTER(ctypes.c_size_t)
    read.argtypes = (ctypes.c_char_p, ctypes.c_void_p, size_p, ctypes.c_void_p, ctypes.c_size_t)
    found = ctypes.create_string_buffer(64)
    size = ctypes.c_size_t(len(found))
    if read(b"kern.bootsessionuuid", found, ctypes.byref(size), None, 0) or not found.value:
        raise OSError(errno.ENOENT, "kern.bootsessionuuid")
    return found.value.decode("ascii", "replace")


# -- Processes -------------------------------------------------------------------------------------

# Of a boot's id, which is random.
_BOOT_CHARS = 13
_DEAD = "ZX"


def _text(path: str) -> str:
    return Path(path).read_text("utf-8", "replace").strip()


class ProcessName(NamedTuple):
    """Which process one is. ``started``: empty of one that has ended and is not yet reaped."""

    boot: str
    namespace: str
    pid: int
    started: str


def process_of(pid: int) -> ProcessName | None:
    """Return a process of this PID namespace; None: it is not there, or the system is not Linux."""
    with suppress(OSError, IndexError):
        boot_id = _text(_BOOT_ID)
        namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")
        # Behind the command's name, which may have anything in it.
        fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
        started = "" if fields[0] in _DEAD else fields[19]
        return ProcessName(boot_id[:_BOOT_CHARS].replace("-", ""), namespace, pid, started)
    return None


def kernels_locks() -> list[str]:
    """Return the lines of Linux' /proc/locks; none: the system does not tell."""
    with suppress(OSError):
        return _text("/proc/locks").splitlines()
    return []


# -- Names that a process holds --------------------------------------------------------------------


class HeldName(Protocol):
    """A name that ``hold_name`` gave: other processes of the machine see that it is held."""

    def close(self) -> None:
        """Give it back."""


def hold_name(name: str) -> HeldName:
    """Hold a name until it is closed, or the process ends; also while that is suspended.

    Raises ``OSError``: it is held already, or none can be. A container has names of its own. What
    a forked child inherits it gives back by ``close``: the parent goes on to hold the name.
    """
    return _bound(name) if _LINUX else _LockedName(name)


def is_held(name: str) -> bool:
    """Whether a process of this machine holds the name."""
    try:
        if _LINUX:
            _bound(name).close()
        else:
            return _is_locked(name)
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def _bound(name: str) -> socket.socket:
    # An abstract socket, which the kernel drops with its process.
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        made.bind(f"\0{name}".encode())
    except BaseException:
        made.close()
        raise
    return made


class _LockedName:
    """A locked file in the folder for temporary ones, which on macOS is each user's own.

    One that a killed process left behind has no lock, and is empty.
    """

    def __init__(self, name: str) -> None:
        if fcntl is None:
            raise OSError(errno.ENOTSUP, "no locks of files")
        self._process = os.getpid()
        self._path = _file_of(name)
        self._file = _open_private(self._path, os.O_RDWR | os.O_CREAT)
        try:
            if not lock_opened(self._file):
                raise OSError(errno.EADDRINUSE, f"{self._path} is locked")
        except BaseException:
            os.close(self._file)
            raise

    def close(self) -> None:
        if self._process == os.getpid():
            self._path.unlink(missing_ok=True)
        os.close(self._file)


def _is_locked(name: str) -> bool:
    if fcntl is None:
        return False
    file = _open_private(_file_of(name), os.O_RDONLY)
    try:
        return not lock_opened(file, shared=True)
    finally:
        os.close(file)


def _file_of(name: str) -> Path:
    import tempfile

    return Path(tempfile.gettempdir()) / f"{name}.held"


def _open_private(path: Path, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
