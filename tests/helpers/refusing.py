"""An address where a server is away: connections are counted, and closed at once."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

__all__ = ["STOPPED_S", "Refusing", "refusing"]

# gRPC tries again each 0.2 s, and a little.
STOPPED_S = 0.7


class Refusing:
    """Takes connections at an address, closes each at once, and counts them."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._listening = socket.create_server((host, int(port)))
        self.connections = 0
        self._latest = time.monotonic()
        threading.Thread(target=self._accept, daemon=True).start()

    def none_for(self, seconds: float) -> bool:
        """Whether the last connection was so long ago."""
        return time.monotonic() - self._latest > seconds

    def close(self) -> None:
        """Take no more."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._listening.accept()[0].close()
                self.connections += 1
                self._latest = time.monotonic()


@contextlib.contextmanager
def refusing(address: str) -> Iterator[Refusing]:
    """Be in the place of a server that is away."""
    taken = Refusing(address)
    try:
        yield taken
    finally:
        taken.close()
