"""``python -m benchmarks.deliver.target NUMBER DATABASE BOARD STREAM ...``: a target.

It says two ports: of the server that a player calls, or rifl's own client; and of a bare one in
the same process, whose methods only say when a message came.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

import rifl
import rifl.aio
import sharedlog
from benchmarks.deliver.board import Board
from benchmarks.deliver.messages import APPLY, SERVICE, START, TOKEN, number_of
from sharedlog._core.position import Position
from sharedlog._core.target_steps import AnswerKind, DeliveryAnswer
from sharedlog._target.target import ServedTarget

__all__ = ["BARE_STREAM", "BARE_UNARY", "INSERT", "create"]

BARE_STREAM, BARE_UNARY = f"/{SERVICE}/Stream", f"/{SERVICE}/Unary"
INSERT = "INSERT INTO effect (number, body) VALUES (?, ?)"
# Of a batch of rifl's client, so many calls meet in one commit.
_AT_ONCE = 64


def create(database: Path) -> None:
    """Make the table of effects."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE effect (id INTEGER PRIMARY KEY, number INT, body BLOB)")


class _Effects:
    """What handlers did, until their deliveries are answered: then it is committed."""

    def __init__(self, board: Board, number: int) -> None:
        self._board = board
        self._number = number
        self._waiting: dict[str, deque[tuple[Position, int]]] = {}

    def add(self, delivered: Any, number: int) -> None:
        """A handler did what it does, in a transaction."""
        tag = f"{delivered.stream}/{delivered.substream}"
        self._waiting.setdefault(tag, deque()).append((delivered.position, number))

    def answered(self, answer: DeliveryAnswer) -> None:
        """A player is about to be told."""
        waiting = self._waiting.get(answer.tag)
        if answer.kind is not AnswerKind.DONE or not waiting:
            return
        board, now, count = self._board, time.monotonic_ns(), 0
        while waiting and waiting[0][0][:2] <= answer.place[:2]:
            _, number = waiting.popleft()
            count += 1
            if number >= 0:
                board.committed[number] = now
        board.counts[self._number] += count


def _watch(effects: _Effects) -> None:
    """Have effects know of each answer, which is told when all before it is durable."""
    note = ServedTarget.note

    def noted(self: ServedTarget, answer: DeliveryAnswer) -> None:
        effects.answered(answer)
        note(self, answer)

    ServedTarget.note = noted  # type: ignore[method-assign]


async def _serve(number: int, database: Path, board: Board, streams: list[str]) -> None:
    effects = _Effects(board, number)
    _watch(effects)

    async def apply(request: bytes, context: Any) -> bytes:
        delivered, number = sharedlog.delivery(context), number_of(request)
        if number >= 0:
            board.started[number] = time.monotonic_ns()
        async with rifl.aio.transaction(context) as connection:
            connection.execute(INSERT, (number, request))
            await rifl.aio.record(context, b"", connection)
        if delivered is not None:
            effects.add(delivered, number)
        return b""

    async def start(request: bytes, _: Any) -> bytes:
        board.started[number_of(request)] = time.monotonic_ns()
        return b""

    async def stream(requests: AsyncIterator[bytes], context: Any) -> None:
        async for request in requests:
            board.started[number_of(request)] = time.monotonic_ns()
            await context.write(b"")

    methods: dict[str, rifl.MethodPolicy | str] = {
        APPLY: rifl.MethodPolicy(kind=rifl.Kind.ATOMIC, batch_concurrency=_AT_ONCE),
        START: "idempotent",
    }
    with rifl.Deduplicator(f"sqlite:///{database}", methods=methods) as dedup:
        server = grpc.aio.server(interceptors=[dedup.aio_interceptor()])
        server.add_generic_rpc_handlers(
            (_handlers(Apply=_unary(apply), Start=_unary(start)),),
        )
        dedup.add_to_server(server)
        allowed = {each: [APPLY, START] for each in streams}
        sharedlog.add_target_to_server(server, dedup, allowed, token=TOKEN)
        bare = grpc.aio.server()
        streamed: Any = grpc.stream_stream_rpc_method_handler(stream)
        bare.add_generic_rpc_handlers((_handlers(Stream=streamed, Unary=_unary(start)),))
        ports = [each.add_insecure_port("127.0.0.1:0") for each in (server, bare)]
        await server.start()
        await bare.start()
        print(*ports, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await server.stop(0.1)
        await bare.stop(0.1)


def _unary(behavior: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(behavior)


def _handlers(**handlers: Any) -> Any:
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


if __name__ == "__main__":
    _number, _database, _board, *_streams = sys.argv[1:]
    create(Path(_database))
    asyncio.run(_serve(int(_number), Path(_database), Board(Path(_board)), _streams))
