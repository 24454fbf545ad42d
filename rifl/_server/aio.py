"""The shell for ``grpc.aio.server``: one coroutine a call, which awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from _rifl_ground.refusals import Outcome
from _rifl_ground.threads import in_thread
from rifl._grpc.codes import STATUS_CODES
from rifl._server.aio_batches import batched_behavior
from rifl._server.call_engine import CallEngine
from rifl._server.context import CURRENT, AioHandlerContext, Serving, caller_leaves, forget_caller
from rifl._server.eager_task import start_task, take_cancellation
from rifl._server.handler_results import raised_result, returned
from rifl._server.reply import SentReply, is_bare
from rifl._server.rooms import CallPlace, ServerRoom
from rifl._server.unheard_runs import RunPlace, UnheardRuns
from rifl._stores.base import Store
from rifl._stores.pending import wake_on_loop
from rifl._wire.envelope import MARK, is_batch
from rifl.core._serving.admission import Fetch, Steps, Wait, admit
from rifl.core._serving.answer import Answer, Handled
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.fast_path import claim, end, start
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.records import waited
from rifl.core._serving.room import enters_first
from rifl.core._serving.serving import execute as execute_call
from rifl.core._shared.call import Call
from rifl.core._shared.errors import RiflError
from rifl.core._shared.record import CompletionRecord

_Handler = Callable[[Any, Any], Awaitable[Any]]
_EXECUTED = Outcome.EXECUTED
_Place = CallPlace | RunPlace


class AioShell:
    """Drives the rules of ``rifl.core._serving.serving`` on an event loop.

    One per deduplicator; it may serve several loops, each from its own thread.
    """

    def __init__(self, engine: CallEngine) -> None:
        self.engine = engine
        self._waiting = 0
        engine.waiting.append(lambda: self._waiting)
        # A task without a reference may be collected before it is done.
        self._executing: set[asyncio.Task[Any]] = set()

    async def drive(
        self,
        steps: Generator[Any, Any, Any],
        context: Any,
        run: Callable[[Attempt], Awaitable[Handled]] | None = None,
        value: Any = None,
    ) -> Any:
        """Carry out the steps one by one; returns or raises what the generator does.

        Without ``run`` it stops where a handler is to run, as ``SyncShell.drive``.
        """
        error: Exception | None = None
        try:
            while True:
                step = steps.send(value) if error is None else steps.throw(error)
                value, error = None, None
                try:
                    if isinstance(step, Attempt):
                        if run is None:
                            return step
                        value = await run(step)
                    elif isinstance(step, Wait):
                        value = await self._wait(step.attempt, step.call, context)
                    elif isinstance(step, Fetch):
                        value = await in_thread(self.engine.store.fetch, step.call)
                    else:
                        value = await step
                except Exception as refusal:  # noqa: BLE001 - the rules settle the call first
                    error = refusal
        except StopIteration as stop:
            return stop.value

    async def shielded(self, work: Any, context: Any) -> Any:
        """Run work to its end even if the RPC is cancelled meanwhile.

        grpc.aio cancels the coroutine when a deadline passes, and the effect may
        be there already. ``context``: gRPC's.
        """
        task = start_task(work)
        if task.done():
            return task.result()
        self._executing.add(task)
        task.add_done_callback(self._executing.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller_leaves(context)
            task.add_done_callback(lambda _: forget_caller(context))
            raise

    async def drained(self, timeout_s: float) -> None:
        """Wait for the shielded work of this loop, for so long."""
        loop = asyncio.get_running_loop()
        mine = [task for task in self._executing if task.get_loop() is loop]
        if mine:
            await asyncio.wait(mine, timeout=timeout_s)

    async def _wait(self, attempt: Attempt, call: Call, context: Any) -> bool:
        engine = self.engine
        if self._waiting >= engine.bounds.max_aio_waiters:
            return False
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def wake() -> None:
            wake_on_loop(loop, ended)

        if not engine.store.wait(attempt, wake):
            return True
        self._waiting += 1
        attempt.duplicates += 1
        if attempt.unheard is not None:
            attempt.unheard.duplicate_came()
        try:
            await asyncio.wait([ended], timeout=engine.wait_limit_s(_remaining(context)))
            return attempt.ended
        finally:
            self._waiting -= 1
            attempt.duplicates -= 1
            if attempt.unheard is not None:
                attempt.unheard.duplicate_left(call, _remaining(context))
            engine.store.leave(attempt, wake)

    def arrived(self, call: Call, context: Any) -> None:
        """Note until when a call may be tried for longer than this attempt."""
        call.attempt_s = _remaining(context) or 0.0
        call.tried_until = asyncio.get_running_loop().time() + call.try_ms / 1000


Run = Callable[[bytes, Any, Attempt, list[BaseException]], Awaitable[Handled]]


def running(store: Store, handler: Any) -> Run:
    """Return what runs a coroutine handler for an attempt; see ``sync.running``."""
    behavior: _Handler = handler.unary_unary
    deserialize = handler.request_deserializer
    serialize = handler.response_serializer
    serving = Serving(store, serialize)

    async def run(
        request: bytes, context: Any, attempt: Attempt, raised: list[BaseException]
    ) -> Handled:
        inner = AioHandlerContext(context, attempt, serving)
        # Not reset: every call's task has a context of its own.
        CURRENT.set(inner)
        task: Any = asyncio.current_task()
        try:
            message = request if deserialize is None else deserialize(request)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a user's deserializer raises
            inner.rifl_undone = True
            raised.append(error)
            return raised_result(inner, error, aio=True)
        try:
            response = await behavior(message, inner)
        except KeyboardInterrupt:
            # It ends the loop, and is no answer: the next start finds the call as after a crash.
            raise
        except BaseException as error:  # noqa: BLE001 - recorded, and logged
            if not inner.aborted:
                raised.append(error)
            return raised_result(inner, error, aio=True)
        finally:
            if task.cancelling():
                await take_cancellation(task)
        return returned(inner, response, serialize, aio=True)

    return run


def _until_unheard(run: Run, engine: CallEngine) -> Run:
    """Return what runs a handler that is cancelled when no caller wants its answer."""

    async def run_until_unheard(
        request: bytes, context: Any, attempt: Attempt, raised: list[BaseException]
    ) -> Handled:
        attempt.task = task = asyncio.current_task()
        if attempt.unheard is not None:
            attempt.unheard.look_soon()
        try:
            return await run(request, context, attempt, raised)
        finally:
            attempt.task = None
            if attempt.unheard is not None and attempt.unheard.cancelled:
                engine.handler_cancelled(attempt.call)
                if task is not None:
                    # The rest of the call is none of the handler's, and goes on.
                    task.uncancel()

    return run_until_unheard


def unary_behavior(shell: AioShell, method: str, policy: MethodPolicy, handler: Any) -> _Handler:
    """Return the raw-bytes behavior that deduplicates a coroutine handler's calls."""
    engine = shell.engine
    store = engine.store
    deserialize = handler.request_deserializer

    replies = engine.replies
    observed = replies.observed
    run = ends = running(store, handler)
    unheard = engine.unheard.of(method, policy)
    if unheard.cancels:
        ends = _until_unheard(run, engine)
    room = engine.rooms.of(policy)
    bound = unheard.bound
    # In a room the places bound them, and in a group the handlers' turns.
    watches = unheard.cancels or (room is None and store.cancels_handlers)

    # A function of its own: closed over where it is used, it would cost every call cells.
    async def drive(steps: Steps, request: bytes, context: Any, raised: list[BaseException]) -> Any:
        return await shell.drive(
            steps, context, lambda attempt: ends(request, context, attempt, raised)
        )

    async def execute(
        request: bytes, context: Any, started: Any, call: Call, began: float
    ) -> bytes | SentReply:
        """Carry a claimed call to its durable end, with or without a waiting caller."""
        raised: list[BaseException] = []
        told: Any
        try:
            if isinstance(started, Attempt):
                ended = end(store, started, await ends(request, context, started, raised))
                if isinstance(ended, CompletionRecord):
                    # Nothing was waited for, and the handler did not raise: most calls.
                    if not observed and is_bare(ended, call):
                        return ended.response  # type: ignore[return-value]  # OK has one
                    told = Answer(ended, _EXECUTED)
                else:
                    # Served anew, where another replica took it over, it may run once more.
                    told = await drive(ended, request, context, raised)
            else:
                told = await drive(started, request, context, raised)
            if (
                not (observed or raised)
                and told.outcome is _EXECUTED
                and is_bare(told.record, call)
            ):
                return told.record.response  # type: ignore[no-any-return]  # OK has one
        except RiflError as refusal:
            told = refusal
        return replies.status(method, call, told, began, raised)

    batched = batched_behavior(shell, method, policy, run, send)

    async def run_in_place(
        request: bytes, context: Any, attempt: Attempt, place: _Place, began: float
    ) -> SentReply:
        """Carry a claimed call to its durable end, whose handler needs a place."""
        raised: list[BaseException] = []
        told: Any

        async def run_there(attempt: Attempt) -> Handled:
            try:
                return await ends(request, context, attempt, raised)
            finally:
                place.leave(ran=True)

        try:
            if not place.held:
                try:
                    if (wait := place.enter()) is not None:
                        await wait
                except BaseException:
                    # Left behind, the claim would never end.
                    await shell.drive(waited(store.abandon(attempt)), context)
                    raise
            told = await shell.drive(execute_call(store, attempt), context, run_there)
        except RiflError as refusal:
            told = refusal
        finally:
            place.leave()
        return replies.status(method, attempt.call, told, began, raised)

    async def placed(
        own: ServerRoom | UnheardRuns, call: Call, request: bytes, context: Any, began: float
    ) -> SentReply:
        """Serve a call whose handler needs a place, as ``serve_in_place``."""
        place = own.place(call, context)
        try:
            if enters_first(store, call) and (wait := place.enter()) is not None:
                await wait
            admitted = await shell.drive(admit(store, call, policy, waits=place.leave), context)
        except BaseException:
            place.leave()
            raise
        if not isinstance(admitted, Attempt):
            place.leave()
            return replies.status(method, call, admitted, began)
        try:
            work = run_in_place(request, context, admitted, place, began)
            return await shell.shielded(work, context)  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            place.quit()
            if watches:
                counted = place if isinstance(place, RunPlace) else None
                unheard.caller_left(admitted, _remaining(context), counted)
            raise

    async def deduplicated(request: bytes, context: Any) -> Any:
        if request[:1] == MARK and is_batch(context.invocation_metadata()):
            return await batched(request, context)
        call: Call | None = None
        claimed: Any = None
        began = replies.begin() if observed else 0.0
        try:
            call = engine.arrive(method, request, context, deserialize)
            if call.try_ms:
                shell.arrived(call, context)
            if room is not None:
                return await send(context, await placed(room, call, request, context, began))
            if bound.counts:
                return await send(context, await placed(unheard, call, request, context, began))
            claimed = claim(store, call, policy)
            if not isinstance(claimed, Attempt):
                claimed = await shell.drive(claimed, context)
            if isinstance(claimed, Attempt):
                started = start(store, claimed)
                status = await shell.shielded(
                    execute(request, context, started, call, began), context
                )
                if isinstance(status, bytes):
                    return status
            else:
                status = replies.status(method, call, claimed, began)
        except RiflError as refusal:
            status = replies.status(method, call, refusal, began)
        except asyncio.CancelledError:
            # gRPC's own context does not tell.
            if call is not None:
                call.gone = True
            if watches and isinstance(claimed, Attempt):
                unheard.caller_left(claimed, _remaining(context))
            raise
        return await send(context, status)

    return deduplicated


async def send(context: Any, status: SentReply) -> bytes:
    """Put an answer or a refusal on gRPC's context; returns the message, as ``sync.send``."""
    if status.initial_metadata:
        await context.send_initial_metadata(status.initial_metadata)
    if status.trailing_metadata:
        context.set_trailing_metadata(status.trailing_metadata)
    if status.code:
        context.set_code(STATUS_CODES[status.code])
        context.set_details(status.details)
    elif status.details:
        context.set_details(status.details)
    return status.response or b""


def _remaining(context: Any) -> float | None:
    remaining: float | None = context.time_remaining()
    return remaining
