"""A servicer behind rifl answers as it does bare (DESIGN §1, §4), on every kind of server."""

from __future__ import annotations

import contextlib
import itertools

import grpc
import grpc.aio
import pytest
from google.protobuf.wrappers_pb2 import StringValue

import rifl
from rifl._server.context import AioHandlerContext, HandlerContext
from tests.helpers.raw import RawClient
from tests.helpers.servers import KINDS, generic, serve
from tests.helpers.waiting import deadlines
from tests.server.behaviours import COROUTINES, FUNCTIONS, SERVICE

_REQUEST = StringValue(value="hello").SerializeToString()
_ASKED = (("asked", "yes"),)
_SEQS = itertools.count(1)


class Sides:
    """One service, bare and wrapped, and a client for each."""

    def __init__(self, bare, wrapped):
        self.bare = bare
        self.wrapped = wrapped

    def both(self, method, request=_REQUEST, **more):
        """Call both; the wrapped one with an identity."""
        path, seq = f"/{SERVICE}/{method}", next(_SEQS)
        bare = self.bare.call(path, request, bare=True, metadata=_ASKED, **more)
        wrapped = self.wrapped.call(path, request, seq, metadata=_ASKED, **more)
        again = self.wrapped.call(path, request, seq, attempt=2, metadata=_ASKED, **more)
        self.wrapped.call(f"/{SERVICE}/Normal", _REQUEST, next(_SEQS), first=seq + 1)
        return bare, wrapped, again


@pytest.fixture(scope="module")
def sides_of():
    """The two sides of each kind of server, made when first asked for."""
    with contextlib.ExitStack() as stack:
        made = {}

        def of(kind):
            if kind not in made:
                methods = COROUTINES if kind == "aio" else FUNCTIONS
                handlers = [generic(SERVICE, methods, StringValue)]
                bare = stack.enter_context(serve(kind, handlers))
                dedup = stack.enter_context(rifl.Deduplicator("memory:"))
                wrapped = stack.enter_context(serve(kind, handlers, dedup=dedup))
                made[kind] = Sides(
                    stack.enter_context(RawClient(bare.address, grant=False)),
                    stack.enter_context(RawClient(wrapped.address)),
                )
            return made[kind]

        yield of


def _without_outcome(metadata):
    return [entry for entry in metadata if entry[0] != "rifl-outcome"]


# Where gRPC's own aio server never answers (abort with OK, an error without text),
# or its context for plain functions lacks what the sync one has.
_BETTER_THAN_BARE = {
    ("aio", "AbortOk"),
    ("aio", "RaisesUnprintable"),
    ("threads", "AbortOk"),
    ("threads", "RaisesUnprintable"),
    ("threads", "AbortRich"),
    ("threads", "BytesDetails"),
    ("threads", "ReadsItself"),
}
_CASES = [
    (kind, name)
    for kind in KINDS
    for name in (COROUTINES if kind == "aio" else FUNCTIONS)
    if (kind, name) not in _BETTER_THAN_BARE
]


@pytest.mark.parametrize(("kind", "method"), _CASES)
def test_the_answer_is_the_same_bare_and_wrapped(sides_of, kind, method):
    """Code, details, metadata and response are gRPC's own; only errors say an outcome (§3)."""
    bare, wrapped, again = sides_of(kind).both(method)
    for reply in (wrapped, again):
        assert (reply.code, reply.details) == (bare.code, bare.details)
        assert reply.response == bare.response
        assert reply.initial == bare.initial
        assert _without_outcome(reply.trailing) == list(bare.trailing)
    assert wrapped.outcome == ("" if wrapped.ok else "executed")
    assert again.outcome == "replayed"


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_without_text_is_recorded(sides_of, kind):
    """An exception whose text cannot be had ends its call all the same (§4)."""
    client, seq = sides_of(kind).wrapped, next(_SEQS)
    path = f"/{SERVICE}/RaisesUnprintable"
    # gRPC's aio server never answers these; the record is there nevertheless.
    for attempt, timeout_s in enumerate(deadlines(), 1):
        again = client.call(path, _REQUEST, seq, attempt=attempt, timeout=timeout_s)
        if again.outcome == "replayed":
            break
    assert again.code is grpc.StatusCode.UNKNOWN
    assert again.details == "Calling application raised unprintable Exception!"


