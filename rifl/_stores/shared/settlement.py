"""The end of this replica's attempts over a shared store: recorded, new again, or owed."""

from __future__ import annotations

from collections.abc import Callable

from _rifl_ground.log import get_logger
from _rifl_ground.refusals import Outcome
from rifl._stores.codec import RecordCodec
from rifl._stores.errors import WrongDatabase
from rifl._stores.rows import RowCall
from rifl._stores.shared.attempts import Attempts, SharedAttempt, of_shared
from rifl._stores.shared.backend import BackendError
from rifl._stores.shared.heartbeat import Heartbeat
from rifl._stores.shared.refusing import Refusing
from rifl._stores.shared.requests import (
    Abandon,
    Claim,
    Claimed,
    Ending,
    Finish,
    Finished,
    FinishUnclaimed,
    Found,
    GetRows,
    Look,
    MoveInside,
    RecordUnclaimed,
    Written,
)
from rifl._stores.shared.steps import Rule
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.policy import Kind
from rifl.core._shared.errors import (
    InProgress,
    OutcomeUnknown,
    RecordPending,
    StaleRpc,
    StoreUnavailable,
)
from rifl.core._shared.identity import DEFAULT_WINDOW
from rifl.core._shared.record import CompletionRecord

_log = get_logger("rifl.store")


def check_left(reply: Claimed, request: Claim) -> None:
    """Raise unless an attempt was left: another session may have held its row for too long.

    It is still there then, its replica's, and does not run: callers that wait for it go on waiting.
    """
    if reply.found is Found.RUNNING and reply.token == request.take_over:
        raise BackendError(f"the row of {request.call.rpc_id} is locked by another session")


_ATOMIC, _DONE, _UNKNOWN = Kind.ATOMIC, Ending.DONE, Outcome.UNKNOWN


