"""A connection lost at the handler's commit, through a real Toxiproxy: what callers are told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

import rifl
import rifl.aio
from chaos.run.toxiproxy import Link, Toxiproxy
from tests.helpers.servers import LoopThread

__all__ = ["METHOD", "Losing", "agrees", "served", "toxic"]

METHOD = "/s/Atomic"
# The reply of the commit, or the commit itself, is not let through.
_STREAMS = {"answer lost": "downstream", "commit lost": "upstream"}


class Losing:
    """Cuts the handler's connection at its next commit; ``ready`` before each connects.

    ``before``: how many bytes of answers come before the commit's own.
    """

    def __init__(self, link: Link, before: int) -> None:
        self._link = link
        self._before = before
        self._wanted = ""
        self._toxic = ""
        self.port = link.port
        self.struck = 0

    def at_next_commit(self, what: str) -> None:
        """``what``: ``answer lost`` or ``commit lost``."""
        self._wanted = what

    def ready(self) -> None:
        """Let connections through again."""
        if self._toxic:
            self._link.cure(self._toxic)
            self._toxic = ""

    def strike(self) -> None:
        """Now: what is said next on this stream closes the connection."""
        if self._wanted:
            # One byte of it passes: with none, the connection is closed before it is said.
            before = self._before if self._wanted == "answer lost" else 0
            attributes = {"bytes": before + 1}
            self._toxic = self._link.poison("limit_data", _STREAMS[self._wanted], attributes)
            self._wanted = ""
            self.struck += 1


@contextlib.contextmanager
def toxic(directory: Path, port: int, *, before: int = 0) -> Iterator[Losing]:
    """Make a path to this port on which commits can be lost."""
    with Toxiproxy(directory) as proxy:
        yield Losing(proxy.link("database", port), before)


@contextlib.contextmanager
def served(url: str, handler: Callable[..., Any], *, aio: bool) -> Iterator[str]:
    """Serve one atomic method; yields where."""
    handlers = {"Atomic": grpc.unary_unary_rpc_method_handler(handler)}
    generic = grpc.method_handlers_generic_handler("s", handlers)
    options = {"methods": {METHOD: "atomic"}, "drain_s": 0.0}
    if not aio:
        with rifl.Deduplicator(url, **options) as dedup:
            server = grpc.server(ThreadPoolExecutor(4), interceptors=[dedup.interceptor()])
            server.add_generic_rpc_handlers((generic,))
            dedup.add_to_server(server)
            port = server.add_insecure_port("127.0.0.1:0")
            server.start()
            try:
                yield f"127.0.0.1:{port}"
            finally:
                server.stop(None).wait()
        return

    async def start() -> tuple[Any, Any, int]:
        dedup = rifl.Deduplicator(url, **options)
        server = grpc.aio.server(interceptors=[dedup.aio_interceptor()])
        server.add_generic_rpc_handlers((generic,))
        dedup.add_to_server(server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return dedup, server, port

    loop = LoopThread()
    dedup, server, port = loop.run(start())
    try:
        yield f"127.0.0.1:{port}"
    finally:
        loop.run(server.stop(None))
        loop.run(dedup.aclose())
        loop.close()


def agrees(target: str, losing: Losing, effects: Callable[[], int], what: str) -> None:
    """Lose one commit: what is told of it is what became of it, and the next call is well."""
    once = rifl.RetryPolicy(max_attempts=1)
    with rifl.connect(target, retry=once) as channel:
        losing.at_next_commit(what)
        try:
            reply = channel.unary_unary(METHOD)(b"one", timeout=20)
        except grpc.RpcError as error:
            outcome, told = error.outcome, str(error)  # type: ignore[attr-defined]
        else:
            outcome, told = rifl.Outcome.EXECUTED, reply.decode()
    # The store is asked, and knows of the record; who saw no roll-back knows no more.
    if what == "answer lost":
        possible, happened = {rifl.Outcome.EXECUTED}, 1
    else:
        possible, happened = {rifl.Outcome.NOT_EXECUTED, rifl.Outcome.UNKNOWN}, 0
    if losing.struck != 1 or outcome not in possible or effects() != happened:
        raise AssertionError(f"{outcome}, {effects()} effects, struck {losing.struck}: {told}")
    with rifl.connect(target) as channel:
        if channel.unary_unary(METHOD)(b"two", timeout=20) != b"done":
            raise AssertionError("another answer")
    if effects() != happened + 1:
        raise AssertionError(f"{effects()} effects")
