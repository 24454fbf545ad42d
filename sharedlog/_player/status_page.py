"""The status page of a player: HTTP for people, read only (docs/reference/player.md).

``/`` is one page without anything from elsewhere; ``/status.json`` is what it shows.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from typing import Any

from _rifl_ground.log import get_logger
from sharedlog._core.errors import InvalidRequest

_log = get_logger("sharedlog")
_LOOPBACK = "127.0.0.1"
_PORTS = range(1 << 16)
# How long a connection may last, whatever comes on it, and how many there are at once: for one
# more the oldest is hung up on, so that slow ones keep no reader out.
_PATIENCE_S, _AT_ONCE = 5.0, 16
# The page's own script and style, and nothing else, from anywhere.
_OWN = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


class StatusPage:
    """Serves what ``shown`` returns, until it is closed. Its address is ``url``."""

    def __init__(self, listen: str, shown: Callable[[], Any]) -> None:
        """``listen``: ``[HOST:]PORT``; without a host, of this machine alone.

        Raises ``InvalidRequest`` for what cannot be listened at.
        """
        host, port = _parsed(listen)
        html = files(__package__).joinpath("status.html").read_text("utf-8")
        try:
            family, *_, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self._server = _Server(family, address, html, shown)
        except OSError as error:
            raise InvalidRequest(f"the status page cannot be at {listen}: {error}") from error
        shown_host = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown_host}:{self._server.server_address[1]}/"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="sharedlog-page", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Serve nothing more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _parsed(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) not in _PORTS:
        raise InvalidRequest(f"{listen!r:.200}: a status page is at [HOST:]PORT")
    return host.strip("[]") or _LOOPBACK, int(port)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    request_queue_size = 128
    daemon_threads = True
    block_on_close = False

    def __init__(self, family: int, address: Any, html: str, shown: Callable[[], Any]) -> None:
        self.address_family = family
        self.html = html.encode()
        self.policy = _policy(html)
        self.shown = shown
        # The open connections, the oldest first, and until when.
        self._open: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(address, _Handler)
        self.loopback = ipaddress.ip_address(str(self.server_address[0])).is_loopback

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= _AT_ONCE:
                self._hang_up(next(iter(self._open)))
            self._open[request] = time.monotonic() + _PATIENCE_S
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        # Between two requests, and every tenth of a second.
        with self._lock:
            now_s = time.monotonic()
            for late in [each for each, until_s in self._open.items() if until_s < now_s]:
                self._hang_up(late)

    def _hang_up(self, request: socket.socket) -> None:
        """Have its thread end; under the lock, so that it has not closed it."""
        del self._open[request]
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A browser that hung up, or a bug of this page: neither ends the player.
        _log.debug("player_status_request_failed", exc_info=True)


def _policy(html: str) -> str:
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, text in _OWN.findall(html):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        hashes[kind].append(f"'sha256-{digest}'")
    return (
        f"default-src 'none'; script-src {' '.join(hashes['script'])}; "
        f"style-src {' '.join(hashes['style'])}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "sharedlog", ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if not self._meant():
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
        elif path == "/":
            self._answer("text/html; charset=utf-8", self.server.html)
        elif path == "/status.json":
            self._answer("application/json", json.dumps(self.server.shown()).encode())
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    do_HEAD = do_GET  # noqa: N815 - as above

    def _meant(self) -> bool:
        """Whether it was asked by an address of this machine.

        A page from elsewhere whose name leads here (DNS rebinding) is no reader.
        """
        if not self.server.loopback:
            return True
        host = re.sub(r":\d*$", "", self.headers.get("Host", "")).strip("[]")
        if host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    def _answer(self, kind: str, body: bytes) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", self.server.policy)
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing: the log is for events."""
