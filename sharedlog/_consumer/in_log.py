"""The store of a consumer whose state is in the log: there is no database beside it."""

from __future__ import annotations

from typing import NoReturn

from sharedlog._core.consumer.calls import Call
from sharedlog._core.consumer.checkpoint import Checkpoint
from sharedlog._core.position import Position

# In place of a URL.
LOG = "log"


class NoStore:
    """See ``Store``. What a transaction has, its keeper appends; nothing is to be done here."""

    def take(self, tag: str, number: int, *, died: bool, anew: bool) -> NoReturn:
        """Never called: there is no row."""
        raise _nothing()

    def note(self, tag: str, number: int, attempts: int) -> NoReturn:
        """Never called."""
        raise _nothing()

    def rewind(self, tag: str, number: int, epoch: int, position: Position | None) -> NoReturn:
        """Never called: a reset is refused."""
        raise _nothing()

    def calls(self, tag: str) -> tuple[()]:
        """None are made."""
        return ()

    def intend(self, tag: str, number: int, call: Call) -> NoReturn:
        """Never called."""
        raise _nothing()

    def answered(self, tag: str, number: int, call: Call) -> NoReturn:
        """Never called."""
        raise _nothing()

    def written(self) -> None:
        """Nobody waits for it."""

    def suspend(self) -> None:
        """Nobody waits for it."""

    def resume(self, *, read: bool) -> None:
        """Nobody has waited for it."""

    def begin(self) -> None:
        """There is no connection."""

    def intact(self) -> None:
        """Nobody but the consumer ends a transaction."""

    def commit(self, tag: str, checkpoint: Checkpoint) -> NoReturn:
        """Never called."""
        raise _nothing()

    def rollback(self) -> None:
        """What was changed is beside the state until it is committed."""

    def fault(self, error: BaseException) -> bool:
        """What a handler raises is its own."""
        return False

    def close(self) -> None:
        """There is nothing to let go of."""


def _nothing() -> AssertionError:
    return AssertionError("the log has the state, not a store")
