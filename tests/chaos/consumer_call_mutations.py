"""Rules of DESIGN-LOG §14, T6, each broken on purpose: the calls of a consumer's handlers."""

from __future__ import annotations

import itertools
import unittest.mock
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from chaos.sim.consumer.server_store import ServerStore
from chaos.sim.consumer.sqlite_store import FileStore
from sharedlog._consumer import calling, kept_calls
from sharedlog._consumer.calling import MessageCalls
from sharedlog._core.consumer.asked import Failed
from sharedlog._core.consumer.calls import HandlerCall, Intend, SendCall, ShardCalls
from sharedlog._core.errors import CallMismatch

__all__ = ["BROKEN"]

_Patch = AbstractContextManager[Any]
_patched = unittest.mock.patch.object


def sent_before_noted() -> _Patch:
    """A call is in the store once it was answered."""
    original = ShardCalls.make

    def make(self: ShardCalls, *given: Any) -> Any:
        rule = original(self, *given)
        late: Intend | None = None
        answer: Any = None
        while True:
            try:
                step = rule.send(answer)
            except StopIteration as stop:
                return stop.value
            if isinstance(step, Intend):
                late, answer = step, None
                continue
            answer = yield step
            if isinstance(step, SendCall) and late is not None:
                yield late
                late = None

    return _patched(ShardCalls, "make", make)


def answer_not_durable() -> _Patch:
    """A handler has an answer that is in no store."""

    def asked(self: ShardCalls, send: SendCall) -> Any:
        call = send.call._replace(answer=(yield send))
        self._keep(call)
        return call

    return _patched(ShardCalls, "_asked", asked)


def unanswered_committed() -> _Patch:
    """A handler that does not look at a call's error commits."""
    return _patched(MessageCalls, "check", lambda self: None)


def forgotten_sent_again() -> _Patch:
    """A service that has forgotten a session is sent its calls again."""

    def same(self: ShardCalls, call: HandlerCall, timeout_s: float | None = None) -> Any:
        yield from ()

    return _patched(ShardCalls, "_same", same)


def key_of_its_own() -> _Patch:
    """Each sending of a call has a key of its own."""
    count = itertools.count()
    return _patched(HandlerCall, "key", property(lambda self: f"{next(count)}".encode()))


def let_go_by_time() -> _Patch:
    """An answer is kept for so long, and no longer."""
    kept_s = 0.3
    at: dict[tuple[Any, str, int], float] = {}

    def breaking(store: Any) -> AbstractContextManager[Any]:
        read, keep = store.calls, store.answered

        def answered(self: Any, tag: str, number: int, call: HandlerCall) -> None:
            keep(self, tag, number, call)
            at[self._database, tag, call.serial] = self._cast.loop.now

        def calls(self: Any, tag: str) -> Any:
            now = self._cast.loop.now
            return [
                each._replace(answer=None)
                if now - at.get((self._database, tag, each.serial), now) > kept_s
                else each
                for each in read(self, tag)
            ]

        stack = ExitStack()
        stack.enter_context(_patched(store, "answered", answered))
        stack.enter_context(_patched(store, "calls", calls))
        return stack

    stack = ExitStack()
    for each in (FileStore, ServerStore):
        stack.enter_context(breaking(each))
    return stack


def mismatch_retried() -> _Patch:
    """A handler that calls with something else is tried again, as any that fails."""
    original = calling._end

    def end(error: BaseException) -> BaseException:
        found = original(error)
        if isinstance(error, CallMismatch) and isinstance(found, Failed):
            return Failed(found.why, counts=True)
        return found

    return _patched(calling, "_end", end)


def reset_in_the_same_epoch() -> _Patch:
    """What is done again, as an operator has said, makes the calls that were made before."""
    original = kept_calls.series_of
    return _patched(
        kept_calls,
        "series_of",
        lambda name, tag, epoch, incarnation: original(name, tag, 0 * epoch, incarnation),
    )


# What it is, where it stands, how it is broken, and the first seed that shows it.
BROKEN: tuple[tuple[str, str, Callable[[], _Patch], int], ...] = (
    ("a call sent before it is noted", "§14: T6", sent_before_noted, 1),
    ("an answer used before it is durable", "§14: T6", answer_not_durable, 34),
    ("a commit with an unanswered call", "§14: T6", unanswered_committed, 1),
    ("a call sent to who has forgotten it", "§14: T6", forgotten_sent_again, 1),
    ("answers let go by time", "§14: T6", let_go_by_time, 34),
    ("a mismatch retried", "§14: T6", mismatch_retried, 5),
    ("a reset without a new epoch", "§14: T6", reset_in_the_same_epoch, 38),
    ("a call keyed by its sending", "§14: T6", key_of_its_own, 2),
)
