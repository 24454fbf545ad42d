"""Labels that a handler sets or forwards, which never pass for ours (DESIGN §3)."""

from __future__ import annotations

import contextlib
import functools
import inspect

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

import rifl
from _rifl_ground.refusals import Outcome
from rifl._grpc.status import DETAILS_KEY, details_bin
from rifl._wire.envelope import REPLY_MARK, encode_batch, parse_reply
from tests.calls.services import whole
from tests.helpers.raw import RawClient, read
from tests.helpers.servers import KINDS, serve
from tests.helpers.waiting import DEADLINE_S

_NAMES = ("trailing", "initial", "abort", "raises", "rich", "ok")
_SENT = (
    ("rifl-outcome", "not-executed"),
    ("rifl-something-new", "x"),
    ("upstream", "kept"),
    (DETAILS_KEY, details_bin(grpc.StatusCode.ABORTED, "LEASE_EXPIRED", "the upstream's")),
)


def _rich():
    """An upstream's details: our ErrorInfo, somebody else's, and a quota."""
    status = status_pb2.Status(code=10, message="both")
    for domain in ("rifl", "shop.example"):
        info = error_details_pb2.ErrorInfo(domain=domain, reason="OUTCOME_UNKNOWN")
        status.details.add().Pack(info)
    quota = error_details_pb2.QuotaFailure()
    quota.violations.add(subject="s")
    status.details.add().Pack(quota)
    return status.SerializeToString()


class _Status(grpc.Status):
    code = grpc.StatusCode.ABORTED
    details = "forwarded"
    trailing_metadata = _SENT


def _forward(name, context):
    """Do what a handler does that forwards an upstream's error; return what to await."""
    if name == "initial":
        return context.send_initial_metadata(_SENT)
    if name == "abort":
        return context.abort_with_status(_Status())
    if name == "rich":
        context.set_trailing_metadata(((DETAILS_KEY, _rich()),))
    else:
        context.set_trailing_metadata(_SENT)
    if name == "raises":
        raise ValueError("an upstream's error")
    if name != "ok":
        context.set_code(grpc.StatusCode.ABORTED)
        context.set_details("forwarded")
    return None


def _handlers(kind, runs):
    async def unary_aio(name, request, context):
        runs.append(name)
        if inspect.isawaitable(sent := _forward(name, context)):
            await sent
        return b"done"

    async def collect_aio(name, requests, context):
        return await unary_aio(name, [request async for request in requests], context)

    async def tell_aio(name, request, context):
        yield await unary_aio(name, request, context)

    def unary(name, request, context):
        runs.append(name)
        _forward(name, context)
        return b"done"

    def collect(name, requests, context):
        return unary(name, list(requests), context)

    def tell(name, request, context):
        yield unary(name, request, context)

    forms = (unary_aio, collect_aio, tell_aio) if kind == "aio" else (unary, collect, tell)
    makers = (
        grpc.unary_unary_rpc_method_handler,
        grpc.stream_unary_rpc_method_handler,
        grpc.unary_stream_rpc_method_handler,
    )
    methods = {}
    for prefix, form, maker in zip(("Unary", "Collect", "Tell"), forms, makers, strict=True):
        for name in _NAMES:
            methods[prefix + name.title()] = maker(functools.partial(form, name))
    return grpc.method_handlers_generic_handler("test.Forward", methods)


_DECLARED = {
    f"/test.Forward/{prefix}{name.title()}": "plain"
    for prefix in ("Unary", "Collect", "Tell")
    for name in _NAMES
}


class _Forwarding:
    def __init__(self, client, runs):
        self.client, self.runs = client, runs

    def call(self, form, name, seq, attempt):
        """One arrival, whatever its form."""
        client, path = self.client, f"/test.Forward/{form}{name.title()}"
        metadata = (("rifl-bin", client.header(seq, attempt=attempt)),)
        if form == "Collect":
            stub = client.channel.stream_unary(path)
            return read(stub.future(whole([b"a"]), DEADLINE_S, metadata))
        if form == "Tell":
            call = client.channel.unary_stream(path)(b"a", DEADLINE_S, metadata)
            with contextlib.suppress(grpc.RpcError):
                list(call)
            call.result = lambda: None
            return read(call)
        return client.call(path, b"a", seq, attempt=attempt)


@pytest.fixture(scope="module", params=KINDS)
def forwarding(request):
    """A server whose handlers forward, and a caller with headers made by hand."""
    runs = []
    with (
        rifl.Deduplicator("memory:", methods=_DECLARED) as dedup,
        serve(request.param, [_handlers(request.param, runs)], dedup=dedup) as served,
        RawClient(served.address) as client,
    ):
        yield _Forwarding(client, runs)


@pytest.mark.parametrize("form", ["Unary", "Collect", "Tell"])
@pytest.mark.parametrize("name", _NAMES)
def test_a_forwarded_label_is_stripped_and_the_rest_is_kept(forwarding, form, name):
    """Of what a handler forwards our labels go, in first answers and replays alike (§3)."""
    seq = 1 + _NAMES.index(name) + len(_NAMES) * ("Unary", "Collect", "Tell").index(form)
    for attempt in (1, 2):
        reply = forwarding.call(form, name, seq, attempt)
        everything = (*reply.initial, *reply.trailing)
        own = [entry for entry in everything if entry[0].startswith("rifl-")]
        told = "executed" if attempt == 1 else "replayed"
        quiet = attempt == 1 and reply.ok
        assert own == ([] if quiet else [("rifl-outcome", told)]), "only what this server says"
        assert reply.reason == ""
        if name != "rich":
            assert ("upstream", "kept") in everything


@pytest.mark.parametrize("form", ["Unary", "Collect", "Tell"])
def test_details_that_are_not_ours_stay(forwarding, form):
    """An ErrorInfo of another domain and other details of the same entry are kept (§3)."""
    reply = forwarding.call(form, "rich", 100 + ("Unary", "Collect", "Tell").index(form), 1)
    status = status_pb2.Status.FromString(dict(reply.trailing)[DETAILS_KEY])
    assert (status.code, status.message) == (10, "both")
    kinds = [detail.type_url.rpartition(".")[2] for detail in status.details]
    assert kinds == ["ErrorInfo", "QuotaFailure"]


def test_a_batch_s_items_forward_nothing_of_ours(forwarding):
    """The same for the items of a batch, whose answers have metadata of their own (§4)."""
    client = forwarding.client
    header = client.header(None, attempt=1)
    body = encode_batch([b"a", b"b"], [], [201, 202])
    metadata = (("rifl-bin", header), ("rifl-batch", "1"))
    raw = client.channel.unary_unary("/test.Forward/UnaryTrailing")(body, DEADLINE_S, metadata)
    assert raw[:1] == REPLY_MARK
    for item in parse_reply(raw, 2).items():
        assert item.outcome is Outcome.EXECUTED
        assert item.record.trailing_metadata == (("upstream", "kept"),)


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_a_handler_that_forwards_an_upstreams_refusal_runs_once(kind):
    """The caller's SDK takes no upstream's label for its own server's: one run (§3)."""
    runs = []
    with (
        rifl.Deduplicator("memory:", methods=_DECLARED) as dedup,
        serve(kind, [_handlers(kind, runs)], dedup=dedup) as served,
        rifl.connect(served.address) as channel,
    ):
        for form in ("Trailing", "Abort"):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(f"/test.Forward/Unary{form}")(b"a", timeout=DEADLINE_S)
            assert caught.value.details() == "forwarded"
    assert runs == ["trailing", "abort"]
