"""Beside code we did not write: grpc-interceptor's stack, health, reflection."""

from __future__ import annotations

import contextlib
import inspect
import sqlite3

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_interceptor import AsyncServerInterceptor, ServerInterceptor
from grpc_interceptor.exception_to_status import (
    AsyncExceptionToStatusInterceptor,
    ExceptionToStatusInterceptor,
)
from grpc_interceptor.exceptions import NotFound
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

import rifl
from tests.helpers.raw import RawClient
from tests.helpers.servers import KINDS, generic, serve

_REQUEST = StringValue(value="hello").SerializeToString()


class Seen(ServerInterceptor):
    """A grpc-interceptor interceptor that notes what it saw, and changes the answer."""

    def __init__(self):
        self.seen = []

    def intercept(self, method, request, context, method_name):
        """Note and go on."""
        response = method(request, context)
        self.seen.append((method_name, type(request).__name__, type(response).__name__))
        return response


class AsyncSeen(AsyncServerInterceptor):
    """The same for aio."""

    def __init__(self):
        self.seen = []

    async def intercept(self, method, request, context, method_name):
        """Note and go on."""
        response = method(request, context)
        if inspect.isawaitable(response):
            response = await response
        self.seen.append((method_name, type(request).__name__, type(response).__name__))
        return response


def _handlers(kind, runs):
    if kind == "aio":

        async def ok(request, context):
            runs.append("ok")
            return StringValue(value=request.value + "!")

        async def missing(request, context):
            runs.append("missing")
            raise NotFound("no such thing")
    else:

        def ok(request, context):
            runs.append("ok")
            return StringValue(value=request.value + "!")

        def missing(request, context):
            runs.append("missing")
            raise NotFound("no such thing")

    return [generic("test.Stack", {"Ok": ok, "Missing": missing}, StringValue)]


@pytest.mark.parametrize("order", ["outside", "inside"])
@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_grpc_interceptors_own_compose_in_either_order(kind, order):
    """grpc-interceptor's interceptors work outside and inside ours; replays run nothing (§4)."""
    runs = []
    seen = AsyncSeen() if kind == "aio" else Seen()
    to_status = (
        AsyncExceptionToStatusInterceptor() if kind == "aio" else ExceptionToStatusInterceptor()
    )
    with rifl.Deduplicator("memory:") as dedup:
        chain = [seen, to_status, dedup] if order == "outside" else [dedup, seen, to_status]
        with (
            serve(kind, _handlers(kind, runs), interceptors=chain, dedup=dedup) as served,
            RawClient(served.address) as client,
        ):
            for attempt in (1, 2, 3):
                reply = client.call("/test.Stack/Ok", _REQUEST, 1, attempt=attempt)
                assert StringValue.FromString(reply.response).value == "hello!"
                assert reply.outcome == ("" if attempt == 1 else "replayed")
                reply = client.call("/test.Stack/Missing", _REQUEST, 2, attempt=attempt)
                # What makes a status of an exception goes inside: an exception gets no
                # further than what was recorded of it, which every arrival is told.
                if order == "inside":
                    assert reply.code is grpc.StatusCode.NOT_FOUND
                    assert reply.details == "no such thing"
                else:
                    assert reply.code is grpc.StatusCode.UNKNOWN
                    assert "no such thing" in reply.details
            assert runs == ["ok", "missing"]
            assert client.call("/test.Stack/Ok", _REQUEST, bare=True).ok
    methods = [entry[0] for entry in seen.seen]
    # Outside it sees every arrival, inside only those that run.
    assert methods.count("/test.Stack/Ok") == (4 if order == "outside" else 2)


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_health_and_reflection_beside_rifl(kind):
    """The health and reflection servicers of the grpcio packages work as ever."""
    names = ["test.Stack", health.SERVICE_NAME, reflection.SERVICE_NAME]

    def add(server):
        servicer = health.aio.HealthServicer() if kind == "aio" else health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        if kind == "aio":
            reflection_pb2_grpc.add_ServerReflectionServicer_to_server(
                reflection.aio.ReflectionServicer(names), server
            )
        else:
            reflection.enable_server_reflection(names, server)

    with (
        rifl.Deduplicator("memory:") as dedup,
        serve(kind, _handlers(kind, []), dedup=dedup, add=add) as served,
        RawClient(served.address) as client,
    ):
        check = "/grpc.health.v1.Health/Check"
        request = health_pb2.HealthCheckRequest().SerializeToString()
        for more in ({"bare": True}, {"seq": 1}, {"seq": 1, "attempt": 2}):
            reply = client.call(check, request, **more)
            answer = health_pb2.HealthCheckResponse.FromString(reply.response)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            assert reply.outcome == "", "health is never deduplicated"
        stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        for metadata in ((), (("rifl-bin", client.header(2)),)):
            answers = list(stub.ServerReflectionInfo(iter([ask]), metadata=metadata, timeout=10))
            listed = {service.name for service in answers[0].list_services_response.service}
            assert set(names) <= listed
        assert client.call("/test.Stack/Ok", _REQUEST, 3).ok


