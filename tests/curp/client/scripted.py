"""A leader whose every answer a test decides, beside real witnesses, on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import unittest.mock
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

import rifl
import rifl.aio
from curp._core.witness_table import WitnessTable, group_of_log
from curp._wire.labels import SYNCED_KEY
from curp.client import GroupStatistics, statistics
from curp.v1 import curp_pb2 as pb
from curp.witness import WitnessHandlers, add_witness_service
from rifl.core._calling.retry import RetryPolicy
from tests.helpers.servers import LoopThread, generic, serve

__all__ = ["CLIENTS", "GROUP", "METHOD", "READ", "Caller", "ScriptedGroup", "calling", "field"]

METHOD, READ = "/test.Group/Put", "/test.Group/Get"
CLIENTS = ("sync", "future", "aio")
_LOG = 0xA
GROUP = group_of_log("g", _LOG)


class _Witness:
    def __init__(self, loop: LoopThread, *, streams: bool) -> None:
        self._loop = loop
        self._streams = streams
        self.table = WitnessTable()
        self.handlers = WitnessHandlers(self.table)
        # Holds records back while it is not set.
        self.open = threading.Event()
        self.open.set()

    def start(self, at: str = "127.0.0.1:0") -> str:
        async def begin() -> tuple[Any, int]:
            server = grpc.aio.server(interceptors=(_Gate(self.open, streams=self._streams),))
            add_witness_service(server, self.handlers)
            port = server.add_insecure_port(at)
            await server.start()
            return server, port

        self._server, port = self._loop.run(begin())
        return f"127.0.0.1:{port}"

    def stop(self) -> None:
        self.open.set()
        self._loop.run(self._server.stop(None))


class _Gate(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """``streams``: False for a witness that is reached by a way without ``Records``."""

    def __init__(self, opened: threading.Event, *, streams: bool) -> None:
        self._opened = opened
        self._streams = streams

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        if details.method.endswith("/Records"):
            if not self._streams:
                return None
            serve_stream = (await continuation(details)).stream_stream

            async def gated(requests: Any, context: Any) -> None:
                await serve_stream(requests, _Gated(context, self._opened))

            return grpc.stream_stream_rpc_method_handler(gated)
        if details.method.endswith("/Record"):
            await _opened(self._opened)
        return await continuation(details)


class _Gated:
    """A stream's context, whose messages come when the gate is open."""

    def __init__(self, context: Any, opened: threading.Event) -> None:
        self._context = context
        self._opened = opened

    async def read(self) -> Any:
        message = await self._context.read()
        await _opened(self._opened)
        return message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


async def _opened(event: threading.Event) -> None:
    while not event.is_set():
        await asyncio.sleep(0.001)


