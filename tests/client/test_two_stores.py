"""Two servers with stores of their own behind one client: an identity is one store's (§3)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import structlog.testing

import rifl
import rifl.aio
from rifl import BatchItem, Outcome
from rifl._client.errors import CallError
from rifl._grpc.status import read_error_info
from rifl._wire.packed_header import first_attempt, header_prefix
from rifl.core._shared.observer import ServedCall
from rifl.v1 import rifl_pb2
from tests.calls.services import Kinds
from tests.helpers.raw import RawClient, header
from tests.helpers.servers import generic, serve
from tests.helpers.waiting import DEADLINE_S, deadlines, until

METHOD = "/two.Stores/Do"
STORES = ("memory", "sqlite")
_ENDED = frozenset({"STORE_MISMATCH", "LEASE_EXPIRED"})


class Server:
    """One server with a store of its own; what ran is in ``effects``.

    ``lost``: requests whose answers do not arrive, as when the connection breaks;
    ``held``: requests whose handlers wait for ``gate``.
    """

    def __init__(self, url: str, kind: str) -> None:
        self.effects: list[bytes] = []
        self.lost: set[bytes] = set()
        self.held: set[bytes] = set()
        self.gate = threading.Event()
        self.refused = threading.Event()
        self._stack = contextlib.ExitStack()
        self.dedup = rifl.Deduplicator(
            url, methods={"*": "plain"}, observer=_Refusals(self.refused)
        )
        self._stack.callback(self.dedup.close)
        handlers = {"Do": self._aio_do if kind == "aio" else self._do}
        interceptors = [_AioLosing(self) if kind == "aio" else _Losing(self), self.dedup]
        served = serve(
            kind, [generic("two.Stores", handlers)], interceptors=interceptors, dedup=self.dedup
        )
        self.address = self._stack.enter_context(served).address

    def _do(self, request: bytes, context: Any) -> bytes:
        self.effects.append(request)
        if request in self.held:
            assert self.gate.wait(DEADLINE_S)
        return b"did " + request

    async def _aio_do(self, request: bytes, context: Any) -> bytes:
        return await asyncio.to_thread(self._do, request, context)

    def close(self) -> None:
        self.gate.set()
        self._stack.close()


class _Refusals(rifl.Observer):
    def __init__(self, refused: threading.Event) -> None:
        self._refused = refused

    def call_served(self, call: ServedCall) -> None:
        if call.reason in _ENDED:
            self._refused.set()


class _Losing(grpc.ServerInterceptor):
    """Has the answers of some requests lost on their way."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = continuation(details)
        if details.method != METHOD:
            return handler

        def lossy(request: bytes, context: Any) -> Any:
            answer = handler.unary_unary(request, context)
            if request in self._server.lost:
                context.set_trailing_metadata(())
                context.abort(grpc.StatusCode.UNAVAILABLE, "connection lost")
            return answer

        return grpc.unary_unary_rpc_method_handler(
            lossy, handler.request_deserializer, handler.response_serializer
        )


class _AioLosing(grpc.aio.ServerInterceptor):
    def __init__(self, server: Server) -> None:
        self._server = server

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = await continuation(details)
        if details.method != METHOD:
            return handler

        async def lossy(request: bytes, context: Any) -> Any:
            answer = await handler.unary_unary(request, context)
            if request in self._server.lost:
                context.set_trailing_metadata(())
                await context.abort(grpc.StatusCode.UNAVAILABLE, "connection lost")
            return answer

        return grpc.unary_unary_rpc_method_handler(lossy)


