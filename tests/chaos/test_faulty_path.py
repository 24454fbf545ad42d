"""The faulty path breaks connections for real, and only when told to."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from chaos.faulty_path import FaultyPath

TIMEOUT_S = 20.0


@contextlib.contextmanager
def _echoing(heard: threading.Event) -> Iterator[int]:
    """A server for one connection that sends back what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def echo() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    while data := connection.recv(1000):
                        heard.set()
                        connection.sendall(data)

        thread = threading.Thread(target=echo)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(TIMEOUT_S)


def _connect(path: FaultyPath) -> socket.socket:
    return socket.create_connection(("127.0.0.1", path.port), timeout=TIMEOUT_S)


def test_bytes_pass_both_ways() -> None:
    """Without a fault the path is a path."""
    with _echoing(threading.Event()) as port, FaultyPath() as path:
        path.lead_to(port)
        with _connect(path) as client:
            client.sendall(b"hello")
            assert client.recv(100) == b"hello"


def test_reset_is_a_tcp_reset() -> None:
    """Both a waiting reader and the count see every connection reset."""
    with _echoing(threading.Event()) as port, FaultyPath() as path:
        path.lead_to(port)
        with _connect(path) as client:
            client.sendall(b"hello")
            assert client.recv(100) == b"hello"
            assert path.reset() == 1
            with pytest.raises(ConnectionResetError):
                client.recv(100)


def test_dropped_answers_reach_the_server_and_not_the_client() -> None:
    """The server hears the request; the client hears a reset."""
    heard = threading.Event()
    with _echoing(heard) as port, FaultyPath() as path:
        path.lead_to(port)
        with _connect(path) as client:
            client.sendall(b"hello")
            assert client.recv(100) == b"hello"
            heard.clear()
            with ThreadPoolExecutor(1) as pool:
                dropping = pool.submit(path.drop_answers, seconds=0.3)
                assert path.swallowing.wait(TIMEOUT_S)
                client.sendall(b"pay")
                assert heard.wait(TIMEOUT_S)
                with pytest.raises(ConnectionResetError):
                    client.recv(100)
                assert dropping.result() == 3


def test_a_silent_path_takes_everything_and_answers_nobody() -> None:
    """The server hears who connects, who hears nothing; then both are told of a break."""
    heard = threading.Event()
    with _echoing(heard) as port, FaultyPath() as path:
        path.lead_to(port)
        path.fall_silent()
        with _connect(path) as client:
            client.sendall(b"pay")
            assert heard.wait(TIMEOUT_S)
            path.speak()
            with pytest.raises(ConnectionResetError):
                client.recv(100)


def test_nowhere_to_lead_is_a_reset() -> None:
    """Without an upstream a connection is reset at once; with one again, it passes."""
    with _echoing(threading.Event()) as port, FaultyPath() as path:
        # As early as while it connects.
        with pytest.raises(ConnectionResetError), _connect(path) as client:
            client.recv(100)
        path.lead_to(port)
        with _connect(path) as client:
            client.sendall(b"hello")
            assert client.recv(100) == b"hello"
