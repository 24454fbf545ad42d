"""A refusal names the identity that it speaks of (DESIGN §3)."""

from __future__ import annotations

import contextlib

import grpc
import pytest

import rifl
from rifl._grpc.status import read_error_info
from rifl._wire.envelope import REPLY_MARK, encode_batch, parse_reply
from rifl.core._shared.errors import RiflError
from rifl.core._shared.stream_end import end_marker
from tests.helpers.raw import RawClient, read
from tests.helpers.servers import KINDS, serve

_UNARY, _COLLECT, _TELL = (f"/test.Bound/{name}" for name in ("Unary", "Collect", "Tell"))
_ECHO = "/test.Bound/Echo"


def _handlers(kind):
    async def unary_aio(request, context):
        return b"x" * 3000

    async def echo_aio(request, context):
        return request

    async def collect_aio(requests, context):
        return b"x" * 3000

    async def tell_aio(request, context):
        yield b"x" * 3000

    def unary(request, context):
        return b"x" * 3000

    def echo(request, context):
        return request

    def collect(requests, context):
        return b"x" * 3000

    def tell(request, context):
        yield b"x" * 3000

    aio = kind == "aio"
    return grpc.method_handlers_generic_handler(
        "test.Bound",
        {
            "Unary": grpc.unary_unary_rpc_method_handler(unary_aio if aio else unary),
            "Echo": grpc.unary_unary_rpc_method_handler(echo_aio if aio else echo),
            "Collect": grpc.stream_unary_rpc_method_handler(collect_aio if aio else collect),
            "Tell": grpc.unary_stream_rpc_method_handler(tell_aio if aio else tell),
        },
    )


@pytest.fixture(scope="module", params=KINDS)
def client(request):
    """A raw client of a server whose answers are too large for the records."""
    small = rifl.MethodPolicy(max_response_bytes=1000)
    dedup = rifl.Deduplicator(
        "memory:", methods=dict.fromkeys((_UNARY, _COLLECT, _TELL, _ECHO), small)
    )
    with (
        dedup,
        serve(request.param, [_handlers(request.param)], dedup=dedup) as served,
        contextlib.closing(RawClient(served.address).channel),
    ):
        yield RawClient(served.address)


def _call(client, method, value, extra=()):
    metadata = (("rifl-bin", value), *extra)
    if method == _COLLECT:
        return client.channel.stream_unary(method).future(iter([b"r", end_marker(1)]), 20, metadata)
    if method == _TELL:
        call = client.channel.unary_stream(method)(b"r", 20, metadata)
        with contextlib.suppress(grpc.RpcError):
            list(call)
        return call
    return client.channel.unary_unary(method).future(b"r", 20, metadata)


def _info(call):
    with contextlib.suppress(grpc.RpcError):
        call.code()
    return read_error_info(tuple((key, value) for key, value in call.trailing_metadata()))


@pytest.mark.parametrize("method", [_UNARY, _COLLECT, _TELL])
def test_refusals_and_recorded_verdicts_name_their_call(client, method):
    """Acknowledged, of an expired client, or answered by a record that refuses (DESIGN §3)."""
    client.grant()
    # A stream is sent all the same, and refused when it is asked for again.
    _info(_call(client, method, client.header(1)))
    too_large = _info(_call(client, method, client.header(1, attempt=2)))
    assert too_large.reason == "RESPONSE_TOO_LARGE"
    assert too_large.metadata["rpc"] == f"{client.client_id}/1"
    read(_call(client, _ECHO, client.header(3, first=3)))
    stale = _info(_call(client, method, client.header(2, attempt=2, first=2)))
    assert stale.reason == "STALE_RPC"
    assert stale.metadata["rpc"] == f"{client.client_id}/2"


@pytest.mark.parametrize("method", [_UNARY, _COLLECT, _TELL])
def test_an_id_of_another_incarnation_is_named_with_what_grpc_sent_before(client, method):
    """Refused with its token, LEASE_EXPIRED tells of gRPC's own attempts as it does later on: what
    may have run before the restart is not sent under a new id (DESIGN §3)."""
    old = client.header(1, client_id=client.client_id ^ (1 << 40))
    sent = _call(client, method, old, (("grpc-previous-rpc-attempts", "1"),))
    info = _info(sent)
    if info.reason == "NOT_YOURS":
        pytest.fail("the id was meant to be of another incarnation")
    assert info.reason == "LEASE_EXPIRED"
    assert info.metadata == {
        "rpc": f"{client.client_id ^ (1 << 40)}/1",
        "previous_attempts": "true",
    }


def test_items_of_a_batch_are_named_each(client):
    """A refusal among the answers of a batch names its own item's call (DESIGN §3)."""
    client.grant()
    read(_call(client, _ECHO, client.header(2, first=2)))
    body = encode_batch([b"a", b"b"], [], [1, 3])
    value = client.header(attempt=2, first=1)
    metadata = (("rifl-bin", value), ("rifl-batch", "1"))
    reply = client.channel.unary_unary(_ECHO)(body, 20, metadata)
    assert reply.startswith(REPLY_MARK)
    others = parse_reply(reply, 2).others
    assert others[0].record.reason == "STALE_RPC"
    assert others[0].info["rpc"] == f"{client.client_id}/1"


def test_a_refusal_without_an_identity_names_none(client):
    """A header that is none speaks of no call (DESIGN §3)."""
    info = _info(_call(client, _ECHO, b"\xff"))
    assert (info.reason, info.metadata) == ("BAD_HEADER", {})
    assert RiflError.arrival is None
