"""The driving of a target's rules on an event loop (DESIGN-LOG §15)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from _rifl_ground.threads import in_thread
from rifl._server.local_calls import Attempt, NotFound, RiflError, ServerHandlers
from sharedlog._core.position import Position
from sharedlog._core.target_index import Feed
from sharedlog._core.target_steps import (
    Await,
    DeliveryAnswer,
    FetchRows,
    HandlerKind,
    MoveTargetRows,
    RunHandler,
    TellPlayer,
)
from sharedlog._target.target import (
    Seats,
    ServedTarget,
    Steps,
    ended_of,
    interceptor_failed,
    not_revoked,
    refused,
    unavailable,
)


class AioRules:
    """Carries out the rules of one target: its seats, and the handlers that run at once."""

    def __init__(self, target: ServedTarget) -> None:
        self.target = target
        self.seats: Seats[asyncio.Lock] = Seats(asyncio.Lock)
        self.slots = asyncio.Semaphore(target.limits.concurrency)

    async def drive(
        self,
        rule: Steps,
        context: Any,
        handlers: ServerHandlers | None,
        tell: Callable[[DeliveryAnswer], None],
    ) -> Any:
        """Carry a rule out; returns what it does."""
        target = self.target
        # Runs of plain handlers, which go on until the index says that they have ended.
        runs: list[Attempt] = []
        value: Any = None
        error: Exception | None = None
        try:
            while True:
                step = rule.send(value) if error is None else rule.throw(error)
                value, error = None, None
                try:
                    if isinstance(step, RunHandler):
                        value = await self._run(step, context, handlers, runs)
                    elif isinstance(step, MoveTargetRows):
                        value = await _moved(target.put(step))
                        self._end(runs)
                    elif isinstance(step, Await):
                        value = await _committed(step)
                        self._end(runs)
                    elif isinstance(step, FetchRows):
                        value = await in_thread(target.fetch, step)
                    elif isinstance(step, TellPlayer):
                        target.note(step.answer)
                        tell(step.answer)
                except Exception as failed:  # noqa: BLE001 - the rule's to judge
                    error = failed
        except StopIteration as stop:
            return stop.value
        finally:
            self._end(runs)

    async def abandon(self, feed: Feed, tag: str, place: Position) -> None:
        """Revoke the run of a message that its player passes over, if it runs; then abandon it.

        Raises ``TargetUnavailable``: it cannot be passed over now.
        """
        call = self.seats.hanging(feed, tag, place)
        if call is not None:
            if not await self.target.calls.revoke_async(call):
                raise not_revoked()
            self.seats.abandon(feed, tag, place)

    async def _run(self, step: RunHandler, context: Any, handlers: Any, runs: list[Attempt]) -> Any:
        target, called = self.target, step.called
        calls = target.calls
        policy: Any = calls.policy(called.method)
        call = target.call_of(step)
        with self.seats.running(step.delivery, call):
            try:
                handler = await calls.find_async(handlers, called.method, target.metadata_of(step))
            except NotFound as error:
                raise refused(error) from error
            except Exception as error:  # noqa: BLE001 - whatever a user's interceptor raises
                return interceptor_failed(error)
            try:
                transport = target.transport(context, step)
                ran, attempt = await calls.run_async(
                    handler, called.content.body, transport, call, policy
                )
            except NotFound as error:
                raise refused(error) from error
            except RiflError as error:
                raise unavailable(error) from error
        runs.append(attempt)
        # Of a plain one the index has to say so first; of one that commits, whatever it comes to.
        if called.kind is not HandlerKind.PLAIN and ran.committing is None:
            self._end(runs)
        return ended_of(ran)

    def _end(self, runs: list[Attempt]) -> None:
        while runs:
            self.target.rows.end(runs.pop())


async def _committed(step: Await) -> tuple[int, str]:
    for at, each in enumerate(step.committing):
        try:
            if await each is None:
                return at, "the transaction was rolled back"
        except RiflError as error:
            return at, str(error)
    return len(step.committing), ""


async def _moved(later: Any) -> Any:
    try:
        return await later
    except RiflError as error:
        raise unavailable(error) from error
