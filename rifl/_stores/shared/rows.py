"""Conditional rows of a shared store: this replica's side (DESIGN §6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rifl._stores.rows import Move, RowCall
from rifl._stores.shared.attempts import Attempts, of_shared
from rifl._stores.shared.backend import Backend, BackendError, NotCarriedOut
from rifl._stores.shared.heartbeat import Heartbeat
from rifl._stores.shared.refusing import Refusing
from rifl._stores.shared.requests import GetRows, MoveRows
from rifl._stores.shared.steps import Rule, Steps
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.policy import MethodPolicy
from rifl.core._shared.errors import RecordPending, StoreUnavailable

_AT_ONCE = 1000


class SharedRows:
    """``ConditionalRows`` over a ``Backend``: each move is one request."""

    def __init__(
        self,
        store_id: str,
        process: str,
        backend: Backend,
        attempts: Attempts,
        refusing: Refusing,
        heartbeat: Heartbeat,
    ) -> None:
        self.store_id = store_id
        self.process = process
        self._heartbeat = heartbeat
        self._backend = backend
        self._attempts = attempts
        self._refusing = refusing

    def beats(self, processes: Sequence[str]) -> list[int]:
        """Return of each replica how often it has beaten, 0 once its presence has ended."""
        try:
            Steps(self._backend, self._heartbeat.look()).wait()
        except BackendError as error:
            raise StoreUnavailable(f"the replicas cannot be read: {error}") from error
        return [self._heartbeat.beats(each) for each in processes]

    def get(self, keys: Iterable[str]) -> dict[str, bytes | None]:
        """Return what is durable."""
        wanted = list(keys)
        found: dict[str, bytes | None] = dict.fromkeys(wanted)
        try:
            for at in range(0, len(wanted), _AT_ONCE):
                found.update(self._backend.ask(GetRows(tuple(wanted[at : at + _AT_ONCE]))))
        except BackendError as error:
            raise StoreUnavailable(f"the rows cannot be read: {error}") from error
        return found

    def move(self, moves: Sequence[Move]) -> Steps:
        """Move rows in one request."""
        return Steps(self._backend, self._move(tuple(moves)))

    def begin(self, call: RowCall, policy: MethodPolicy) -> Attempt:
        """Begin a run."""
        if (refusal := self._refusing.refusal()) is not None:
            raise refusal
        return self._attempts.new(call, policy)

    def end(self, attempt: Attempt) -> None:
        """End a run."""
        self._attempts.settle(of_shared(attempt))

    def _move(self, moves: tuple[Move, ...]) -> Rule:
        if reason := self._refusing.weakness:
            raise StoreUnavailable(f"the store is not durable: {reason}")
        try:
            return (yield MoveRows(moves))
        except NotCarriedOut as error:
            raise StoreUnavailable(f"the rows were not moved: {error}") from error
        except BackendError as error:
            raise RecordPending(f"whether the rows were moved is not known: {error}") from error
