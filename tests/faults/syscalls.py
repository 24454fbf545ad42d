"""Making the kernel itself refuse or hold system calls, with nothing installed.

A seccomp filter, set by ``prctl``/``seccomp(2)`` through ctypes: any Linux since 5.5
on x86-64 or arm64, no privilege, no compiler, no tracer. A filter cannot be taken
back, so it is for processes that are killed afterwards.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import struct
from errno import EIO

__all__ = ["Held", "fail_fsync", "notify_fsync"]

# seccomp, fsync, fdatasync
_NUMBERS = {"x86_64": (317, 74, 75), "aarch64": (277, 82, 83)}
_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER = 1
_FLAG_TSYNC, _FLAG_NEW_LISTENER = 1, 8
_RET_ERRNO, _RET_USER_NOTIF, _RET_ALLOW = 0x00050000, 0x7FC00000, 0x7FFF0000
_LOAD_NUMBER, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NOTIF_BYTES, _NOTIF_RECV, _NOTIF_SEND = 80, 0xC0502100, 0xC0182101
_CONTINUE = 1
# In struct seccomp_notif: id, pid, flags; then nr, arch, instruction pointer.
_FIRST_ARGUMENT = 32


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_ushort),
        ("if_true", ctypes.c_ubyte),
        ("if_false", ctypes.c_ubyte),
        ("value", ctypes.c_uint),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Instruction)))


def _install(verdict: int, flags: int) -> int:
    seccomp, *numbers = _NUMBERS[platform.machine()]
    lines = [
        (_LOAD_NUMBER, 0, 0, 0),
        (_JUMP_IF_EQUAL, 1, 0, numbers[0]),
        (_JUMP_IF_EQUAL, 0, 1, numbers[1]),
        (_RETURN, 0, 0, verdict),
        (_RETURN, 0, 0, _RET_ALLOW),
    ]
    instructions = (_Instruction * len(lines))(*lines)
    program = _Program(len(lines), instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    result: int = libc.syscall(seccomp, _SET_MODE_FILTER, flags, ctypes.byref(program))
    if result < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return result


def fail_fsync() -> None:
    """Have every ``fsync`` and ``fdatasync`` of this process fail with EIO from now on."""
    _install(_RET_ERRNO | EIO, _FLAG_TSYNC)


def notify_fsync() -> int:
    """Have them stop until whoever holds the returned descriptor lets each go.

    To be called before other threads are started: those inherit the filter.
    """
    return _install(_RET_USER_NOTIF, _FLAG_NEW_LISTENER)


class Held:
    """The side that lets the stopped calls go; ``listener`` is ``notify_fsync``'s."""

    def __init__(self, listener: int) -> None:
        self.listener = listener

    def next(self) -> tuple[int, str]:
        """Wait for the next stopped call; its number, for ``release``, and its file."""
        buffer = bytearray(_NOTIF_BYTES)
        fcntl.ioctl(self.listener, _NOTIF_RECV, buffer)
        number, pid = struct.unpack_from("<QI", buffer)
        (descriptor,) = struct.unpack_from("<Q", buffer, _FIRST_ARGUMENT)
        return number, os.readlink(f"/proc/{pid}/fd/{descriptor}")

    def release(self, number: int) -> None:
        """Let a stopped call be carried out."""
        fcntl.ioctl(self.listener, _NOTIF_SEND, struct.pack("<QqiI", number, 0, 0, _CONTINUE))

    def fail(self, number: int) -> None:
        """Have a stopped call fail with EIO, without being carried out."""
        fcntl.ioctl(self.listener, _NOTIF_SEND, struct.pack("<QqiI", number, 0, -EIO, 0))

    def close(self) -> None:
        """Close the descriptor: stopped calls then fail with ENOSYS."""
        os.close(self.listener)
