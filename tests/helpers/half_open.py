"""Strangers that open calls and send no message: HTTP/2 by hand, from any loopback address."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Iterator, Mapping

__all__ = ["half_open"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_MOST_STREAMS = 3
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
# So many bytes of what a server sends are always allowed.
_WINDOW = struct.pack(">HI", 4, 2**31 - 1)


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _headers(path: str) -> bytes:
    """HPACK without a table or Huffman's code."""
    pairs = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "stranger",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in pairs.items()
    )


class _Stranger:
    """One connection."""

    def __init__(self, address: str, source: str, paths: list[str], message: bytes | None) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 10, source_address=(source, 0))
        self._message = message
        self._next = 1
        self._open: dict[int, str] = {}
        self._received = b""
        self.ended = 0
        self.settings: dict[int, int] = {}
        opening = _PREFACE + _frame(_SETTINGS, 0, 0, _WINDOW)
        self.socket.sendall(opening + b"".join(map(self._call, paths)))

    def _call(self, path: str) -> bytes:
        stream, self._next = self._next, self._next + 2
        self._open[stream] = path
        sent = _frame(_HEADERS, _END_HEADERS, stream, _headers(path))
        if self._message is not None:
            body = b"\0" + struct.pack(">I", len(self._message)) + self._message
            sent += _frame(_DATA, _END_STREAM, stream, body)
        return sent

    def read(self, renews: bool) -> bool:
        """Take in what is there, and renew what has ended; False at the end."""
        data = self.socket.recv(1 << 16)
        if not data:
            return False
        self._received += data
        answer = b""
        while len(self._received) >= 9:
            length = int.from_bytes(self._received[:3], "big")
            kind, flags, stream = struct.unpack(">BBI", self._received[3:9])
            if len(self._received) < 9 + length:
                break
            payload = self._received[9 : 9 + length]
            self._received = self._received[9 + length :]
            if kind == _SETTINGS and not flags & _ACK:
                self.settings = dict(struct.iter_unpack(">HI", payload))
            if kind in (_SETTINGS, _PING) and not flags & _ACK:
                answer += _frame(kind, _ACK, 0, payload if kind == _PING else b"")
            over = kind == _RESET or (kind == _HEADERS and flags & _END_STREAM)
            if over and (path := self._open.pop(stream, None)) is not None:
                self.ended += 1
                if renews:
                    answer += self._call(path)
        if answer:
            self.socket.sendall(answer)
        return True


class HalfOpen:
    """What the strangers have seen: ``ended`` counts their calls that ended."""

    def __init__(self, strangers: list[_Stranger]) -> None:
        self._strangers = strangers

    @property
    def ended(self) -> int:
        """Their calls that ended."""
        return sum(each.ended for each in self._strangers)

    @property
    def most_streams(self) -> int | None:
        """How many calls a connection may have at once, as the server says; None: any number."""
        return self._strangers[0].settings.get(_MOST_STREAMS)


@contextlib.contextmanager
def half_open(
    address: str,
    calls: Mapping[str, list[str]],
    *,
    renews: bool = True,
    message: bytes | None = None,
) -> Iterator[HalfOpen]:
    """Hold calls open while the block runs: by the caller's address, the paths of each.

    A call that ends is opened again at once. ``message``: sent whole, for calls that may stay
    open after it.
    """
    strangers = [_Stranger(address, source, paths, message) for source, paths in calls.items()]
    stopping = threading.Event()

    def run() -> None:
        with selectors.DefaultSelector() as selector:
            for each in strangers:
                selector.register(each.socket, selectors.EVENT_READ, each)
            while not stopping.is_set() and selector.get_map():
                for key, _ in selector.select(0.05):
                    with contextlib.suppress(OSError):
                        if key.data.read(renews):
                            continue
                    selector.unregister(key.fileobj)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield HalfOpen(strangers)
    finally:
        stopping.set()
        thread.join(60)
        for each in strangers:
            each.socket.close()
