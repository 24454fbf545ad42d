"""Ports for servers, which nobody takes while one of them restarts on its own."""

from __future__ import annotations

import random
import socket
from pathlib import Path

__all__ = ["free_port"]

# Below what the kernel gives to connections and to whoever asks for any port: a port of
# those may be gone by the time a server listens on it, or while it is dead. And low
# enough for a Redis cluster's bus, which is 10000 above.
_FIRST, _LAST = 10_240, 22_700
_KERNELS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_GENERATOR = random.SystemRandom()


def free_port() -> int:
    """Return a port on 127.0.0.1 that nobody listens on now, or soon by chance."""
    last = _LAST
    if _KERNELS.exists():
        last = min(last, int(_KERNELS.read_text().split()[0]) - 1)
    while True:
        port = _GENERATOR.randint(_FIRST, last)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
