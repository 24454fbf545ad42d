"""The items of a batch at the client: which are due again, and how each ended (DESIGN §3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rifl.core._calling.answer import AttemptAnswer, Step
from rifl.core._calling.batch_rpc import BatchRpc, EndedItem
from rifl.core._calling.client_session import ClientSession
from rifl.core._calling.invocation import Invocation
from rifl.core._calling.issued_call import IssuedCall
from rifl.core._calling.retry import shortened_s
from rifl.core._shared.errors import NotWrapped
from rifl.core._shared.invariant import invariant
from rifl.core._shared.outcome import Outcome


class BatchItems:
    """The part of ``BatchFlow`` that judges each item's answers, and ends it, once."""

    def __init__(
        self,
        session: ClientSession,
        invocation: Invocation,
        keys: Sequence[bytes | None],
    ) -> None:
        count = len(keys)
        self.ended: list[EndedItem | None] = [None] * count
        self.calls: list[IssuedCall | None] = [None] * count
        self.attempts = [0] * count
        self._session = session
        self._invocation = invocation
        self._keys = keys
        self._deadline = invocation.deadline
        # Positions not under way: when each may be sent, in their order.
        self._due: dict[int, float] = dict.fromkeys(range(count), invocation.started_at)
        # Why each was refused last: what its end is told with, if time runs out.
        self._refusals: dict[int, tuple[str, Any]] = {}
        # What granted the identity that an item had before.
        self._stores: dict[int, int] = {}
        self._left = count
        max_elapsed_s = session.retry.max_elapsed_s
        self._give_up_at = invocation.deadline
        if invocation.deadline is None and max_elapsed_s is not None:
            self._give_up_at = invocation.started_at + max_elapsed_s

    @property
    def ends_at(self) -> float | None:
        """After when nothing is begun: see ``CallFlow``."""
        return self._give_up_at

    def _judge(
        self,
        at: int,
        call: IssuedCall,
        rpc: BatchRpc,
        answer: AttemptAnswer,
        its: Any,
        now: float,
        jitter: float,
    ) -> None:
        session = self._session
        judgement = session.answered(call, answer, rpc.sent_at, jitter)
        if judgement.step is Step.RETURN:
            session.complete(call)
            self._end(at, EndedItem(judgement.outcome, answer=its))
        elif judgement.step is Step.NEW_IDENTITY:
            # An attempt like any other: see ``CallFlow.answered``.
            when = self._next_at(at, now, session.retry.backoff_s(self.attempts[at], jitter))
            if when is not None:
                self._stores[at] = call.lease.store
                self.calls[at] = None
                self._due[at] = when
            else:
                self._end(at, EndedItem(Outcome.NOT_EXECUTED, answer.reason, answer=its))
        elif (
            judgement.step is Step.RETRY
            and (when := self._next_at(at, now, judgement.after_s, judgement.least_s)) is not None
        ):
            self._due[at] = when
            if judgement.reason:
                self._refusals[at] = judgement.reason, its
        else:
            self._finish(call, judgement.resolvable, now)
            self._end(at, EndedItem(judgement.outcome, judgement.reason, answer=its))

    def _too_large(
        self, at: int, call: IssuedCall, rpc: BatchRpc, answer: AttemptAnswer, its: Any, now: float
    ) -> None:
        if answer.outcome is Outcome.UNKNOWN:
            call.may_have_run = True
        if len(rpc.items) > 1 and self._may_retry(at, now):
            self._due[at] = now
            return
        self._finish(call, call.may_have_run, now)
        self._end(at, EndedItem(self._unsent(at, call.may_have_run), answer.reason, answer=its))

    def _not_wrapped(self, rpc: BatchRpc, its: Any, now: float) -> None:
        for at, call in zip(rpc.items, rpc.calls, strict=True):
            call.may_have_run = True
            self._finish(call, True, now)
            self._end(at, EndedItem(Outcome.UNKNOWN, NotWrapped.reason, NotWrapped.code, its))
        # Sent there, the others would fare no better.
        self._end_all(NotWrapped.code, NotWrapped.reason, now)

    def _end_all(self, code: str, reason: str, now: float) -> None:
        """End whatever is not under way with a status of our own."""
        for at in list(self._due):
            call = self.calls[at]
            # Whatever its attempts were told, a copy of one may still run.
            sent = call is not None and self.attempts[at] > 0
            if call is not None:
                self._finish(call, sent, now)
            outcome = self._unsent(at, sent)
            last, its = ("", None) if reason else self._refusals.get(at, ("", None))
            self._end(at, EndedItem(outcome, reason or last, code, its))

    def _unsent(self, at: int, sent: bool = False) -> Outcome:
        """Return the outcome of an item that did not run here: see ``CallFlow``."""
        return Outcome.UNKNOWN if sent or self._keys[at] is not None else Outcome.NOT_EXECUTED

    def _finish(self, call: IssuedCall, resolvable: bool, now: float) -> None:
        if resolvable:
            self._session.abandon(call, now)
        else:
            self._session.complete(call)

    def _end(self, at: int, ended: EndedItem) -> None:
        invariant(self.ended[at] is None, "an item ends once")
        self.ended[at] = ended
        self._due.pop(at, None)
        self._left -= 1

    # -- times -------------------------------------------------------------------------

    def _over(self, rpc: BatchRpc) -> bool:
        # Our clock may be a tick behind gRPC's.
        return (
            self._deadline is not None
            and rpc.timeout_s is not None
            and rpc.sent_at + rpc.timeout_s >= self._deadline - 0.001
        )

    def _next_at(self, at: int, now: float, pause_s: float, least_s: float = 0.0) -> float | None:
        """When to send an item again: see ``CallFlow``."""
        if self._give_up_at is not None:
            left_s = self._give_up_at - now
            shorter_s = shortened_s(pause_s, left_s, least_s=least_s)
            if shorter_s is None:
                return None
            pause_s = shorter_s
        return now + pause_s if self._may_retry(at, now + pause_s) else None

    def _may_retry(self, at: int, when: float) -> bool:
        limit = self._session.retry.max_attempts
        return (limit is None or self.attempts[at] < limit) and (
            self._give_up_at is None or when < self._give_up_at
        )