class AttemptSettlement:
    """How attempts end: what a handler did is recorded, or the call is new again.

    An attempt is settled when the store says what stands; where it does not answer, it is
    asked again in the background until it does, and the attempt is owed.

    ``observe`` hears when a record's write began, and its error if it failed.
    """

    def __init__(
        self,
        attempts: Attempts,
        heartbeat: Heartbeat,
        refusing: Refusing,
        codec: RecordCodec,
        *,
        clock: Callable[[], float],
        observe: Callable[..., None],
    ) -> None:
        self.window = DEFAULT_WINDOW
        self._attempts = attempts
        self._heartbeat = heartbeat
        self._refusing = refusing
        self._codec = codec
        self._clock = clock
        self._observe = observe

    def finish(self, attempt: Attempt, record: CompletionRecord) -> Rule:
        """Rule: make the record durable; returns what stands, None if that is the record."""
        mine, call = of_shared(attempt), attempt.call
        kept, stored = self._codec.of_a_run(record, call)
        unknown = kept.outcome is _UNKNOWN
        request: Finish | FinishUnclaimed
        if mine.unclaimed:
            call.asked = True
            request = FinishUnclaimed(call, mine.token, mine.owner, stored, self.window, unknown)
        else:
            request = Finish(call, mine.token, stored, unknown, mine.left)
        began = self._clock()
        try:
            self._check_durable()
            reply: Finished = yield request
            self._observe(began)
        except BackendError as error:
            self._observe(began, error)
            self._attempts.owe(mine)
            self._heartbeat.insist(self.until_settled(attempt, request))
            raise RecordPending(
                f"the call ran, but its record is not durable yet: {error}"
            ) from error
        self.settle(attempt)
        standing = self._standing(attempt, reply)
        if standing is not None and mine.unclaimed and standing.outcome is Outcome.NOT_EXECUTED:
            raise OutcomeUnknown(f"{attempt.call.rpc_id} has run, but was settled as not executed")
        return standing or (None if kept is record else kept)

    def committed(self, attempt: Attempt) -> Rule:
        """Rule: return the record that the handler's transaction left, None if it left none."""
        if isinstance(attempt.call, RowCall):
            return (yield from self._moved(attempt.call))
        try:
            reply: Finished = yield Look(attempt.call, of_shared(attempt).token)
        except BackendError as error:
            # Committed or not, the store knows: if not, the call is new again.
            self._attempts.owe(of_shared(attempt))
            self._heartbeat.insist(self.abandon(attempt))
            raise RecordPending(f"whether the call committed is not known yet: {error}") from error
        if reply.ending is Ending.FENCED:
            self.settle(attempt)
            raise InProgress(f"{attempt.call.rpc_id} was taken over, and runs elsewhere")
        if reply.ending is not Ending.STANDS:
            return None
        try:
            return self._codec.from_bytes(reply.record, attempt.call)
        except OutcomeUnknown:
            # It stands, though this replica cannot read it.
            self.settle(attempt)
            raise

    @staticmethod
    def _moved(call: RowCall) -> Rule:
        """Rule: return a record where the handler's transaction moved the rows, None if not."""
        try:
            found = yield GetRows(tuple([each.key for each in call.moves]))
        except BackendError as error:
            raise RecordPending(f"whether it committed is not known yet: {error}") from error
        moved = all(found.get(each.key) == each.value for each in call.moves)
        return CompletionRecord() if moved else None

    def abandon(self, attempt: Attempt) -> Rule:
        """Rule: make the call new again."""
        request = Abandon(attempt.call, of_shared(attempt).token)
        try:
            reply: Finished = yield request
        except BackendError as error:
            self._attempts.owe(of_shared(attempt))
            self._heartbeat.insist(self.until_settled(attempt, request))
            raise RecordPending(f"the call is not free yet: {error}") from error
        self.settle(attempt)
        if reply.ending in (Ending.FENCED, Ending.STANDS):
            # Nothing of this attempt stands, but something of another's may.
            raise InProgress(f"{attempt.call.rpc_id} was taken over by another replica")

    def until_settled(
        self, attempt: Attempt, request: Finish | FinishUnclaimed | Abandon | Claim
    ) -> Rule:
        """Settle in the background, however often that takes."""
        try:
            if isinstance(request, Finish | FinishUnclaimed):
                self._check_durable()
            reply = yield request
            if isinstance(request, Claim):
                check_left(reply, request)
        except BackendError:
            self._heartbeat.insist(self.until_settled(attempt, request))
            raise
        self.settle(attempt)

    def _standing(self, attempt: Attempt, reply: Finished) -> CompletionRecord | None:
        if reply.ending is _DONE:
            return None
        call = attempt.call
        if reply.ending is Ending.STANDS:
            self._note_late(attempt)
            return self._codec.from_bytes(reply.record, call)
        if reply.ending is Ending.FENCED:
            self._note_late(attempt)
            raise InProgress(f"{call.rpc_id} was taken over by another replica and runs there")
        if reply.ending is Ending.GONE:
            # Not LEASE_EXPIRED: to a first attempt that says that it never ran.
            raise OutcomeUnknown(
                f"client id {call.client_id} expired while the call ran: its answer is not kept"
            )
        if reply.ending is Ending.ACKNOWLEDGED:
            # No caller waits for this answer; and if the call was taken over meanwhile, its
            # client was given another one.
            raise StaleRpc(f"{call.rpc_id} was acknowledged while it ran")
        return None

    @staticmethod
    def _note_late(attempt: Attempt) -> None:
        # Without a claim, copies that meet are no trouble of a replica's.
        if not attempt.unclaimed:
            call = attempt.call
            _log.warning("late_finisher", rpc_id=str(call.rpc_id), method=call.method)

    def _check_durable(self) -> None:
        if reason := self._refusing.weakness:
            # What is answered must be kept.
            raise BackendError(f"the store is not durable: {reason}")

    def finish_of(self, attempt: Attempt, record: CompletionRecord) -> Written:
        """Return what a handler's transaction writes, fenced; raises where it is to roll back."""
        if attempt.policy.kind is not _ATOMIC or not isinstance(attempt, SharedAttempt):
            raise WrongDatabase(f"{attempt.call.method} is not declared atomic")
        if reason := self._refusing.weakness:
            raise StoreUnavailable(f"the store is not durable: {reason}")
        if isinstance(attempt.call, RowCall):
            if attempt.revoked:
                raise StaleRpc(f"{attempt.call.rpc_id} was given up")
            (move,) = attempt.call.moves
            return MoveInside(attempt.call, move)
        stored = self._codec.to_bytes(record, attempt.call)
        if not attempt.unclaimed:
            return Finish(attempt.call, attempt.token, stored)
        if attempt.ended:
            # What stands of it by now, or does not, was told.
            raise StaleRpc(f"{attempt.call.rpc_id} has ended")
        return RecordUnclaimed(attempt.call, attempt.token, attempt.owner, stored, self.window)

    def settle(self, attempt: Attempt) -> None:
        """End the attempt: the store does not say any more that it runs."""
        self._attempts.settle(of_shared(attempt))
