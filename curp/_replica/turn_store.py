"""The store of a group where calls wait for their turn on conflict keys, and leave it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from curp._core.conflict_keys import keys_of_all
from curp._core.key_locks import KeyLock
from curp._core.poison import RETRIED, case_of
from curp._replica.arrival import SharedLock, arrival_of, arrived
from curp._replica.proposals import Proposals
from curp._replica.role_store import RoleStore, wake_all
from rifl._stores.pending import Pending
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.later import AllLater, Later, Replies
from rifl.core._shared.errors import Deposed, StoreUnavailable


class TurnStore(RoleStore):
    """Lets a handler run when it is its turn, its client is known, and it is noted if it has to be.

    What calls are decided and recorded by is ``GroupStore``'s. Any thread.
    """

    def start(self, attempt: Attempt) -> Pending | None:
        """Wait for the turn on the call's conflict keys, and for its client to be known."""
        arrival = arrived(attempt)
        turn = arrival.turn = KeyLock(arrival.keys, reads=arrival.reads)
        with self._lock:
            proposals = self._own(attempt)
            # Counted from now: it may run as soon as it is woken.
            self._executing[attempt] = self._term
            pending = self._locks.stand(turn)
            registered = self._registered(proposals, attempt)
            notes = proposals.notes
            if not (attempt.call.attempt > 1 or notes.alert):
                return _after(registered, pending)
            watched = notes.watches(attempt.call, self._clock())
        pending = _after(registered, pending)
        return self._noted([attempt], pending) if watched else pending

    def _noted(self, attempts: Sequence[Attempt], turn: Pending | None) -> Pending:
        """Have calls noted when their turn has come; what is done when they may run."""
        noted = Pending()
        cases = {attempt: case_of(attempt.call, RETRIED) for attempt in attempts}

        def come(done: Pending | None = None) -> None:
            error = None if done is None else done.error
            if error is None:
                with self._lock:
                    try:
                        proposals = self._own(attempts[0])
                    except Deposed as deposed:
                        error = deposed
                    else:
                        proposals.notes.ask(noted, cases)
                        self.work.notify_all()
            if error is not None:
                noted.fail(error)

        if turn is None:
            come()
        else:
            turn.add_callback(come)
        return noted

    def _registered(self, proposals: Proposals, attempt: Attempt) -> Pending | None:
        pending = proposals.registered(attempt.call.client_id)
        if pending is not None:
            self.work.notify_all()
        return pending

    def start_all(self, attempts: Sequence[Attempt]) -> Replies | Later:
        """Wait for one turn on the keys of all.

        A turn each would have calls of a batch wait for one another, and they end
        together.
        """
        replies: list[Any] = [None] * len(attempts)
        arrivals = [arrived(attempt) for attempt in attempts]
        turn = KeyLock(
            keys_of_all(arrival.keys for arrival in arrivals),
            reads=all(arrival.reads for arrival in arrivals),
        )
        shared = SharedLock()
        with self._lock:
            for at, attempt in enumerate(attempts):
                try:
                    self._own(attempt)
                except Deposed as error:
                    replies[at] = error
                    continue
                self._executing[attempt] = self._term
                shared.attempts.add(attempt)
                arrivals[at].turn, arrivals[at].shared = turn, shared
            if not shared.attempts:
                return replies
            pending = self._locks.stand(turn)
            proposals = self._own(owned := next(iter(shared.attempts)))
            registered = self._registered(proposals, owned)
            come = self._one_suspect(proposals, shared, attempts, replies)
            watched = [
                attempt
                for attempt in shared.attempts
                if proposals.notes.watches(attempt.call, self._clock())
            ]
        wake_all(come)
        pending = _after(registered, pending)
        if watched:
            pending = self._noted(watched, pending)
        if pending is None:
            return replies
        return AllLater([pending if reply is None else reply for reply in replies])

    def _one_suspect(
        self,
        proposals: Proposals,
        shared: SharedLock,
        attempts: Sequence[Attempt],
        replies: list[Any],
    ) -> list[Pending]:
        """Refuse all but the first of a batch that has suspects: they run one at a time."""
        suspects = proposals.watch.suspects
        if not suspects or not any(each.call.rpc_id in suspects for each in shared.attempts):
            return []
        come: list[Pending] = []
        first = True
        for at, attempt in enumerate(attempts):
            if attempt not in shared.attempts:
                continue
            if not first:
                replies[at] = StoreUnavailable(
                    "a leader died running some of this batch: they run one at a time"
                )
                come += self._give_back(attempt)
            first = False
        return come

    # -- under the lock -------------------------------------------------------------------

    def _own(self, attempt: Attempt) -> Proposals:
        """Return what its leadership places, if the attempt is of this one."""
        proposals = self._proposals
        # One of an earlier leadership is ended, and its state is gone.
        if attempt.ended or proposals is None:
            self._executing.pop(attempt, None)
            raise Deposed("the leader was deposed with the call under way")
        return proposals

    def _give_back(self, attempt: Attempt) -> list[Pending]:
        """End an attempt's turn, where it is its own; who is to be woken."""
        self._executing.pop(attempt, None)
        if (proposals := self._proposals) is not None and proposals.notes.any:
            proposals.notes.ended(attempt)
            self.work.notify_all()
        arrival = arrival_of(attempt.call)
        turn, shared = arrival.turn, arrival.shared
        if turn is None or attempt.ended:
            return []
        if shared is not None:
            shared.attempts.discard(attempt)
            if shared.attempts:
                return []
        return self._locks.leave(turn)


def _after(first: Pending | None, second: Pending | None) -> Pending | None:
    """Return what is done when both are; None if there is nothing to wait for."""
    if first is None or second is None:
        return first or second
    both = Pending()

    def ended(last: Pending) -> None:
        if last.error is not None:
            both.fail(last.error)
        else:
            both.succeed()

    def after_first(done: Pending) -> None:
        if done.error is not None:
            both.fail(done.error)
        else:
            second.add_callback(ended)

    first.add_callback(after_first)
    return both
