"""A machine that is a Mac to rifl's packages: what Linux alone has is gone.

Python runs this at its start if this folder is in PYTHONPATH; so do its child processes. To the
standard library and to others the platform stays Linux: they would miss what a real Mac brings.
"""

import ctypes
import errno
import fcntl
import os
import resource
import select
import signal
import socket
import sys
import time
from contextlib import suppress

_LINUX_ALONE = {
    fcntl: (
        *("F_OFD_GETLK", "F_OFD_SETLK", "F_OFD_SETLKW", "F_ADD_SEALS", "F_GET_SEALS"),
        *("F_GETPIPE_SZ", "F_SETPIPE_SZ", "F_NOTIFY", "F_SETSIG"),
    ),
    os: (
        *("pipe2", "pidfd_open", "sched_getaffinity", "sched_setaffinity", "posix_fallocate"),
        *("posix_fadvise", "fdatasync", "memfd_create", "eventfd", "getrandom", "O_TMPFILE"),
        *("O_DIRECT", "splice", "copy_file_range", "unshare", "setns", "getxattr", "setxattr"),
        *("listxattr", "removexattr", "waitid"),
    ),
    resource: ("prlimit",),
    select: ("epoll",),
    signal: ("sigtimedwait", "sigwaitinfo", "pidfd_send_signal", "SIGRTMIN", "SIGRTMAX", "SIGPWR"),
    socket: (
        *("SOCK_CLOEXEC", "SOCK_NONBLOCK", "SO_PEERCRED", "SO_PASSCRED", "SO_DOMAIN"),
        *("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "AF_NETLINK", "AF_PACKET", "AF_VSOCK"),
    ),
    time: ("CLOCK_BOOTTIME", "CLOCK_TAI"),
}
_MOST_OF_A_SOCKETS_PATH = 103
_OF_TESTS = os.environ.get("TMPDIR", "/tmp")  # noqa: S108 - what tempfile says is not known yet
_BOOT_SESSION = b"kern.bootsessionuuid"
_F_FULLFSYNC = 51

with open("/proc/sys/kernel/random/boot_id", "rb") as _file:
    _BOOT = _file.read().strip()

for _module, _names in _LINUX_ALONE.items():
    for _name in _names:
        with suppress(AttributeError):
            delattr(_module, _name)


def _refuse(event: str, arguments: tuple) -> None:
    """Have no /proc, no /dev/shm, no sockets but those with short paths."""
    if event in ("open", "os.listdir", "os.scandir"):
        path = arguments[0]
        path = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        # Tests keep their files there, by name, if there is room.
        if path.startswith("/proc") or (
            path.startswith("/dev/shm") and not path.startswith(_OF_TESTS)  # noqa: S108
        ):
            raise FileNotFoundError(errno.ENOENT, "no such thing on a Mac", path)
    elif event in ("socket.bind", "socket.connect") and isinstance(arguments[1], str | bytes):
        path = os.fsencode(arguments[1])
        if path[:1] in (b"", b"\0"):
            raise FileNotFoundError(errno.ENOENT, "no abstract sockets on a Mac")
        if len(path) > _MOST_OF_A_SOCKETS_PATH:
            raise OSError("AF_UNIX path too long")


sys.addaudithook(_refuse)


def _sysctl(name: bytes, to: int, size: object, _new: int, _bytes: int) -> int:
    if name != _BOOT_SESSION or size[0] <= len(_BOOT):
        return -1
    ctypes.memmove(to, _BOOT + b"\0", len(_BOOT) + 1)
    size[0] = len(_BOOT) + 1
    return 0


_sysctlbyname = ctypes.CFUNCTYPE(
    *(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)),
    *(ctypes.c_void_p, ctypes.c_size_t),
)(_sysctl)
_found = ctypes.CDLL.__getattr__


def _in_libc(library: ctypes.CDLL, name: str) -> object:
    if name.startswith("inotify"):
        raise AttributeError(name)
    return _sysctlbyname if name == "sysctlbyname" else _found(library, name)


ctypes.CDLL.__getattr__ = _in_libc
_fcntl = fcntl.fcntl


def _fcntl_with_full_sync(file: object, command: int, argument: object = 0, /) -> object:
    if command != _F_FULLFSYNC:
        return _fcntl(file, command, argument)
    os.fsync(file)
    fcntl.full_syncs += 1
    return 0


# How often a file was synced as on a Mac, for tests.
fcntl.full_syncs = 0
fcntl.F_FULLFSYNC = _F_FULLFSYNC
fcntl.fcntl = _fcntl_with_full_sync

# Our one module that asks for the platform does so when it is imported.
_platform, sys.platform = sys.platform, "darwin"
try:
    with suppress(ModuleNotFoundError):
        import _rifl_ground.system  # noqa: F401
finally:
    sys.platform = _platform
