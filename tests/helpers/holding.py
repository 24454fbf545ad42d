"""A way to a server on which one request arrives late, after its sender gave up."""

from __future__ import annotations

import contextlib
import socket
import threading

__all__ = ["HangingProxy", "HoldingProxy"]


class HoldingProxy:
    """Passes connections on; of those that say a given word, what they say is held.

    ``let_go`` delivers that to the server, whether the senders are still there or not.
    """

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._word: bytes | None = None
        self._go = threading.Event()
        self.held = 0
        self.delivered = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def hold_at(self, word: bytes) -> None:
        """From now on hold what says the word."""
        self._word = word

    def let_go(self) -> None:
        """Deliver it, and hold no more."""
        self._word = None
        self._go.set()

    def close(self) -> None:
        """Accept no more."""
        self._go.set()
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            late = threading.Event()
            for target, ends in (
                (self._held_back, (client, server)),
                (self._back, (server, client)),
            ):
                threading.Thread(target=target, args=(*ends, late), daemon=True).start()

    def _held_back(self, source: socket.socket, sink: socket.socket, late: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self._word and self._word in data:
                    self.held += 1
                    late.set()
                    self._go.wait()
                sink.sendall(data)
        if not late.is_set():
            _shut(source, sink)

    def _back(self, source: socket.socket, sink: socket.socket, late: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if late.is_set():
                    # An answer to what was late: it has been carried out.
                    self.delivered += 1
                    break
                sink.sendall(data)
        _shut(source, sink)


class HangingProxy(HoldingProxy):
    """As that, and nothing comes back meanwhile, either: a server that hangs from that word on."""

    def _back(self, source: socket.socket, sink: socket.socket, late: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if late.is_set():
                    self._go.wait()
                sink.sendall(data)
        _shut(source, sink)


def _shut(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
