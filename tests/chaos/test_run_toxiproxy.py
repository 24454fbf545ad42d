"""A real Toxiproxy, driven by toxiproxy-python."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.programs import NotInstalled
from chaos.run.toxiproxy import Links, Toxiproxy, executable

_WAIT_S = 20.0


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Toxiproxy]:
    with Toxiproxy(tmp_path) as running:
        yield running


@pytest.fixture
def upstream() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(_WAIT_S)
        yield listening


def _connect(listening: socket.socket, port: int) -> tuple[socket.socket, socket.socket]:
    client = socket.create_connection(("127.0.0.1", port), _WAIT_S)
    server, _ = listening.accept()
    server.settimeout(_WAIT_S)
    return client, server


def test_data_is_cut_in_the_middle(proxy: Toxiproxy, upstream: socket.socket) -> None:
    """A message longer than the limit arrives in part, and then the connection is over."""
    link = proxy.link("cut", upstream.getsockname()[1])
    toxic = link.poison("limit_data", "upstream", {"bytes": 5})
    client, server = _connect(upstream, link.port)
    with client, server:
        client.sendall(b"a message")
        assert server.makefile("rb").read() == b"a mes"
    link.cure(toxic)
    link.cure(toxic)
    client, server = _connect(upstream, link.port)
    with client, server:
        client.sendall(b"a message")
        assert server.recv(100) == b"a message"


def test_one_way_loss_is_one_way(proxy: Toxiproxy, upstream: socket.socket) -> None:
    """What the server sends is lost without a word, and what the client sends is not."""
    link = proxy.link("deaf", upstream.getsockname()[1])
    client, server = _connect(upstream, link.port)
    with client, server:
        client.sendall(b"before")
        assert server.recv(100) == b"before"
        toxic = link.poison("timeout", "downstream", {"timeout": 0})
        server.sendall(b"lost")
        client.sendall(b"heard")
        assert server.recv(100) == b"heard"
        threading.Thread(target=link.cure, args=(toxic,)).start()
        # The end of the loss is the end of the connection: nothing arrives late.
        assert client.recv(100) == b""


def test_a_path_that_is_down_comes_back_where_it_was(
    proxy: Toxiproxy, upstream: socket.socket
) -> None:
    """A path refuses connections while it is down; its address stays."""
    link = proxy.link("path", upstream.getsockname()[1])
    link.cut()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", link.port), _WAIT_S)
    link.mend()
    client, server = _connect(upstream, link.port)
    client.close()
    server.close()


def test_paths_that_are_struck_as_one_are_mended_as_one(
    proxy: Toxiproxy, upstream: socket.socket
) -> None:
    """A replica is cut off from all nodes of its log, by a toxic or altogether."""
    port = upstream.getsockname()[1]
    first, second = proxy.link("first", port), proxy.link("second", port)
    # So that they call a toxic by different names.
    first.cure(first.poison("limit_data", "upstream", {"bytes": 5}))
    both = Links([first, second])
    toxic = both.poison("limit_data", "upstream", {"bytes": 5})
    for expected in (b"a mes", b"a message"):
        for link in (first, second):
            client, server = _connect(upstream, link.port)
            with client, server:
                client.sendall(b"a message")
                client.shutdown(socket.SHUT_WR)
                assert server.makefile("rb").read() == expected
        both.cure(toxic)
    both.cut()
    for link in (first, second):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", link.port), _WAIT_S)
    both.mend()
    for link in (first, second):
        client, server = _connect(upstream, link.port)
        client.close()
        server.close()


def test_a_toxic_that_toxiproxy_refuses_is_not_taken_for_a_fault(
    proxy: Toxiproxy, upstream: socket.socket
) -> None:
    """A fault that did not strike is an error, not a quiet run."""
    link = proxy.link("path", upstream.getsockname()[1])
    with pytest.raises(Exception, match="invalid toxic type"):
        link.poison("no such toxic", "upstream", {})


def test_without_a_server_it_says_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A machine without toxiproxy-server is told ``make toxiproxy``."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(NotInstalled, match="make toxiproxy"):
        executable()
