"""Other people's software, as it is: in an environment of its own (``make test-libraries``)."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

import rifl
from rifl.testing._faults import Faults, SyncFaultInterceptor

# None of it is installed where the other tests run.
collect_ignore_glob = [] if importlib.util.find_spec("durabletask") else ["test_*.py"]


class Wrapped:
    """Every ``grpc.server`` made meanwhile is wrapped, and loses answers when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.faults = Faults()
        self.dedup = rifl.Deduplicator("memory:", drain_s=0.0)
        bare = grpc.server

        def server(pool: Any, *more: Any, interceptors: Any = (), **named: Any) -> grpc.Server:
            around = (SyncFaultInterceptor(self.faults, lambda: None), self.dedup.interceptor())
            made = bare(pool, *more, interceptors=(*around, *(interceptors or ())), **named)
            self.dedup.add_to_server(made)
            listen = made.add_insecure_port
            # Of this machine only, whatever the library listens on.
            made.add_insecure_port = lambda address: listen(address.replace("[::]", "127.0.0.1"))  # type: ignore[method-assign]
            return made

        monkeypatch.setattr(grpc, "server", server)


@pytest.fixture
def wrapped(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wrapped]:
    """Servers that libraries make, wrapped."""
    made = Wrapped(monkeypatch)
    yield made
    made.dedup.close()
