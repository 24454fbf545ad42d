"""Batched calls on ``grpc.server``: one pool thread a batch, which blocks (DESIGN §4)."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from rifl._grpc.raw import RawAnswer
from rifl._server.batches import Batch, ItemsContext
from rifl._server.reply import SentReply
from rifl.core._serving.answer import Handled
from rifl.core._serving.batching import serve_batch
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.later import Later
from rifl.core._serving.policy import MethodPolicy
from rifl.core._shared.call import Call
from rifl.core._shared.errors import RiflError

_Run = Callable[[bytes, Any, Attempt, list[BaseException]], Handled]
_Send = Callable[[Any, SentReply], bytes]


class _Blocking(Later):
    """Work that is done where it is waited for."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work

    def wait(self) -> Any:
        return self._work()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise NotImplementedError("a sync shell blocks")


def batched_behavior(
    shell: Any, method: str, policy: MethodPolicy, run: _Run, send: _Send
) -> Callable[[bytes, Any], RawAnswer]:
    """Return the behavior of a unary handler's batches.

    ``run`` runs the handler for one attempt, ``send`` refuses the RPC. The handlers of
    one batch run one after another, in its order, in the RPC's thread.
    """
    engine = shell.engine

    def run_all(batch: Batch, context: Any, attempts: list[Attempt]) -> list[Handled | None]:
        results: list[Handled | None] = []
        raised: list[BaseException] = []
        for attempt in attempts:
            if batch.gone():
                results.extend([None] * (len(attempts) - len(results)))
                break
            results.append(run(attempt.call.request, context, attempt, raised))  # type: ignore[attr-defined]
            if raised:
                batch.raised(attempt, raised.pop())
        return results

    def fetch_all(calls: list[Call]) -> list[Any]:
        return [engine.store.fetch(call) for call in calls]

    def batched(body: bytes, context: Any) -> RawAnswer:
        began = engine.replies.begin()
        calls: list[Any] = []
        try:
            batch = Batch(engine, method, body, context)
            calls = batch.calls
            # False: it is gone already; on a grpc.aio.server the answer is always None.
            if context.add_callback(batch.leave) is False:
                batch.leave()
            inner = ItemsContext(context)
            steps = serve_batch(
                engine.store,
                calls,
                policy,
                run=lambda attempts: _Blocking(lambda: run_all(batch, inner, attempts)),
                fetch=lambda wanted: _Blocking(lambda: fetch_all(wanted)),
                gone=batch.gone,
            )
            return RawAnswer(batch.reply(shell.drive(steps, context), began))
        except RiflError as refusal:
            status = engine.replies.batch_status(method, calls, refusal, began)
            return RawAnswer(send(context, status))

    return batched
