"""A real Toxiproxy of our own, and the paths that lead through it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

import toxiproxy
from toxiproxy.exceptions import NotFound

from chaos.programs import program
from chaos.run.process import DidNotStart

__all__ = ["Link", "Links", "PathTo", "Toxiproxy", "executable"]

_START_S = 30.0


def executable() -> str:
    """Find the toxiproxy-server; raises ``NotInstalled``."""
    return program("toxiproxy-server", str(Path(sys.executable).parent), target="toxiproxy")


class PathTo(Protocol):
    """What leads to a member, as faults strike it: see ``Link``."""

    def poison(
        self, kind: str, stream: str, attributes: Mapping[str, int], toxicity: float = 1.0
    ) -> str:
        """Add a toxic; returns the name it is removed by."""
        ...

    def cure(self, name: str) -> None:
        """Remove it, if it is still there."""
        ...

    def cut(self) -> None:
        """Close all connections, and accept none."""
        ...

    def mend(self) -> None:
        """Accept connections again."""
        ...


class Link:
    """One path: a port of Toxiproxy's that leads to a port of 127.0.0.1. One thread.

    The streams are Toxiproxy's: ``upstream`` is what a client sends, ``downstream``
    what it receives.
    """

    def __init__(self, proxy: toxiproxy.Proxy) -> None:
        self._proxy = proxy
        self._next = 0
        self.name: str = proxy.name
        # Where clients connect to.
        self.address: str = proxy.listen

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        return int(self.address.rpartition(":")[2])

    def poison(
        self, kind: str, stream: str, attributes: Mapping[str, int], toxicity: float = 1.0
    ) -> str:
        """Add a toxic; returns the name it is removed by.

        ``toxicity`` is the share of connections that it strikes.
        """
        self._next += 1
        name = f"{kind}-{self._next}"
        self._proxy.add_toxic(
            name=name, type=kind, stream=stream, attributes=dict(attributes), toxicity=toxicity
        )
        if name not in self._proxy.toxics():
            raise RuntimeError(f"{self.name} did not take {kind} with {dict(attributes)}")
        return name

    def cure(self, name: str) -> None:
        """Remove a toxic, if it is still there."""
        with contextlib.suppress(NotFound):
            self._proxy.destroy_toxic(name)

    def cut(self) -> None:
        """Close all connections, and accept none."""
        self._proxy.disable()

    def mend(self) -> None:
        """Accept connections again."""
        self._proxy.enable()


class Links:
    """Paths that are struck as one. One thread."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links
        self._next = 0
        # What each of them calls a toxic.
        self._names: dict[str, list[str]] = {}

    def poison(
        self, kind: str, stream: str, attributes: Mapping[str, int], toxicity: float = 1.0
    ) -> str:
        """See ``Link.poison``."""
        self._next += 1
        name = f"{kind}-{self._next}"
        self._names[name] = [
            link.poison(kind, stream, attributes, toxicity) for link in self._links
        ]
        return name

    def cure(self, name: str) -> None:
        """See ``Link.cure``."""
        for link, own in zip(self._links, self._names.pop(name, ()), strict=False):
            link.cure(own)

    def cut(self) -> None:
        """See ``Link.cut``."""
        for link in self._links:
            link.cut()

    def mend(self) -> None:
        """See ``Link.mend``."""
        for link in self._links:
            link.mend()


class Toxiproxy:
    """The server, as a process that ends with the context. One at a time in a process.

    That is toxiproxy-python's bound: the address of its server is the class's.
    ``seed`` is for toxics that strike some connections only.
    """

    def __init__(self, directory: Path, *, seed: int = 1) -> None:
        self._log = directory / "toxiproxy.log"
        self._seed = seed
        self._process: subprocess.Popen[bytes] | None = None
        self._server = toxiproxy.Toxiproxy()

    def __enter__(self) -> Self:
        """Start it; raises ``NotInstalled``, or ``DidNotStart`` if it ends at once."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        command = [executable(), "-host", "127.0.0.1", "-port", str(port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "-seed", str(self._seed)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "LOG_LEVEL": "warn"},
            )
        self._server.update_api_consumer("127.0.0.1", port)
        until = time.monotonic() + _START_S
        pause = threading.Event()
        while not self._server.running():
            if self._process.poll() is not None or time.monotonic() >= until:
                self._end()
                raise DidNotStart(f"toxiproxy: {self._log.read_text(errors='replace')}")
            pause.wait(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def link(self, name: str, port: int) -> Link:
        """Make a path to this port of 127.0.0.1; whether anybody listens does not matter."""
        return Link(self._server.create(upstream=f"127.0.0.1:{port}", name=name))

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
