"""The store of a consumer whose state is in the log: there is no database beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NoReturn

from _rifl_ground.counting import Counts
from _rifl_ground.loans import Loan
from sharedlog._core.consumer.asked import Unit
from sharedlog._core.consumer.call_keys import drop_calls, keep_call, read_calls
from sharedlog._core.consumer.calls import HandlerCall
from sharedlog._core.consumer.checkpoint import Checkpoint
from sharedlog._core.consumer.members import Gone
from sharedlog._core.consumer.names import shard_fence
from sharedlog._core.errors import (
    InvalidRequest,
    LogError,
    LogStopped,
    LogUnavailable,
    StoreAway,
)
from sharedlog._core.fences import Fence
from sharedlog._core.position import Position
from sharedlog._core.steps import Rule
from sharedlog._engines.engine import Engine
from sharedlog._log.place import Place

# In place of a URL.
LOG = "log"
# Calls that one step lets go.
_PIECE = 32


class LogStore:
    """A store in the log: the keeper appends transactions, this keeps the calls alone (T6)."""

    def __init__(self, place: Place, name: str) -> None:
        """``name``: the consumer's."""
        self._place = place
        self._name = name
        # Of each shard the messages' places of the calls that are kept, by serial.
        self._kept: dict[str, dict[int, tuple[int, int]]] = {}

    def lane(self) -> LogStore:
        """Return itself: it has no transactions of its own."""
        return self

    def joined(self, _: Engine) -> None:
        """Return None: the log is elsewhere."""

    def take(self, tag: str, number: int, *, gone: Gone, anew: bool) -> NoReturn:
        """Never called: there is no row."""
        raise _nothing()

    def note(self, tag: str, number: int, attempts: int) -> NoReturn:
        """Never called."""
        raise _nothing()

    def rewind(self, tag: str, number: int, epoch: int, position: Position | None) -> NoReturn:
        """Never called: a reset is refused."""
        raise _nothing()

    def calls(self, tag: str) -> Sequence[HandlerCall]:
        """Return the kept calls of a shard, by their serials (T6)."""
        try:
            found = self._place.run(read_calls(self._name, tag, self._place.seals))
        except LogStopped:
            raise
        except LogUnavailable as error:
            raise StoreAway(str(error)) from error
        self._kept[tag] = {each.serial: each.position[:2] for each in found}
        return found

    def intend(self, tag: str, number: int, call: HandlerCall) -> None:
        """Keep a call, durably, apart from the transaction that runs."""
        self._kept.setdefault(tag, {})[call.serial] = call.position[:2]
        self._keep(tag, number, call)

    def answered(self, tag: str, number: int, call: HandlerCall) -> None:
        """Keep a call's answer, durably, if the fence has the number."""
        self._keep(tag, number, call)

    def written(self) -> None:
        """Do nothing: calls block no writer of the log, and are made at any time."""

    def suspend(self) -> None:
        """Do nothing: no other process waits for this transaction."""

    def resume(self, *, read: bool) -> None:
        """Do nothing: no other process has waited for this transaction."""

    def begin(self) -> None:
        """There is no connection."""

    def lend(self, loan: Loan) -> None:
        """There is no connection."""

    def take_back(self) -> None:
        """There is no connection."""

    def savepoint(self) -> AbstractContextManager[object]:
        """There is no database."""
        return contextlib.nullcontext()

    def sqlalchemy(self) -> NoReturn:
        """There is no SQL."""
        raise InvalidRequest("effects.sqlalchemy is for SQLite and PostgreSQL")

    def intact(self) -> None:
        """Do nothing: only the consumer can end a transaction."""

    def commit(self, tag: str, checkpoint: Checkpoint, _: Sequence[Unit] = ()) -> None:
        """The log has committed: the calls go that it has passed, but for the newest one (T6).

        Calls that cannot be removed now are removed later, or readers pass over them.
        """
        kept, position = self._kept.get(tag), checkpoint.position
        if not kept or position is None:
            return
        newest, place = max(kept), position[:2]
        passed = [each for each, at in kept.items() if each < newest and at <= place][:_PIECE]
        fence = Fence(shard_fence(self._name, tag), checkpoint.number)
        try:
            if passed:
                self._place.run(drop_calls(self._name, tag, fence, passed))
        except LogError:
            return
        for each in passed:
            del kept[each]

    def rollback(self) -> None:
        """What was changed is beside the state until it is committed."""

    def judge(self, error: BaseException) -> Counts:
        """What a handler raises is its own."""
        return True

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _keep(self, tag: str, number: int, call: HandlerCall) -> None:
        fence = Fence(shard_fence(self._name, tag), number)
        rule: Rule[None] = keep_call(self._name, tag, fence, call, self._place.seals)
        try:
            self._place.run(rule)
        except LogStopped:
            raise
        except LogUnavailable as error:
            raise StoreAway(str(error)) from error


def _nothing() -> AssertionError:
    return AssertionError("the log has the state, not a store")