class _Tagged:
    """A context of an interceptor's own, with something added for the handler."""

    def __init__(self, inner):
        self._inner = inner
        self.user = "alice"

    def __getattr__(self, name):
        return getattr(self._inner, name)


class Tagging(grpc.ServerInterceptor):
    """Gives handlers a context with an attribute more, as tracers and authorisers do."""

    def intercept_service(self, continuation, details):
        """Wrap the context."""
        handler = continuation(details)
        if handler is None or not handler.unary_unary:
            return handler
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: handler.unary_unary(request, _Tagged(context)),
            handler.request_deserializer,
            handler.response_serializer,
        )


@pytest.mark.parametrize("order", ["outside", "inside"])
def test_what_another_interceptor_adds_to_the_context_arrives(order):
    """Attributes an interceptor put on the context reach the handler through ours (§4)."""

    def whoami(request, context):
        return context.user.encode()

    with rifl.Deduplicator("memory:") as dedup:
        chain = [Tagging(), dedup] if order == "outside" else [dedup, Tagging()]
        with (
            serve(
                "sync", [generic("s.S", {"Who": whoami})], interceptors=chain, dedup=dedup
            ) as served,
            RawClient(served.address) as client,
        ):
            assert client.call("/s.S/Who", b"", bare=True).response == b"alice"
            assert client.call("/s.S/Who", b"", 1).response == b"alice"


def _transfer(database, runs, block):
    def transfer(request, context):
        runs.append(request)
        connection = sqlite3.connect(database, timeout=10)
        reply = b"moved " + request
        try:
            with rifl.transaction(context, connection) if block else connection:
                connection.execute("CREATE TABLE IF NOT EXISTS moved (what)")
                connection.execute("INSERT INTO moved VALUES (?)", (request,))
                rifl.record(context, reply, connection)
        finally:
            connection.close()
        return reply

    return transfer


@pytest.mark.parametrize(
    ("kind", "wrapped_again"), [*((kind, False) for kind in KINDS), ("sync", True)]
)
@pytest.mark.parametrize("block", [False, True], ids=["own commit", "rifl.transaction"])
def test_a_record_in_a_handlers_transaction(tmp_path, kind, wrapped_again, block):
    """``rifl.record`` and its block find their call, also by another's context or none (§6).

    Calls with and without identity alternate on one pool thread: nothing of one may
    be left for the next.
    """
    runs = []
    database = tmp_path / "s.db"
    transfer = _transfer(database, runs, block)
    if kind == "aio":

        async def handler(request, context):
            return transfer(request, context)
    else:
        handler = transfer
    with rifl.Deduplicator(f"sqlite:///{database}", methods={"/s.S/Move": "atomic"}) as dedup:
        chain = [dedup, Tagging()] if wrapped_again else [dedup]
        with (
            serve(
                kind,
                [generic("s.S", {"Move": handler})],
                interceptors=chain,
                dedup=dedup,
                threads=1,
            ) as served,
            RawClient(served.address) as client,
        ):
            for seq in range(1, 4):
                payload = b"%d" % seq
                assert client.call("/s.S/Move", payload, seq).response == b"moved " + payload
                again = client.call("/s.S/Move", payload, seq, attempt=2)
                assert (again.response, again.outcome) == (b"moved " + payload, "replayed")
                bare = client.call("/s.S/Move", b"bare", bare=True)
                assert (bare.code, bare.response) == (grpc.StatusCode.OK, b"moved bare")
    assert runs == [b"1", b"bare", b"2", b"bare", b"3", b"bare"]
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT count(*) FROM moved").fetchone() == (6,)


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_an_atomic_handler_that_does_not_record_is_told(tmp_path, kind):
    """An atomic handler without a committed record is NOT_RECORDED: unknown, for good (§4)."""
    runs = []
    if kind == "aio":

        async def forgets(request, context):
            runs.append(request)
            return b"x"
    else:

        def forgets(request, context):
            runs.append(request)
            return b"x"

    with (
        rifl.Deduplicator(f"sqlite:///{tmp_path}/s.db", default="atomic") as dedup,
        serve(kind, [generic("s.S", {"M": forgets})], dedup=dedup) as served,
        RawClient(served.address) as client,
    ):
        for attempt in (1, 2):
            reply = client.call("/s.S/M", b"x", 1, attempt=attempt)
            assert reply.refusal == ("INTERNAL", "NOT_RECORDED", "unknown")
    assert runs == [b"x"]
