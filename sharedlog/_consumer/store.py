"""The interface of a consumer's store, and what its failures mean."""

from __future__ import annotations

from typing import Any, Protocol

from sharedlog._core.consumer.checkpoint import Checkpoint


class Store(Protocol):
    """One process's way to the database that the effects are in. One thread.

    Raises ``StoreUnavailable`` where the database does not answer (it is used again then),
    ``Fenced`` for a number that is not the shard's, ``Failed`` for a commit that did not happen.
    """

    def take(self, tag: str, number: int, *, died: bool, anew: bool) -> Checkpoint:
        """Set the shard's fence to the number, if it is lower, and return the checkpoint."""

    def note(self, tag: str, number: int, attempts: int) -> None:
        """Note attempts, durably, where the fence is the number."""

    def begin(self) -> Any:
        """Begin a transaction, and return the connection that handlers use."""

    def intact(self) -> None:
        """Raise ``Failed`` where a handler has ended the transaction."""

    def commit(self, tag: str, checkpoint: Checkpoint) -> None:
        """Commit, with the checkpoint, where the fence is its number; begins if nothing has."""

    def rollback(self) -> None:
        """Undo what was begun, if something was; does not fail."""

    def fault(self, error: BaseException) -> bool:
        """Whether an error that a handler raised is the database's affair, and not its own."""

    def close(self) -> None:
        """Let go of it; idempotent."""
