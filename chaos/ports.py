"""Ports for servers, which no other process takes while a server restarts on its own."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["free_port", "free_ports"]

# Below what the kernel gives to connections and to processes that ask for any port: a port of
# those may be gone by the time a server listens on it, or while it is dead. And low
# enough for a Redis cluster's bus, which is 10000 above.
_FIRST, _LAST = 10_240, 22_700
_KERNELS = Path("/proc/sys/net/ipv4/ip_local_port_range")
# A process's own, as many as it hands out before it comes to the first one again.
_RANGE = 300
_GENERATOR = random.SystemRandom()


class _Ports:
    """The ports of one process: no other process that asks here gets one of them.

    The first of them stays bound, which is the claim; the kernel drops it with the
    process, however that ends.
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        self._claim, first = self._claimed()
        self._next = self._endless(first + 1)

    def take(self) -> int:
        """Return the next of them that no process listens on."""
        return next(port for port in self._next if _is_free(port))

    def _claimed(self) -> tuple[socket.socket, int]:
        last = _LAST
        with suppress(OSError):
            last = min(last, int(_KERNELS.read_text().split()[0]) - 1)
        starts = list(range(_FIRST, last - _RANGE + 2, _RANGE))
        _GENERATOR.shuffle(starts)
        for start in starts:
            # Without SO_REUSEADDR: with it, two sockets may be bound to one port.
            claim = socket.socket()
            try:
                claim.bind(("127.0.0.1", start))
            except OSError:
                claim.close()
                continue
            return claim, start
        raise RuntimeError(f"each of {len(starts)} ranges of ports is another process's")

    @staticmethod
    def _endless(first: int) -> Iterator[int]:
        while True:
            yield from range(first, first + _RANGE - 1)


_LOCK = threading.Lock()
_OURS: list[_Ports] = []


def free_port() -> int:
    """Return a port on 127.0.0.1 that no process listens on now.

    No other process is given it here while this one lives, and this one not before it
    has asked for some hundreds more: a server that is killed finds it free when it comes
    back. Any thread may call; a forked child has ports of its own.
    """
    with _LOCK:
        if not _OURS or _OURS[0].process != os.getpid():
            _OURS[:] = [_Ports()]
        return _OURS[0].take()


def free_ports(count: int) -> list[int]:
    """Return so many of them, all different."""
    return [free_port() for _ in range(count)]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
