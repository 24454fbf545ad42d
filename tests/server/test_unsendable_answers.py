"""A handler's answer that gRPC cannot send ends its call, at first and in replays (DESIGN §4)."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import grpc
import pytest

import rifl
from tests.helpers.raw import RawClient
from tests.helpers.servers import KINDS, generic, serve
from tests.helpers.waiting import DEADLINE_S

_METHOD, _TOLD = "/test.Odd/Act", "/test.Odd/Tell"
_ANSWERS: dict[bytes, Any] = {
    b"number": 17,
    b"text": "text",
    b"bytearray": bytearray(b"x"),
    b"view": memoryview(b"x"),
    b"list": [1],
}
_METADATA: dict[bytes, list[tuple[str, Any]]] = {
    b"letter": [("name", "J\xfcrgen")],
    b"line": [("name", "a\nb")],
    b"byte": [("name", b"\xff")],
    b"capital": [("Name", "a")],
    b"space": [("a name", "a")],
    b"no name": [("", "a")],
    b"text in -bin": [("name-bin", "text")],
}


class _Odd(BaseException):
    pass


_RAISED: dict[bytes, BaseException] = {
    b"cancelled": asyncio.CancelledError(),
    b"generator": GeneratorExit(),
    b"odd": _Odd("the user's"),
}


def _raise(error: BaseException) -> Any:
    raise error


def _read(data: bytes) -> bytes:
    where, _, what = data.partition(b" ")
    return _raise(_RAISED[what]) if where == b"read" else data


def _write(answer: Any) -> Any:
    if isinstance(answer, bytes):
        where, _, what = answer.partition(b" ")
        return _raise(_RAISED[what]) if where == b"write" else answer
    return answer


def _handlers(kind: str) -> Any:
    def act(request: bytes, context: Any) -> Any:
        return _ANSWERS.get(request, request)

    def tell(request: bytes, context: Any) -> Any:
        yield _ANSWERS.get(request, request)

    async def act_aio(request: bytes, context: Any) -> Any:
        return act(request, context)

    async def tell_aio(request: bytes, context: Any) -> Any:
        for each in tell(request, context):
            yield each

    unary, stream = (act_aio, tell_aio) if kind == "aio" else (act, tell)
    methods: dict[str, Any] = {
        "Act": grpc.unary_unary_rpc_method_handler(unary, _read, _write),
        "Tell": grpc.unary_stream_rpc_method_handler(stream, _read, _write),
    }
    return grpc.method_handlers_generic_handler("test.Odd", methods)


@pytest.mark.parametrize("kind", KINDS)
def test_no_answer_and_no_serialiser_leaves_a_call_running(tmp_path: Path, kind: str) -> None:
    """It is answered as one whose handler or serialiser raised, and the server closes at once."""
    dedup = rifl.Deduplicator(
        f"sqlite:///{tmp_path / 's.db'}", methods={"*": "idempotent", _TOLD: "idempotent"}
    )
    said = [*_ANSWERS, *(where + what for where in (b"read ", b"write ") for what in _RAISED)]
    with dedup, serve(kind, [_handlers(kind)], dedup=dedup) as served:
        with RawClient(served.address) as client:
            for seq, what in enumerate(said, 1):
                first = client.call(_METHOD, what, seq, timeout=DEADLINE_S)
                assert not first.ok
                assert first.outcome in ("executed", "unknown"), (what, first)
                again = client.call(_METHOD, what, seq, attempt=2, timeout=DEADLINE_S)
                assert again.code == first.code
                assert again.reason != "IN_PROGRESS"
        with rifl.connect(served.address) as channel:
            for what in said:
                with pytest.raises(rifl.CallError):
                    list(channel.unary_stream(_TOLD)(what, timeout=DEADLINE_S))
        assert dedup.drained(DEADLINE_S) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_metadata_that_grpc_cannot_send_is_refused_in_the_handler(kind: str) -> None:
    """Recorded, it failed in every attempt, and the caller was never answered."""
    raised: list[Exception] = []

    def act(request: bytes, context: Any) -> bytes:
        try:
            context.set_trailing_metadata(_METADATA[request])
        except (TypeError, ValueError) as error:
            raised.append(error)
        return b"done"

    async def act_aio(request: bytes, context: Any) -> bytes:
        try:
            await context.send_initial_metadata(_METADATA[request])
        except (TypeError, ValueError) as error:
            raised.append(error)
        return act(request, context)

    handler: Any = act_aio if kind == "aio" else act
    with (
        rifl.Deduplicator("memory:") as dedup,
        serve(kind, [generic("test.Odd", {"Act": handler})], dedup=dedup) as at,
        RawClient(at.address) as client,
    ):
        for seq, what in enumerate(_METADATA, 1):
            for attempt in (1, 2):
                told = client.call(_METHOD, what, seq, attempt=attempt, timeout=DEADLINE_S)
                assert (told.ok, told.response) == (True, b"done"), (what, told)
    assert len(raised) == len(_METADATA) * (2 if kind == "aio" else 1)


def test_an_answer_that_is_no_bytes_is_not_recorded_with_effects(tmp_path: Path) -> None:
    """``rifl.record`` raises in the handler, whose block rolls back."""
    path = tmp_path / "s.db"
    with sqlite3.connect(path) as books:
        books.execute("PRAGMA journal_mode = WAL")
        books.execute("CREATE TABLE effect (name)")

    def act(request: bytes, context: Any) -> Any:
        with rifl.transaction(context) as connection:
            connection.execute("INSERT INTO effect VALUES (?)", (request,))
            rifl.record(context, _ANSWERS[request], connection)
        return _ANSWERS[request]

    with (
        rifl.Deduplicator(f"sqlite:///{path}", methods={_METHOD: "atomic"}) as dedup,
        serve("sync", [generic("test.Odd", {"Act": act})], dedup=dedup) as at,
        RawClient(at.address) as client,
    ):
        for seq, what in enumerate(_ANSWERS, 1):
            told = client.call(_METHOD, what, seq, timeout=DEADLINE_S)
            assert told.outcome == "not-executed", (what, told)
            assert "serialised to bytes" in told.details
    assert sqlite3.connect(path).execute("SELECT count(*) FROM effect").fetchone() == (0,)
