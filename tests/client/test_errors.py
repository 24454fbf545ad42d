"""The errors: what they are, and that they travel (DESIGN §3)."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import flask
import grpc
import pytest
import starlette.applications
import starlette.responses

import rifl
import rifl.aio
from rifl._client import errors
from rifl._client.answers import FinalStatus, read_answer
from rifl._client.errors import CallError, call_error
from rifl.core import Outcome, RpcId
from rifl.core._shared import errors as core

REASONS = {
    cls.reason: cls
    for cls in vars(core).values()
    if isinstance(cls, type) and issubclass(cls, core.RiflError) and cls is not core.RiflError
}


@pytest.mark.parametrize("reason", ["", *REASONS])
@pytest.mark.parametrize(
    "metadata",
    [(("k", "v"), ("b-bin", b"\x00")), grpc.aio.Metadata(("k", "v"), ("b-bin", b"\x00")), None],
)
def test_every_error_pickles_with_all_it_says(reason: str, metadata: object) -> None:
    """Class, status, metadata, identity and outcome survive pickling (DESIGN §3)."""
    status = FinalStatus(grpc.StatusCode.ABORTED, "text", metadata, metadata, "debug")
    error = call_error(
        grpc.StatusCode.ABORTED,
        "text",
        rpc_id=RpcId(7, 3),
        outcome=Outcome.UNKNOWN,
        reason=reason,
        status=status,
    )
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(copy) is type(error)
    assert (type(error) is CallError) == (reason == "")
    if reason:
        assert isinstance(error, REASONS[reason])
    for one in (error, copy):
        assert isinstance(one, grpc.RpcError)
        assert isinstance(one, grpc.aio.AioRpcError)
        assert (one.code(), one.details()) == (grpc.StatusCode.ABORTED, "text")
        assert (one.rpc_id, one.outcome, one.reason) == (RpcId(7, 3), Outcome.UNKNOWN, reason)
        assert one.debug_error_string() == "debug"
        for given in (one.initial_metadata(), one.trailing_metadata()):
            assert tuple(given) == tuple(metadata or ())
    assert "rpc 7/3" in str(copy)
    assert "outcome unknown" in str(copy)


def test_grpcs_own_metadata_entries_pickle() -> None:
    """Metadata as the sync API returns it is carried over (DESIGN §3)."""

    class Metadatum(tuple):  # type: ignore[type-arg]
        """As gRPC's, which no other process can import."""

    status = FinalStatus(grpc.StatusCode.ABORTED, "", (), (Metadatum(("k", "v")),))
    error = call_error(status.code(), "", rpc_id=None, outcome=Outcome.UNKNOWN, status=status)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert copy.trailing_metadata() == (("k", "v"),)


def test_every_class_is_named_after_its_reason() -> None:
    """One class for each reason of the core, found by its name (DESIGN §9)."""
    for cls in REASONS.values():
        twin = getattr(errors, cls.__name__ + "Error")
        assert (twin.__bases__, twin.reason) == ((cls, CallError), cls.reason)
        assert (twin.__module__, twin.__qualname__) == (errors.__name__, twin.__name__)


@pytest.mark.parametrize("registered", [[CallError, core.BadHeader], [core.BadHeader, CallError]])
def test_a_web_frameworks_handler_of_a_refusal_outweighs_that_of_call_error(
    registered: list[type[Exception]],
) -> None:
    """Flask and Starlette take the first class of the resolution order (DESIGN §9)."""
    flask_app, starlette_app = flask.Flask("t"), starlette.applications.Starlette()
    for each in registered:
        flask_app.register_error_handler(each, lambda error, each=each: each.__name__)
        starlette_app.add_exception_handler(each, _naming(each))

    @flask_app.get("/<reason>")
    def fail(reason: str) -> str:
        raise _error(reason)

    starlette_app.add_route("/{reason}", _fail)
    for reason, name in (("BAD_HEADER", "BadHeader"), ("OVERLOADED", "CallError")):
        assert flask_app.test_client().get(f"/{reason}").text == name
        assert _asked(starlette_app, f"/{reason}") == name


def _naming(handled: type[Exception]) -> Any:
    async def handler(request: Any, error: Exception) -> Any:
        return starlette.responses.PlainTextResponse(handled.__name__)

    return handler


async def _fail(request: Any) -> Any:
    raise _error(request.path_params["reason"])


def _error(reason: str) -> CallError:
    code = grpc.StatusCode.ABORTED
    return call_error(code, "text", rpc_id=None, outcome=Outcome.NOT_EXECUTED, reason=reason)


def _asked(app: Any, path: str) -> str:
    """Return the body that an ASGI application answers with."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
    asyncio.run(app(scope, receive, send))
    return b"".join(each.get("body", b"") for each in sent).decode()


async def test_a_keyed_call_that_never_reached_a_server_may_be_retried() -> None:
    """It has no identity yet, and its error has the key, also pickled, sync and aio (DESIGN §3)."""
    caught: list[CallError] = []
    with rifl.connect("127.0.0.1:1", session="s") as channel:
        try:
            channel.unary_unary("/p.S/M")(b"x", timeout=0.2, metadata=[rifl.key("k")])
        except CallError as error:
            caught.append(error)
    async with rifl.aio.connect("127.0.0.1:1", session="s") as aio_channel:
        try:
            await aio_channel.unary_unary("/p.S/M")(b"x", timeout=0.2, metadata=[rifl.key("k")])
        except CallError as error:
            caught.append(error)
    caught += [pickle.loads(pickle.dumps(error)) for error in caught]  # noqa: S301 - our own bytes
    assert [(e.rpc_id, e.key, rifl.may_retry(e)) for e in caught] == [(None, b"k", True)] * 4
    assert not rifl.may_retry(ValueError("closed"))
    assert not rifl.may_retry(BaseException())


def test_an_error_is_a_finished_future_too() -> None:
    """Outer interceptors treat what was raised as the call."""
    error = CallError(grpc.StatusCode.ABORTED, "x")
    seen: list[object] = []
    error.add_done_callback(seen.append)
    assert seen == [error]
    assert error.exception() is error
    assert error.traceback() is not None
    with pytest.raises(CallError):
        error.result()
    assert (error.done(), error.running(), error.cancelled(), error.cancel()) == (
        True,
        False,
        False,
        False,
    )
    assert (error.is_active(), error.add_callback(lambda: None)) == (False, False)


@pytest.mark.parametrize(
    ("value", "seconds"), [("250", 0.25), ("-1", -0.001), ("soon", -1.0), ("", -1.0)]
)
def test_pushback_is_read_as_grpc_reads_it(value: str, seconds: float) -> None:
    """Milliseconds, negative or unreadable meaning never (DESIGN §3)."""
    status = FinalStatus(grpc.StatusCode.UNAVAILABLE, "", (), (("grpc-retry-pushback-ms", value),))
    assert read_answer(status).retry_after_s == seconds


def test_garbage_in_trailing_metadata_is_no_answer_of_ours() -> None:
    """Details that cannot be read and outcomes never heard of count as none (DESIGN §3)."""
    status = FinalStatus(
        grpc.StatusCode.ABORTED,
        "",
        (),
        (("grpc-status-details-bin", b"\xff\xff"), ("rifl-outcome", "maybe")),
    )
    answer = read_answer(status)
    assert (answer.outcome, answer.reason) == (None, "")
