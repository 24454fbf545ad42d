"""A NAT or a balancer that forgets connections: what comes on them goes nowhere."""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import threading

__all__ = ["ForgettingProxy"]

_SO_ATTACH_FILTER = 26
# One instruction of classic BPF: keep no byte of any packet.
_DROP = struct.pack("HBBI", 0x06, 0, 0, 0)


class ForgettingProxy:
    """Passes connections on to a port of this machine, until it forgets those that there are."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._target = ("127.0.0.1", port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.target = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._clients: list[socket.socket] = []
        self._all: list[socket.socket] = []
        self._swallowed: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def connections(self) -> int:
        """How many there were."""
        return len(self._clients)

    def forget(self) -> None:
        """Drop from now on what clients send, and acknowledge nothing; Linux only."""
        program = ctypes.create_string_buffer(_DROP, len(_DROP))
        for each in self._clients:
            packed = struct.pack("HL", 1, ctypes.addressof(program))
            each.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, packed)

    def swallow(self) -> None:
        """Take from now on what either side sends, and pass nothing on."""
        self._swallowed.update(self._all)

    def cut(self) -> None:
        """End the connections that there are; new ones are taken."""
        for each in list(self._all):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End all of it."""
        for each in (self._listening, *self._all):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            self._clients.append(client)
            self._all += [client, server]
            for ends in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if source not in self._swallowed:
                    sink.sendall(data)
        if source not in self._swallowed:
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)
