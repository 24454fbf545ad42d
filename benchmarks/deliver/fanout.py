"""``python -m benchmarks.deliver.fanout BOARD PORT ...``: a bare fan-out over ``grpc.aio``.

A line ``stream FIRST COUNT TARGETS`` (or ``unary ...``) has it send so many transactions to so many
targets: on a stream to each, or by a unary call for each message. The next one begins a while after
all of the last was answered.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc.aio

from benchmarks.deliver.board import Board
from benchmarks.deliver.messages import KEYS, body_of, shares
from benchmarks.deliver.target import BARE_STREAM, BARE_UNARY

__all__ = ["PAUSE_S"]

# Between two transactions.
PAUSE_S = 0.005


class _Fanout:
    def __init__(self, board: Board, ports: Sequence[str]) -> None:
        self._board = board
        self._channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}") for port in ports]
        self._unary: list[Any] = [each.unary_unary(BARE_UNARY) for each in self._channels]
        self._streams: list[Any] = [each.stream_stream(BARE_STREAM)() for each in self._channels]

    async def round(self, kind: str, first: int, count: int, targets: int) -> None:
        send = self._by_stream if kind == "stream" else self._by_unary
        for number in range(first, first + KEYS * count, KEYS):
            bodies = {
                target: [(each, body_of(each)) for each in mine]
                for target, mine in shares(number, targets).items()
            }
            now = time.monotonic_ns()
            await asyncio.gather(*(send(*each) for each in bodies.items()))
            for each in range(number, number + KEYS):
                self._board.dispatched[each] = now
            await asyncio.sleep(PAUSE_S)

    async def _by_stream(self, target: int, messages: Sequence[tuple[int, bytes]]) -> None:
        stream = self._streams[target]
        for _, body in messages:
            await stream.write(body)
        for _ in messages:
            await stream.read()

    async def _by_unary(self, target: int, messages: Sequence[tuple[int, bytes]]) -> None:
        call = self._unary[target]
        await asyncio.gather(*(call(body) for _, body in messages))

    async def close(self) -> None:
        for each in self._streams:
            each.cancel()
        for each in self._channels:
            await each.close()


async def _main(board: Board, ports: Sequence[str]) -> None:
    fanout = _Fanout(board, ports)
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        kind, *numbers = line.split()
        first, count, targets = map(int, numbers)
        await fanout.round(kind, first, count, targets)
        print("done", flush=True)
    await fanout.close()


if __name__ == "__main__":
    asyncio.run(_main(Board(Path(sys.argv[1])), sys.argv[2:]))
