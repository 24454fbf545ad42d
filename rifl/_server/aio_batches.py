"""Batched calls on ``grpc.aio.server``: one task a batch, which awaits (DESIGN §4)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from _rifl_ground.threads import in_thread
from rifl._server.batches import Batch, ItemsContext
from rifl._server.reply import SentReply
from rifl.core._serving.answer import Handled
from rifl.core._serving.batching import serve_batch
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.later import Later
from rifl.core._serving.policy import MethodPolicy
from rifl.core._shared.call import Call
from rifl.core._shared.errors import RiflError

_Run = Callable[[bytes, Any, Attempt, list[BaseException]], Awaitable[Handled]]
_Send = Callable[[Any, SentReply], Awaitable[bytes]]
_Results = list[Handled | None]


class _Awaiting(Later):
    """Work that is awaited on the running loop."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[[], Awaitable[Any]]) -> None:
        self._work = work

    def wait(self) -> Any:
        raise NotImplementedError("an aio shell awaits")

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work().__await__()


def batched_behavior(
    shell: Any, method: str, policy: MethodPolicy, run: _Run, send: _Send
) -> Callable[[bytes, Any], Awaitable[bytes]]:
    """Return the behavior of a coroutine handler's batches.

    The handlers of one batch run one after another, in its order, as on a sync server:
    rows of one table are used to that, and a batch then takes no more of the loop than
    one call. ``MethodPolicy.batch_concurrency`` lets as many run at once. The whole batch is
    shielded from the cancellation of its RPC, after which no further handler is begun.
    """
    engine = shell.engine
    room = engine.rooms.of(policy)

    async def run_some(batch: Batch, context: Any, left: Any, results: _Results) -> None:
        raised: list[BaseException] = []
        for at, attempt in left:
            if batch.gone():
                return
            results[at] = await run(attempt.call.request, context, attempt, raised)
            if raised:
                batch.raised(attempt, raised.pop())

    async def run_all(batch: Batch, context: Any, attempts: list[Attempt]) -> _Results:
        results: _Results = [None] * len(attempts)
        left = iter(enumerate(attempts))
        workers = min(policy.batch_concurrency, len(attempts))
        if workers == 1:
            await run_some(batch, context, left, results)
        else:
            await asyncio.gather(*(run_some(batch, context, left, results) for _ in range(workers)))
        return results

    async def fetch_all(calls: list[Call]) -> list[Any]:
        return await in_thread(lambda: [engine.store.fetch(call) for call in calls])

    async def serve(batch: Batch, context: Any, place: Any) -> Any:
        inner = ItemsContext(context)
        steps = serve_batch(
            engine.store,
            batch.calls,
            policy,
            run=lambda attempts: _Awaiting(lambda: run_all(batch, inner, attempts)),
            fetch=lambda wanted: _Awaiting(lambda: fetch_all(wanted)),
            gone=batch.gone,
            place=place,
        )
        try:
            return await shell.drive(steps, context)
        finally:
            if place is not None:
                place.leave()

    async def batched(body: bytes, context: Any) -> bytes:
        began = engine.replies.begin()
        calls: list[Any] = []
        try:
            batch = Batch(engine, method, body, context)
            calls = batch.calls
            place = None if room is None else room.place(calls[0], context)
            try:
                answers = await shell.shielded(serve(batch, context, place), context)
            except asyncio.CancelledError:
                batch.leave()
                if place is not None:
                    place.quit()
                raise
            return batch.reply(answers, began)
        except RiflError as refusal:
            return await send(context, engine.replies.batch_status(method, calls, refusal, began))

    return batched
