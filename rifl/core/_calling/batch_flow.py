"""The flow of a batch of calls at the client, from begin to end (DESIGN §3, §4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from _rifl_ground.refusals import Outcome
from rifl.core._calling.answer import AttemptAnswer, Step
from rifl.core._calling.batch_rpc import BatchAction, BatchLimits, BatchRpc, EndedItem
from rifl.core._calling.client_lease import ClientLease
from rifl.core._calling.client_session import ClientSession
from rifl.core._calling.invocation import Invocation
from rifl.core._calling.issued_call import IssuedCall
from rifl.core._calling.retry import TICK_S, shortened_s
from rifl.core._shared.errors import (
    BadHeader,
    BatchTooLarge,
    NotDeduplicated,
    NotWrapped,
    RiflError,
    StoreMismatch,
    WindowExceeded,
)
from rifl.core._shared.invariant import invariant

# Errors that a server which is not wrapped gives where it cannot parse the envelope;
# transports give them, too, but not so often in a row.
_UNPARSED_CODES = frozenset({"INTERNAL", "UNKNOWN"})
_UNPARSED_IN_A_ROW = 3
_NOTHING: Sequence[tuple[int, int]] = ()


class BatchFlow:
    """Decides what happens to the items of a batch; a shell does it.

    A shell calls ``step`` and does what the returned action says, again and again.
    One RPC is in flight at a time; it carries the items that are due, in their
    order, as far as ``limits`` and the window allow. Each item keeps its identity and
    the batch's stamp for all its attempts; those without a final answer are sent
    again, and only those. At the end of each its identity is acknowledged, or set aside
    as unresolved, and ``ended`` says how it ended.

    Invariants:

    1. An item ends once.
    2. An RPC carries identities of one client id.

    No I/O and no clock; serialised by the shell, together with its session.
    """

    def __init__(
        self,
        session: ClientSession,
        invocation: Invocation,
        sizes: Sequence[int],
        keys: Sequence[bytes | None],
        limits: BatchLimits,
    ) -> None:
        """``sizes`` and ``keys`` are the items', in bytes and in their order."""
        count = len(keys)
        self.ended: list[EndedItem | None] = [None] * count
        self.calls: list[IssuedCall | None] = [None] * count
        self.attempts = [0] * count
        self._session = session
        self._invocation = invocation
        self._keys = keys
        self._deadline = invocation.deadline
        # Positions not in flight: when each may be sent, in their order.
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
        self.rpc: BatchRpc | None = None
        self.wake_at: float | None = None
        self._sizes = sizes
        self._limits = limits
        self._sent: set[IssuedCall] = set()
        self._unparsed = 0
        # Items of which another attempt needs a token, whether there is one for the next RPC,
        # and whether one was asked for in vain.
        self._costly: set[int] = set()
        self._paid = False
        self._waits = False

    def step(self, now: float, target: int = 0, *, connected: bool = True) -> BatchAction:
        """Decide what comes next. ``target``: where an RPC would go; else see ``CallFlow``."""
        invariant(self.rpc is None, "one RPC is in flight at a time")
        self.wake_at = None
        if self._left and self._deadline is not None and now >= self._deadline:
            self._end_all("DEADLINE_EXCEEDED", "", now)
        if self._left:
            self._check(now)
        if not connected:
            self._costly.clear()
        waits = self._left and not self._pay(now, target)
        if waits and self._give_up_at is not None and now >= self._give_up_at:
            self._end_all("UNAVAILABLE", "", now)
        if not self._left:
            return BatchAction.DONE
        items, wanting = self._load(now)
        if items:
            return self._send(items, now)
        if wanting is None:
            self.wake_at = _earliest(min(self._due.values()), self._deadline)
            return BatchAction.PAUSE
        if self._give_up_at is not None and now >= self._give_up_at:
            window = wanting is BatchAction.WINDOW
            code = WindowExceeded.code_name if window else "UNAVAILABLE"
            self._end_all(code, WindowExceeded.reason if window else "", now)
            return BatchAction.DONE
        self.wake_at = self._give_up_at
        if wanting is BatchAction.WINDOW:
            self.wake_at = _earliest(self._give_up_at, self._session.unresolved_until())
        return wanting

    def answered(
        self, answers: Sequence[tuple[AttemptAnswer, Any]], now: float, jitter: float
    ) -> None:
        """Take the answer to ``rpc``: one for each item, each with what the shell makes of it."""
        rpc = self._end_leg()
        self._unparsed = 0
        session = self._session
        for at, call, (answer, its) in zip(rpc.items, rpc.calls, answers, strict=True):
            if answer.reason == BatchTooLarge.reason:
                # It is recorded, and did not fit the message with the others' answers.
                self._too_large(at, call, rpc, answer, its, now)
                continue
            if answer.code == "OK" and answer.outcome is not None:
                if call.key is None:
                    session.complete(call)
                else:
                    session.answered_by_key()
                self._end(at, EndedItem(answer.outcome, answer=its))
                continue
            self._judge(at, call, rpc, answer, its, now, jitter)
        # Whatever it says of the items, it took the batch.
        rpc.calls[0].lease.accepted(rpc.sent_at)

    def refused(self, answer: AttemptAnswer, its: Any, now: float, jitter: float) -> None:
        """Take an RPC that failed as a whole: it is the answer to each item."""
        rpc = self._end_leg()
        if answer.outcome is None and not answer.reason and answer.code in _UNPARSED_CODES:
            self._unparsed += 1
        else:
            self._unparsed = 0
        if self._unparsed >= _UNPARSED_IN_A_ROW:
            self._not_wrapped(rpc, its, now)
            return
        too_large = answer.reason == BatchTooLarge.reason
        if too_large or answer.too_long:
            for at, call in zip(rpc.items, rpc.calls, strict=True):
                # What was too large may have been the answer.
                call.may_have_run = call.may_have_run or not too_large
                self._too_large(at, call, rpc, answer, its, now)
            self._limits.refused(len(rpc.items), sum(self._sizes[at] for at in rpc.items))
            return
        if answer.code == "DEADLINE_EXCEEDED" and answer.outcome is None and self._over(rpc, now):
            for call in rpc.calls:
                call.may_have_run = True
            self._due.update(dict.fromkeys(rpc.items, now))
            self._end_all("DEADLINE_EXCEEDED", "", now)
            return
        for at, call in zip(rpc.items, rpc.calls, strict=True):
            self._judge(at, call, rpc, answer, its, now, jitter)

    def overdue(self, now: float, target: int, *, connected: bool) -> float | None:
        """Return None if the RPC in flight must be cut, as ``CallFlow`` says, else when to ask.

        ``target``: where the next one would go. Not ``connected``: this one has no connection.
        """
        rpc = self.rpc
        invariant(rpc is not None, "an RPC was in flight")
        again = any(self._may_retry(at, now) for at in rpc.items)  # type: ignore[union-attr]
        if not again or not connected or self._paid or self._take_token(now, target):
            self._paid = True
            return None
        return self._session.look_at(target, now)

    def unreadable(self, its: Any, now: float) -> None:
        """Handle an answer that is none to a batch: the server does not deduplicate."""
        self._not_wrapped(self._end_leg(), its, now)

    def cancelled(self, code: str, now: float) -> None:
        """End all items because the caller stopped waiting.

        At any step of the others, which an interrupt may have left half done.
        """
        if self.rpc is not None:
            for call in self._end_leg().calls:
                call.may_have_run = True
        open_ = [at for at, ended in enumerate(self.ended) if ended is None]
        self._due = dict.fromkeys(open_, now)
        self._end_all(code, "", now)

    def lease_refused(self, answer: AttemptAnswer, its: Any) -> None:
        """End all items without an identity, since there will be no lease."""
        reason = answer.reason
        if not reason and answer.code == "UNIMPLEMENTED":
            reason = NotDeduplicated.reason
        for at in list(self._due):
            if self.calls[at] is None:
                known = reason == NotDeduplicated.reason
                outcome = Outcome.NOT_EXECUTED if known else self._unsent(at)
                self._end(at, EndedItem(outcome, reason, answer=its))

    # -- items: each answer is judged, and each ends once ------------------------------

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
            if not answer.sends_on:
                self._costly.add(at)
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
            self._end(at, EndedItem(Outcome.UNKNOWN, NotWrapped.reason, NotWrapped.code_name, its))
        # Sent there, the others would fare no better.
        self._end_all(NotWrapped.code_name, NotWrapped.reason, now)

    def _end_all(self, code: str, reason: str, now: float) -> None:
        """End all items that are not in flight with a status of the client's own."""
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
            call.method = self._invocation.method
            self._session.abandon(call, now)
        else:
            self._session.complete_unanswered(call)

    def _end(self, at: int, ended: EndedItem) -> None:
        invariant(self.ended[at] is None, "an item ends once")
        self.ended[at] = ended
        self._due.pop(at, None)
        self._left -= 1

    # -- times -------------------------------------------------------------------------

    def _over(self, rpc: BatchRpc, now: float) -> bool:
        # As in ``CallFlow.answered``.
        if self._deadline is None or rpc.timeout_s is None:
            return False
        return now >= self._deadline - TICK_S

    # -- the budget --------------------------------------------------------------------

    def _pay(self, now: float, target: int) -> bool:
        """Have a token for items that are due and need one; False: they wait, looking later."""
        costly = [at for at in self._costly if self._due.get(at, math.inf) <= now]
        if not costly or self._paid:
            return True
        self._paid = self._take_token(now, target)
        if not self._paid:
            look_at = self._session.look_at(target, now)
            if self._give_up_at is not None:
                look_at = min(look_at, self._give_up_at)
            self._due.update(dict.fromkeys(costly, look_at))
        return self._paid

    def _take_token(self, now: float, target: int) -> bool:
        waits, self._waits = self._waits, True
        if not self._session.may_send(self._invocation.method, target, now, waits=waits):
            return False
        self._waits = False
        return True

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

    # -- loading -----------------------------------------------------------------------

    def _check(self, now: float) -> None:
        """End what can never be sent."""
        lease = self._session.lease
        fresh = [at for at in self._due if self.calls[at] is None]
        if not fresh or lease is None or not self._session.usable(now):
            return
        for at in fresh:
            if self._session.of_another_store(self._stores.get(at, 0)):
                reason, code = StoreMismatch.reason, StoreMismatch.code_name
                self._end(at, EndedItem(Outcome.UNKNOWN, reason, code))
        fresh = [at for at in fresh if at in self._due]
        if self._invocation.method not in lease.methods:
            # Sent all the same, the envelope would reach a handler.
            refusal: type[RiflError] = NotDeduplicated
        elif self._session.named and not all(self._keys[at] for at in fresh):
            refusal = BadHeader
        else:
            return
        for at in fresh:
            self._end(at, EndedItem(Outcome.NOT_EXECUTED, refusal.reason, refusal.code_name))

    def _load(self, now: float) -> tuple[list[int], BatchAction | None]:
        """Choose the items of the next RPC, and issue identities to those that have none.

        If there are none, also what those that are due wait for.
        """
        items: list[int] = []
        lease: ClientLease | None = None
        wanting: BatchAction | None = None
        left_items, left_bytes = self._limits.max_items, self._limits.max_bytes
        for at in sorted(self._due):
            if self._due[at] > now:
                continue
            if items and (not left_items or self._sizes[at] > left_bytes):
                break
            call = self.calls[at]
            if call is None:
                if wanting is not None and self._keys[at] is None:
                    continue
                try:
                    call = self.calls[at] = self._issue(at, now)
                except WindowExceeded:
                    wanting = BatchAction.WINDOW
                    continue
                if call is None:
                    wanting = BatchAction.LEASE
                    continue
            if lease is None:
                lease = call.lease
            elif call.lease is not lease:
                continue
            items.append(at)
            left_items -= 1
            left_bytes -= self._sizes[at]
        return items, wanting

    def _issue(self, at: int, now: float) -> IssuedCall | None:
        key = self._keys[at]
        if key is None:
            return self._session.begin(self._invocation.stamp, now)
        return self._session.begin_keyed(key, self._invocation.stamp, now)

    def _send(self, items: list[int], now: float) -> BatchAction:
        calls: list[IssuedCall] = []
        attempt = 1
        for at in items:
            del self._due[at]
            self.attempts[at] += 1
            call: IssuedCall = self.calls[at]  # type: ignore[assignment]
            if call in self._sent:
                call.attempt += 1
                attempt = max(attempt, call.attempt)
            calls.append(call)
        if not self._costly.isdisjoint(items):
            self._costly.difference_update(items)
            self._paid = False
        self._sent.update(calls)
        first_incomplete, completed = 1, _NOTHING
        if any(call.key is None for call in calls):
            first_incomplete, completed = self._session.acknowledgements(calls[0].lease)
        remaining = None if self._deadline is None else max(self._deadline - now, 0.0)
        limit = self._session.retry.attempt_timeout_s
        cut_at = None
        if limit is not None and (remaining is None or limit < remaining):
            cut_at = now + limit
        self.rpc = BatchRpc(
            items, calls, attempt, first_incomplete, completed, remaining, now, cut_at
        )
        return BatchAction.SEND

    def _end_leg(self) -> BatchRpc:
        rpc, self.rpc = self.rpc, None
        invariant(rpc is not None, "an RPC was in flight")
        return rpc  # type: ignore[return-value]


def _earliest(*times: float | None) -> float | None:
    return min((time for time in times if time is not None), default=None)
