"""A socket that shows other processes of the machine that a replica is there (DESIGN §6)."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import weakref


class Presence:
    """An abstract socket named after a replica, held until it is closed or its process ends.

    The kernel keeps it for a process that is suspended, too, whose beats stand still. Where
    the system has no such sockets (they are Linux'), nothing shows. Containers have their
    own. A forked child lets its copy go.
    """

    def __init__(self, owner: str) -> None:
        self._socket: socket.socket | None = None
        with contextlib.suppress(OSError):
            self._socket = _bound(owner)
        _held.add(self)

    def close(self) -> None:
        """Show it no longer."""
        held, self._socket = self._socket, None
        if held is not None:
            held.close()


def is_here(owner: str) -> bool:
    """Whether a process of this machine shows that it is this replica."""
    try:
        _bound(owner).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def _bound(owner: str) -> socket.socket:
    if sys.platform != "linux":
        raise OSError(errno.ENOTSUP, "no abstract sockets")
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        made.bind(f"\0rifl-replica-{owner}".encode())
    except BaseException:
        made.close()
        raise
    return made


def _let_go() -> None:
    for presence in list(_held):
        presence.close()


_held: weakref.WeakSet[Presence] = weakref.WeakSet()
os.register_at_fork(after_in_child=_let_go)
