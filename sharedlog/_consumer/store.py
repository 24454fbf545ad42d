"""The interface of a consumer's store, and what its failures mean."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from _rifl_ground.counting import Counts
from _rifl_ground.loans import Loan
from sharedlog._consumer.joined_append import Together
from sharedlog._core.consumer.asked import PartialTransaction, Unit
from sharedlog._core.consumer.calls import HandlerCall
from sharedlog._core.consumer.checkpoint import Checkpoint
from sharedlog._core.consumer.members import Gone
from sharedlog._core.position import Position
from sharedlog._engines.engine import Engine


class StoreLane(Protocol):
    """A lane of one process to the database that the effects are in: one transaction at a time.

    Raises ``StoreAway`` if the database does not answer (it can be used again then), ``Fenced``
    for a number that is not the shard's, ``Failed`` for a commit that did not happen.
    """

    def lane(self) -> StoreLane | None:
        """Return another lane, with concurrent transactions; None: the store cannot have one.

        Both have the same shards: what one has found out of a shard the other knows. A shard is
        in one lane at a time.
        """

    def joined(self, engine: Engine) -> Together | None:
        """Return how this and the log of an engine commit together; None: they do not."""

    def take(self, tag: str, number: int, *, gone: Gone, anew: bool) -> Checkpoint:
        """Set the shard's fence to the number, if it is lower, and return the checkpoint."""

    def note(self, tag: str, number: int, attempts: int) -> None:
        """Note attempts, durably, if the fence has the number."""

    def rewind(self, tag: str, number: int, epoch: int, position: Position | None) -> None:
        """Set the position in a new epoch, if the fence has the number."""

    def calls(self, tag: str) -> Sequence[HandlerCall]:
        """Return the kept calls of a shard, by their serials (T6)."""

    def intend(self, tag: str, number: int, call: HandlerCall) -> None:
        """Keep a call, durably, if the fence has the number; also if the transaction that runs is
        rolled back.
        """

    def answered(self, tag: str, number: int, call: HandlerCall) -> None:
        """Keep a call's answer, as ``intend``."""

    def written(self) -> int | None:
        """Return a number that grows as handlers write; None: calls may be made at any time.

        Else the database has one writer: a call is made only if nothing was written since
        ``begin``, and between ``suspend`` and ``resume``.
        """

    def suspend(self) -> None:
        """Let other writers in while a service is called: the transaction has written nothing."""

    def resume(self, *, read: bool) -> None:
        """Go on with it. ``read``: raise ``Failed`` if others have written since it was begun."""

    def begin(self) -> object:
        """Begin a transaction."""

    def lend(self, loan: Loan) -> Any:
        """Return the connection that a handler uses in it, until the loan is over."""

    def take_back(self) -> None:
        """End the loan: what was lent raises ``HandlerEnded``, in every task and thread.

        Waits for a statement that is in flight, for a while; then closes the connection. Does not
        fail; idempotent.
        """

    def sqlalchemy(self) -> Any:
        """Return a ``sqlalchemy.Connection`` of the transaction that runs, until ``take_back``."""

    def savepoint(self) -> AbstractContextManager[object]:
        """Return a context manager that rolls its block back if an exception leaves it."""

    def intact(self) -> None:
        """Raise ``Failed`` if a handler has ended the transaction."""

    def commit(
        self, tag: str, checkpoint: Checkpoint, units: Sequence[Unit] = ()
    ) -> PartialTransaction | None:
        """Commit with the checkpoint, if the fence has its number; begins if nothing has.

        ``units``: see ``CommitStore``. Returns None if all of it is committed.
        """

    def rollback(self) -> None:
        """Roll back the transaction, if there is one; does not fail."""

    def judge(self, error: BaseException) -> Counts:
        """Return whether a handler's error counts as an attempt, without the errors it wraps."""

    def close(self) -> None:
        """Close it; idempotent."""