class ScriptedGroup:
    """One deduplicating server that says it leads a group, and two witnesses.

    ``behave``: called with the request before the handler answers, to break things at
    that point. ``marks``: whether answers say that they are in the log. ``serves``: whether it
    says that it takes calls, which ends a client's search. ``streams``: whether
    witnesses take records on streams. ``judge``: called with the context of the client's own
    requests to the group, which it may refuse.
    """

    def __init__(self, witnesses: int = 2, *, streams: bool = True) -> None:
        self.marks = False
        self.serves = False
        self.behave: Callable[[bytes, Any], None] = lambda request, context: None
        self.judge: Callable[[Any], None] = lambda context: None
        self.executed: list[bytes] = []
        self.sync_verdict = pb.SyncReply.SYNCED
        self.syncs: list[pb.SyncRequest] = []
        self.asked = 0
        self.number = 1
        self._loop = LoopThread()
        self.witnesses = [_Witness(self._loop, streams=streams) for _ in range(witnesses)]
        self._dedup = rifl.Deduplicator("memory:")
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> ScriptedGroup:
        self._stack.callback(self._loop.close)
        self.addresses = []
        for witness in self.witnesses:
            self.addresses.append(witness.start())
            self._stack.callback(witness.stop)
        self.begin(1)
        handlers = [
            generic("test.Group", {"Put": self._put, "Get": self._put}),
            generic("curp.v1.Group", {"Configuration": self._configuration, "Sync": self._sync}),
        ]
        self._stack.callback(self._dedup.close)
        # As a replica's: its grants say that the way here is a group's.
        named = functools.partial(rifl.add_lease_service, path="curp")
        with unittest.mock.patch("rifl._server.deduplicator.add_lease_service", named):
            served = self._stack.enter_context(serve("sync", handlers, dedup=self._dedup))
        self.target = served.address
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def begin(self, number: int) -> None:
        """Start the witnesses under a number, and be its leader."""
        self.number = number
        # The callers' keys are found in field 1: every value conflicts with itself.
        keys = [pb.KeyField(path=[1], type=9, default_value=b"")]
        self.methods = [
            pb.MethodConflicts(method=METHOD, keys=keys),
            pb.MethodConflicts(method=READ, keys=keys, read_only=True),
        ]
        request = pb.StartRequest(
            group=GROUP, configuration=number, secrets=self.secrets, methods=self.methods
        )

        async def start() -> None:
            for witness in self.witnesses:
                witness.handlers.start(request.SerializeToString())

        self._loop.run(start())

    @property
    def secrets(self) -> pb.SecretsPut:
        """What callers' tokens are checked with."""
        return pb.SecretsPut(
            secrets=[
                pb.SecretsPut.Secret(key_id=secret.key_id, secret=secret.value)
                for secret in self._dedup._store.leases.secrets()
            ]
        )

    def freeze(self, witness: int) -> None:
        """Have a witness accept nothing more."""
        request = pb.FreezeRequest(group=GROUP, configuration=self.number)

        async def freeze() -> None:
            list(self.witnesses[witness].handlers.freeze(request.SerializeToString()))

        self._loop.run(freeze())

    def _put(self, request: bytes, context: Any) -> bytes:
        self.behave(request, context)
        self.executed.append(request)
        if self.marks:
            context.set_trailing_metadata(((SYNCED_KEY, str(self.number)),))
        return request

    def _configuration(self, request: bytes, context: Any) -> bytes:
        self.judge(context)
        self.asked += 1
        return pb.GroupConfiguration(
            configuration=self.number,
            leader=self.target,
            witnesses=self.addresses,
            methods=self.methods,
            group="g",
            log=_LOG,
            serves=self.serves,
        ).SerializeToString()

    def _sync(self, request: bytes, context: Any) -> bytes:
        self.judge(context)
        self.syncs.append(pb.SyncRequest.FromString(request))
        return pb.SyncReply(verdict=self.sync_verdict).SerializeToString()


class Caller:
    """One kind of client, called the same way."""

    def __init__(self, kind: str, channel: Any) -> None:
        self._kind = kind
        self.channel = channel
        self._stubs = {method: channel.unary_unary(method) for method in (METHOD, READ)}

    async def __call__(self, request: bytes, method: str = METHOD, timeout: float = 20.0) -> bytes:
        stub = self._stubs[method]
        if self._kind == "aio":
            reply: bytes = await stub(request, timeout=timeout)
        elif self._kind == "sync":
            reply = await asyncio.to_thread(stub, request, timeout=timeout)
        else:
            future = stub.future(request, timeout=timeout)
            reply = await asyncio.to_thread(future.result, timeout + 5)
        return reply

    @property
    def counts(self) -> GroupStatistics:
        """How its calls became final."""
        found = statistics(self.channel)
        assert found is not None
        return found

    async def knows(self, number: int) -> None:
        """Wait until it has a configuration."""
        async with asyncio.timeout(20):
            while (
                (path := self.channel._client.path) is None
                or path.knowledge.view is None
                or path.knowledge.view.number < number
            ):
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def calling(kind: str, group: ScriptedGroup, **settings: Any) -> AsyncIterator[Caller]:
    """Open a client that has made its first call and knows the group.

    It records whatever it measures, unless ``settings`` say otherwise. ``targets``: the
    ways to the group, one and the same server.
    """
    settings.setdefault("group_path", "fast")
    settings.setdefault("retry", RetryPolicy(initial_backoff_s=0.01, max_backoff_s=0.05))
    targets = settings.pop("targets", group.target)
    if kind == "aio":
        channel: Any = rifl.aio.connect(targets, **settings)
    else:
        channel = rifl.connect(targets, **settings)
    caller = Caller(kind, channel)
    try:
        assert await caller(field(b"first")) == field(b"first")
        await caller.knows(group.number)
        yield caller
    finally:
        if kind == "aio":
            await channel.close()
        else:
            await asyncio.to_thread(channel.close)


def field(value: bytes) -> bytes:
    """A request with one text field."""
    return b"\x0a" + bytes((len(value),)) + value
