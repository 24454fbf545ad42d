"""First attempts whose handlers run before the store is asked about them (DESIGN §4, step 6)."""

from __future__ import annotations

from _rifl_ground.log import get_logger
from rifl._stores.codec import RecordCodec
from rifl._stores.shared.attempts import Attempts, SharedAttempt
from rifl._stores.shared.backend import BackendError
from rifl._stores.shared.claims import REFUSALS, Claims, joined, told
from rifl._stores.shared.heartbeat import Heartbeat
from rifl._stores.shared.refusing import Refusing
from rifl._stores.shared.requests import Claimed, Found
from rifl._stores.shared.settlement import AttemptSettlement
from rifl._stores.shared.steps import Rule
from rifl.core._serving.decision import Decision
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.unclaimed import may_run_unclaimed
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.call import Call
from rifl.core._shared.errors import InProgress, RecordPending

_log = get_logger("rifl.store")


_NEW = Verdict.NEW


class UnclaimedRuns:
    """Begins such runs, and claims the calls of those that end without their own record.

    For methods of which the store can decide about a call when its handler ends
    (``SharedStore.unclaimed``). Until a run is claimed, or ended, arrivals of its call at this
    replica find it in ``attempts`` only.
    """

    def __init__(
        self,
        claims: Claims,
        attempts: Attempts,
        heartbeat: Heartbeat,
        refusing: Refusing,
        settlement: AttemptSettlement,
        codec: RecordCodec,
    ) -> None:
        self._claims = claims
        self._attempts = attempts
        self._heartbeat = heartbeat
        self._refusing = refusing
        self._settlement = settlement
        self._codec = codec
        # Of these, transactions see the world as it was when they began.
        self._always: frozenset[str] = frozenset()

    def always(self, method: str, reason: str) -> None:
        """Have calls of a method be claimed from now on: its transactions cannot decide."""
        if method not in self._always:
            _log.info("method_claims", method=method, reason=reason)
            self._always |= {method}

    def begin(self, call: Call, policy: MethodPolicy) -> Decision | None:
        """Decide about a call that need not be claimed before it runs; None: it must be.

        No other arrival of it is here then, and the store takes new calls, as far as is known.
        """
        if (
            not may_run_unclaimed(call, policy)
            or call.method in self._always
            or not self._refusing.serving
        ):
            return None
        attempt = self._attempts.arrive_first(call, policy)
        if attempt is None:
            return None
        return Decision(_NEW, attempt) if attempt.call is call else joined(call, attempt)

    def ask(self, attempt: SharedAttempt) -> Rule:
        """Rule: claim a call that has run without that, and is not known to have committed.

        Returns the record that stands, of any replica, or None: the attempt is claimed now. An
        error has ended the attempt, or will: the store's refusal, ``InProgress`` if the
        call runs elsewhere, ``RecordPending`` if the store does not say.
        """
        call = attempt.call
        call.asked = True
        request = self._claims.wanted(attempt, refusing=False)._replace(
            until_s=self._heartbeat.until_s()
        )
        replied, claimed = False, False
        try:
            reply: Claimed = yield from told(request)
            # Sent twice, one that is late may have been in time the first time.
            replied = reply.found is not Found.LATE
            if reply.found is Found.NEW:
                claimed = attempt.claimed = True
                attempt.unclaimed = False
                attempt.stays = attempt.recorded is not None
                return None
            if reply.found is Found.COMPLETED:
                record = self._codec.from_bytes(reply.record, call)
                claimed = True
                return record
            if reply.found is not Found.RUNNING:
                raise REFUSALS[reply.found](call)
            if reply.owner == attempt.owner:
                # Of this call's own, which may commit yet.
                replied = False
                raise RecordPending(f"a transaction that records {call.rpc_id} has not ended")
            raise InProgress(f"{call.rpc_id} runs elsewhere")
        except BackendError as error:
            raise RecordPending(f"whether the call committed is not known yet: {error}") from error
        finally:
            if not replied:
                self._attempts.owe(attempt)
                self._claims.take_back(attempt, request.until_s or 0.0)
            elif not claimed:
                self._settlement.settle(attempt)