class Front:
    """One address in front of several servers, as a TCP load balancer is.

    A connection goes to the server that ``to`` names when it is made.
    """

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.to = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def turn(self, to: int) -> None:
        """Send what connects from now on there, and break what there is off."""
        self.to = to
        pairs, self._pairs = self._pairs, []
        for each in pairs:
            _shut(each)

    def close(self) -> None:
        _shut(self._listener)
        self._thread.join(DEADLINE_S)
        self.turn(self.to)

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            host, _, port = self.addresses[self.to].rpartition(":")
            server = socket.create_connection((host, int(port)))
            self._pairs += [caller, server]
            for source, target in ((caller, server), (server, caller)):
                threading.Thread(target=_pump, args=(source, target), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    _shut(source)
    _shut(target)


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


Make = Callable[..., tuple[Server, Server]]


@pytest.fixture(params=STORES)
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Start two servers, each over a store of its own."""
    with contextlib.ExitStack() as stack:

        def make(kind: str = "sync") -> tuple[Server, Server]:
            made = []
            for name in ("a", "b"):
                memory = request.param == "memory"
                server = Server("memory:" if memory else f"sqlite:///{tmp_path / name}.db", kind)
                stack.callback(server.close)
                made.append(server)
            return made[0], made[1]

        yield make


def _call(
    kind: str, target: Any, requests: list[bytes], between: Any = None, **options: Any
) -> Any:
    """Make calls one after the other through one channel; the last one's answer or error."""
    if kind == "sync":
        with rifl.connect(target, **options) as channel:
            stub = channel.unary_unary(METHOD)
            for at, request in enumerate(requests):
                if at and between is not None:
                    between()
                try:
                    answer: Any = stub(request, timeout=DEADLINE_S)
                except CallError as error:
                    answer = error
            return answer

    async def main() -> Any:
        async with rifl.aio.connect(target, **options) as channel:
            stub = channel.unary_unary(METHOD)
            for at, request in enumerate(requests):
                if at and between is not None:
                    between()
                try:
                    answer: Any = await stub(request, timeout=DEADLINE_S)
                except CallError as error:
                    answer = error
            return answer

    return asyncio.run(main())


def _is_unknown(error: Any) -> bool:
    return (
        isinstance(error, CallError) and error.reason in _ENDED and error.outcome is Outcome.UNKNOWN
    )


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_a_failover_to_another_store_is_no_new_call(servers: Make, kind: str) -> None:
    """What ran at one store is never run at another: the outcome is unknown (DESIGN §3)."""
    first, second = servers(kind)
    first.lost.add(b"pay")
    error = _call(kind, f"{first.address},{second.address}", [b"pay"])
    assert _is_unknown(error)
    assert first.effects == [b"pay"]
    assert second.effects == []


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_a_hedge_to_another_store_is_no_new_call(servers: Make, kind: str) -> None:
    """The hedge is refused where the call is not known, and the first answer counts (§3)."""
    first, second = servers(kind)
    first.held.add(b"slow")

    def let_go() -> None:
        assert second.refused.wait(DEADLINE_S)
        first.gate.set()

    waiting = threading.Thread(target=let_go)
    waiting.start()
    answer = _call(kind, f"{first.address},{second.address}", [b"slow"], hedge_after=0.02)
    waiting.join(DEADLINE_S)
    assert answer == b"did slow"
    assert (first.effects, second.effects) == ([b"slow"], [])


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_a_first_attempt_that_meets_another_store_is_not_sent_anew(
    servers: Make, kind: str
) -> None:
    """A proxy may have sent the first copy to the store that granted the id (DESIGN §3)."""
    first, second = servers(kind)
    front = Front(first.address, second.address)
    try:
        error = _call(kind, front.address, [b"x", b"y"], lambda: front.turn(1))
        assert _is_unknown(error)
        assert "behind one address" in error.details()
        assert (first.effects, second.effects) == ([b"x"], [])
    finally:
        front.close()


def test_a_channel_goes_on_with_the_store_that_answers(servers: Make) -> None:
    """Calls that were never sent take an id of the new store; the application can see it (§3)."""
    first, second = servers()
    front = Front(first.address, second.address)
    try:
        with (
            structlog.testing.capture_logs() as logs,
            rifl.connect(front.address) as channel,
        ):
            stub = channel.unary_unary(METHOD)
            assert stub(b"x", timeout=DEADLINE_S) == b"did x"
            front.turn(1)
            with pytest.raises(CallError):
                stub(b"y", timeout=DEADLINE_S)
            assert stub(b"z", timeout=DEADLINE_S) == b"did z"
        assert (first.effects, second.effects) == ([b"x"], [b"z"])
        assert [log["log_level"] for log in logs if log["event"] == "another_store"] == ["warning"]
    finally:
        front.close()


def test_the_keys_of_a_session_stay_with_its_store(servers: Make) -> None:
    """A session of the same name at another store is another: its keys would run again (§3)."""
    first, second = servers()
    front = Front(first.address, second.address)
    try:
        with rifl.connect(front.address, session="job") as channel:
            stub = channel.unary_unary(METHOD)

            def pay(request: bytes) -> Any:
                return stub(request, timeout=DEADLINE_S, metadata=[rifl.key(request)])

            channel.session.open()
            first.lost.add(b"pay")
            for timeout_s in deadlines():
                with pytest.raises(CallError):
                    stub(b"pay", timeout=timeout_s, metadata=[rifl.key(b"pay")])
                if first.effects:
                    break
            front.turn(1)
            for _ in range(3):
                with pytest.raises(CallError) as caught:
                    pay(b"pay")
                assert caught.value.reason in _ENDED
            assert second.effects == []
            front.turn(0)
            first.lost.clear()
            until(lambda: _answer(pay, b"pay") == b"did pay", "its own store answers again")
        assert (first.effects, second.effects) == ([b"pay"], [])
    finally:
        front.close()


def _answer(pay: Callable[[bytes], Any], request: bytes) -> Any:
    try:
        return pay(request)
    except CallError as error:
        return error


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_a_batch_of_another_store_is_refused_whole(servers: Make, kind: str) -> None:
    """None of its items runs, and each is unknown (DESIGN §3, §4)."""
    first, second = servers(kind)
    front = Front(first.address, second.address)
    items = [BatchItem(b"a"), BatchItem(b"b")]
    try:
        with rifl.connect(front.address) as channel:
            assert channel.unary_unary(METHOD)(b"x", timeout=DEADLINE_S) == b"did x"
            front.turn(1)
            results = channel.batch(METHOD, items, timeout=DEADLINE_S)
            assert {(result.reason in _ENDED, result.outcome) for result in results} == {
                (True, Outcome.UNKNOWN)
            }
        assert (first.effects, second.effects) == ([b"x"], [])
    finally:
        front.close()


def test_what_is_asked_about_an_id_of_another_store(tmp_path: Path) -> None:
    """Calls, renewals and resolutions that name a store are compared before the token (§3)."""
    servers = [Server(f"sqlite:///{tmp_path / name}.db", "sync") for name in ("a", "b")]
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.callback(server.close)
        first, second = servers
        one = stack.enter_context(RawClient(first.address))
        two = stack.enter_context(RawClient(second.address))
        assert 0 not in (one.store, two.store)
        assert one.store != two.store
        raw = header(one.client_id, one.token, 1, store=one.store)
        assert one.call(METHOD, b"x", raw=raw).ok
        refused = ("FAILED_PRECONDITION", "STORE_MISMATCH", "unknown")
        reply = two.call(METHOD, b"x", raw=raw)
        assert reply.refusal == refused
        assert reply.info["store"] == f"{two.store:016x}"
        # Whoever says nothing of a store is told what its token is worth.
        assert two.call(METHOD, b"x", raw=header(one.client_id, one.token, 1)).reason == "NOT_YOURS"
        resolution = rifl_pb2.ResolveRequest(
            client_id=one.client_id, token=one.token, seq=1, store=one.store
        )
        asked = two.call("/rifl.v1.Outcomes/Resolve", resolution.SerializeToString(), bare=True)
        assert asked.refusal == refused
        assert two.renew(one.client_id, one.token, one.store).reason == "STORE_MISMATCH"
        assert one.renew(one.client_id, one.token, one.store).ok
        assert second.effects == []


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_streams_of_another_store_are_refused(tmp_path: Path, kind: str) -> None:
    """Declared streams compare the store as unary calls do, before a handler runs (§3, §4)."""
    kinds, other = Kinds(), Kinds()
    declared = {f"/t.Kinds/{name}": "plain" for name in ("Collect", "Count")}
    with contextlib.ExitStack() as stack:
        addresses = []
        for name, service in (("a", kinds), ("b", other)):
            dedup = rifl.Deduplicator(f"sqlite:///{tmp_path / name}.db", methods=declared)
            stack.callback(dedup.close)
            handlers: list[Any] = []
            service.adder(kind)(SimpleNamespace(add_generic_rpc_handlers=handlers.extend))
            served = serve(kind, handlers, dedup=dedup)
            addresses.append(stack.enter_context(served).address)
        mine = stack.enter_context(RawClient(addresses[0]))
        channel = stack.enter_context(grpc.insecure_channel(addresses[1]))
        value = header(mine.client_id, mine.token, 1, store=mine.store)
        metadata = (("rifl-bin", value),)
        collect = channel.stream_unary("/t.Kinds/Collect")
        count = channel.unary_stream("/t.Kinds/Count")
        for call in (
            collect.future(iter([b"x"]), metadata=metadata, timeout=DEADLINE_S),
            count(b"2", metadata=metadata, timeout=DEADLINE_S),
        ):
            with pytest.raises(grpc.RpcError):
                call.result() if hasattr(call, "result") else list(call)
            info = read_error_info(call.trailing_metadata())
            assert info is not None
            assert info.reason == "STORE_MISMATCH"
        assert other.effects == []


@pytest.mark.parametrize("store", STORES)
def test_a_known_client_is_believed_no_other_store(store: str, tmp_path: Path) -> None:
    """Each header's store is compared, also where its token is known already (DESIGN §3)."""
    url = f"sqlite:///{tmp_path / 's.db'}" if store == "sqlite" else "memory:"
    with (
        contextlib.closing(Server(url, "sync")) as server,
        RawClient(server.address) as client,
    ):
        # As the SDK writes it: then the server knows the client from now on.
        prefix = header_prefix(client.client_id, client.token, 0, client.store)
        assert client.call(METHOD, b"1", raw=prefix + first_attempt(1, 1, 1, 1)).ok
        for seq, other in enumerate((client.store + 1, client.store ^ 1 << 40, 1), 2):
            refused = client.call(METHOD, b"other", seq, store=other)
            assert refused.refusal == ("FAILED_PRECONDITION", "STORE_MISMATCH", "unknown")
        # Nobody said of which store, and the right one again.
        assert client.call(METHOD, b"2", 5).ok
        assert client.call(METHOD, b"3", 6, store=client.store).ok
    assert server.effects == [b"1", b"2", b"3"]