@pytest.mark.parametrize("kind", KINDS)
def test_an_abort_with_ok_is_an_error(sides_of, kind):
    """Aborting with OK is UNKNOWN, as on gRPC's sync server (§4)."""
    reply = sides_of(kind).wrapped.call(f"/{SERVICE}/AbortOk", _REQUEST, next(_SEQS))
    assert (reply.code, reply.details) == (grpc.StatusCode.UNKNOWN, "")


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_deserialised_is_refused_alike(sides_of, kind):
    """A request the service cannot read gets gRPC's own status behind rifl, too (§4)."""
    bare, wrapped, again = sides_of(kind).both("Normal", b"\xff\xff\xff")
    assert (wrapped.code, wrapped.details) == (bare.code, bare.details)
    assert (again.code, again.details) == (bare.code, bare.details)


@pytest.mark.parametrize("kind", KINDS)
def test_calls_without_a_header_pass_through(sides_of, kind):
    """A call without an identity is the service's own business: untouched (§3)."""
    sides = sides_of(kind)
    for method in ("Normal", "Abort", "Raises", "Trailing"):
        path = f"/{SERVICE}/{method}"
        one, other = (
            side.call(path, _REQUEST, bare=True, metadata=_ASKED)
            for side in (sides.bare, sides.wrapped)
        )
        assert one == other


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_method_is_unimplemented_as_ever(sides_of, kind):
    """A method nobody serves gets gRPC's UNIMPLEMENTED, identity or not (§1)."""
    bare, wrapped, _ = sides_of(kind).both("NoSuchMethod")
    assert (wrapped.code, wrapped.details) == (bare.code, bare.details)


@pytest.mark.parametrize("kind", KINDS)
def test_a_required_method_refuses_calls_without_identity(kind):
    """A ``required`` method takes calls with an identity only: BAD_HEADER (§3)."""
    ran = []
    if kind == "aio":

        async def handler(request, context):
            ran.append(request)
            return request
    else:

        def handler(request, context):
            ran.append(request)
            return request

    policy = rifl.MethodPolicy(required=True)
    with (
        rifl.Deduplicator("memory:", methods={"/s.S/M": policy}) as dedup,
        serve(kind, [generic("s.S", {"M": handler, "Free": handler})], dedup=dedup) as served,
        RawClient(served.address) as client,
    ):
        refused = client.call("/s.S/M", b"x", bare=True)
        assert refused.refusal == ("INVALID_ARGUMENT", "BAD_HEADER", "not-executed")
        assert ran == []
        assert client.call("/s.S/Free", b"x", bare=True).ok
        assert client.call("/s.S/M", b"x", 1).ok


def _public(*classes):
    return sorted({name for cls in classes for name in dir(cls) if not name.startswith("_")})


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (HandlerContext, grpc.ServicerContext),
        (AioHandlerContext, grpc.aio.ServicerContext),
    ],
)
def test_our_contexts_have_every_method_of_grpcs(ours, theirs):
    """Whatever gRPC's context can do, the handler's can: none is inherited bare (§4)."""
    missing = [
        name
        for name in _public(theirs)
        if not any(
            name in cls.__dict__ for cls in ours.__mro__ if cls.__module__.startswith("rifl")
        )
    ]
    assert missing == []


@pytest.mark.parametrize("kind", KINDS)
def test_our_contexts_have_every_method_of_the_real_ones(kind):
    """What gRPC's own context objects offer in public, the handler's offers too (§4)."""
    seen = {}
    if kind == "aio":

        async def handler(request, context):
            seen[request] = context
            return b""
    else:

        def handler(request, context):
            seen[request] = context
            return b""

    with (
        rifl.Deduplicator("memory:") as dedup,
        serve(kind, [generic("s.S", {"M": handler})], dedup=dedup) as served,
        RawClient(served.address) as client,
    ):
        assert client.call("/s.S/M", b"bare", bare=True).ok
        assert client.call("/s.S/M", b"wrapped", 1).ok
    assert [name for name in _public(seen[b"bare"]) if not hasattr(seen[b"wrapped"], name)] == []
