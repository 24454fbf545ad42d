"""Methods that say ``claim="never"``, the same for each shared store (DESIGN §4)."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

import rifl
from _rifl_ground.refusals import Outcome
from rifl._server.outcomes_service import RESOLUTION
from rifl._stores import Settled, Settlement, UnknownState, settle_unknown, unknown_calls
from rifl._stores.opening import open_inspection
from rifl._stores.shared.backend import BackendError
from rifl._stores.shared.requests import (
    CountBeat,
    Ending,
    Finished,
    FinishUnclaimed,
    TakeBack,
)
from rifl.core._serving.answer import HandlerResult
from rifl.core._serving.later import Later
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.serving import resolve, serve
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import (
    OutcomeUnknown,
    PayloadMismatch,
    RecordPending,
    StaleRpc,
    WindowExceeded,
)
from rifl.core._shared.identity import RpcId
from rifl.core._shared.record import CompletionRecord
from rifl.v1 import rifl_pb2
from tests.helpers.raw import RawClient
from tests.helpers.servers import generic
from tests.helpers.servers import serve as serve_service
from tests.helpers.waiting import until
from tests.stores.postgres.unclaimed_runs import RAISED, drive
from tests.stores.redis.replica import FIRST, OTHER, call, keyed

__all__ = ["NEVER", "NeverClaimed", "Runs"]

NEVER = MethodPolicy(kind="idempotent", claim="never", unrecorded={"UNAVAILABLE"})
BUSY = CompletionRecord(14, "come back later")


class Runs:
    """Handlers' runs, and what is done before each ends."""

    def __init__(self) -> None:
        self.count = 0

    def serve(
        self,
        replica: Any,
        arriving: Any,
        reply: CompletionRecord = FIRST,
        meanwhile: Any = None,
        **result: Any,
    ) -> Any:
        """Serve a call there."""

        def run(attempt: Any) -> HandlerResult:
            self.count += 1
            if meanwhile is not None:
                meanwhile()
            return HandlerResult(reply, **result)

        return drive(serve(replica.store, arriving, NEVER), replica.store, run)


def rows(replica):
    """What the store knows of calls: their seqs, and whether each is recorded."""
    with closing(open_inspection(replica.url)) as found:
        return sorted((row.rpc_id.seq, row.record_bytes is not None) for row in found.calls())


def asked(replica):
    """Note what the store is asked from now on, but for beats."""
    original, seen = replica.store._backend.ask, []

    def ask(request):
        if not isinstance(request, CountBeat | TakeBack):
            seen.append(type(request).__name__)
        return original(request)

    replica.store._backend.ask = ask
    return seen


class NeverClaimed:
    """``url`` and ``replicas`` are the fixtures of a store of its own."""

    @pytest.fixture
    def runs(self):
        """Counts them."""
        return Runs()

    def test_a_call_asks_the_store_once(self, replicas, runs):
        """The record is written where none stands, and nothing is asked before (DESIGN §4.6)."""
        one, two = replicas(), replicas()
        client, seen = one.client(), asked(one)
        assert runs.serve(one, call(client, 1)) == (FIRST, Outcome.EXECUTED)
        assert seen == ["FinishUnclaimed"]
        for attempt in (1, 2):
            again = call(client, 1, attempt=attempt)
            assert runs.serve(two, again, OTHER) == (FIRST, Outcome.REPLAYED)
        # A first attempt's copy has run; a later one was claimed.
        assert runs.count == 2
        for attempt in (1, 2):
            with pytest.raises(PayloadMismatch):
                runs.serve(two, call(client, 1, b"other", attempt=attempt))

    def test_of_two_copies_the_first_record_is_both_answers(self, replicas, runs):
        """Both have run: what stands is answered (DESIGN §4, step 7)."""
        one, two = replicas(), replicas()
        client = one.client()
        other = Runs()
        answer = runs.serve(
            one, call(client, 1), meanwhile=lambda: other.serve(two, call(client, 1), OTHER)
        )
        assert answer == (OTHER, Outcome.REPLAYED)
        assert (runs.count, other.count) == (1, 1)

    def test_acknowledgements_travel_with_the_record(self, replicas, runs):
        """And free the room of the window (DESIGN §4.4)."""
        one = replicas(window=3)
        client = one.client()
        for seq in range(1, 7):
            runs.serve(one, call(client, seq, first=max(1, seq - 1)))
        assert rows(one) == [(5, True), (6, True)]

    @pytest.mark.parametrize("meanwhile", ["acknowledged", "gone", "full"])
    def test_what_is_refused_has_run_and_is_unknown(self, replicas, runs, meanwhile):
        """Never *not executed*, and never LEASE_EXPIRED: that is sent anew (DESIGN §3, §4)."""
        one = replicas(window=2)
        client = one.client()
        if meanwhile == "full":
            for seq in (2, 3):
                runs.serve(one, call(client, seq))
        ways = {
            "acknowledged": lambda: runs.serve(one, call(client, 9, first=9)),
            "gone": lambda: one.store.leases.drop_client(client),
            "full": None,
        }
        refusals = {"acknowledged": StaleRpc, "gone": OutcomeUnknown, "full": WindowExceeded}
        with pytest.raises(refusals[meanwhile]) as refused:
            runs.serve(one, call(client, 1), meanwhile=ways[meanwhile])
        assert refused.value.outcome is Outcome.UNKNOWN
        assert not len(one.store._attempts)

    def test_a_later_attempt_of_an_unknown_client_is_unknown(self, replicas, runs):
        """A copy of it may have run (DESIGN §3)."""
        one = replicas()
        client = one.client()
        one.store.leases.drop_client(client)
        with pytest.raises(OutcomeUnknown):
            runs.serve(one, call(client, 1, attempt=2))
        assert runs.count == 0

    @pytest.mark.parametrize("result", [{"reply": BUSY}, {"reply": RAISED, "raised": True}])
    def test_what_ends_otherwise_first_asks_what_stands(self, replicas, runs, result):
        """An earlier copy's record is the answer; else it runs again, or is recorded (§4)."""
        one, two = replicas(), replicas()
        client = one.client()
        other = Runs()
        answer = runs.serve(
            one,
            call(client, 1),
            meanwhile=lambda: other.serve(two, call(client, 1), OTHER),
            **result,
        )
        assert answer == (OTHER, Outcome.REPLAYED)
        answer = runs.serve(one, call(client, 2), **result)
        recorded = "raised" in result
        assert answer.outcome is (Outcome.EXECUTED if recorded else Outcome.UNKNOWN)
        assert rows(one) == [(1, True), *([(2, True)] if recorded else [])]

    def test_a_later_attempt_is_claimed_and_the_first_waits_for_it(self, replicas, runs):
        """What it records is the answer of both (DESIGN §4, step 7)."""
        one, two = replicas(), replicas()
        client = one.client()
        claimed = two.begin(call(client, 1, attempt=2), NEVER)
        found = one.store.claim(call(client, 1), NEVER)
        assert not isinstance(found, Later)
        with pytest.raises(Exception, match="runs there"):
            one.finish(found.attempt, OTHER)
        two.finish(claimed, FIRST)
        assert one.claim(call(client, 1, attempt=2), NEVER).verdict is Verdict.COMPLETED

    def test_a_resolution_is_unknown_where_a_method_is_never_claimed(self, url, replicas):
        """It names no method, and the call may have run without a trace (DESIGN §4)."""
        one = replicas(policies={"/s/M": NEVER})
        asking = call(one.client(), 1)
        asking.fingerprint = None
        answer = drive(resolve(one.store, asking, RESOLUTION), one.store, None)
        assert answer.outcome is Outcome.UNKNOWN

    def test_what_ran_is_not_told_that_it_is_not_executed(self, replicas, runs):
        """Somebody has said so meanwhile, who could not know (DESIGN §3, §4)."""
        one, two = replicas(), replicas()
        client = one.client()
        asking = call(client, 1)
        asking.fingerprint = None

        def resolved():
            answer = drive(resolve(two.store, asking, RESOLUTION), two.store, None)
            assert answer.outcome is Outcome.NOT_EXECUTED

        with pytest.raises(OutcomeUnknown):
            runs.serve(one, call(client, 1), meanwhile=resolved)

    def test_an_operator_has_it_not_run(self, replicas, runs):
        """His verdict is recorded, and a run that meets it is unknown (DESIGN §3, §4)."""
        one = replicas()
        client = one.client()
        rpc_id = RpcId(client, 1)

        def settle():
            return settle_unknown(one.url, [rpc_id], Settlement(False, "ops", "not there"))[rpc_id]

        assert settle() is Settled.NOT_EXECUTED
        answer = runs.serve(one, call(client, 1, attempt=2))
        assert (answer.record.reason, answer.outcome) == ("NOT_EXECUTED", Outcome.NOT_EXECUTED)
        assert runs.count == 0
        with pytest.raises(OutcomeUnknown):
            runs.serve(one, call(client, 1))
        runs.serve(one, call(client, 2, first=2))
        assert settle() is Settled.GONE
        one.store.leases.drop_client(client)
        assert settle() is Settled.GONE

    def test_a_lost_reply_is_recorded_in_the_background(self, replicas, runs):
        """The run has had its effect: its record is written until it stands (DESIGN §4, step 7)."""
        one, two = replicas(), replicas()
        client = one.client()
        original, lost = one.store._backend.ask, []

        def ask(request):
            if type(request).__name__ == "FinishUnclaimed" and not lost:
                lost.append(request)
                raise BackendError("no answer")
            return original(request)

        one.store._backend.ask = ask
        with pytest.raises(RecordPending):
            runs.serve(one, call(client, 1))
        until(lambda: rows(two) == [(1, True)], "it is recorded")
        assert runs.serve(two, call(client, 1, attempt=2)) == (FIRST, Outcome.REPLAYED)

    def test_a_request_that_is_repeated_is_done_again(self, replicas):
        """Its reply may have been lost; what another record is told is what stands (§4)."""
        one = replicas()
        request = FinishUnclaimed(call(one.client(), 1), b"token", "owner", b"record", 8)
        for _ in range(2):
            assert one.store._backend.ask(request) == Finished(Ending.DONE)
        other = request._replace(record=b"other", token=b"another")
        assert one.store._backend.ask(other) == Finished(Ending.STANDS, b"record")

    def test_an_unknown_outcome_is_remembered(self, replicas):
        """Whatever becomes of its client (DESIGN §4)."""
        one = replicas()
        client = one.client()
        request = FinishUnclaimed(call(client, 1), b"token", "owner", b"record", 8, True)
        assert one.store._backend.ask(request) == Finished(Ending.DONE)
        assert one.store._backend.ask(request._replace(call=call(client, 2), unknown=False))
        one.store.leases.drop_client(client)
        (found,) = unknown_calls(one.url)
        assert (found.rpc_id, found.method, found.state) == (
            RpcId(client, 1),
            "/s/M",
            UnknownState.OVER,
        )

    def test_keys_are_claimed(self, replicas, runs):
        """Others share them (DESIGN §4, step 6)."""
        one = replicas()
        assert isinstance(one.store.claim(keyed(-7, b"k"), NEVER), Later)

    @pytest.mark.parametrize("kind", ["sync", "aio"])
    def test_servers_answer_and_replay_as_ever(self, url, kind):
        """Over gRPC, on either kind of server (DESIGN §4)."""
        runs: list[bytes] = []

        def act(request, context):
            runs.append(request)
            # Nothing of it is.
            assert not rifl.may_be_undone(context)
            return b"done %d" % len(runs)

        async def act_async(request, context):
            return act(request, context)

        handlers = [generic("s.S", {"Act": act_async if kind == "aio" else act})]
        with (
            rifl.Deduplicator(url, default=NEVER) as dedup,
            serve_service(kind, handlers, dedup=dedup) as served,
            RawClient(served.address) as client,
        ):
            for seq in (1, 2):
                told = client.call("/s.S/Act", b"x", seq)
                again = client.call("/s.S/Act", b"x", seq, attempt=2)
                assert (told.response, again.response) == (b"done %d" % seq,) * 2
                assert again.outcome == "replayed"
            assert client.resolve(9).outcome == rifl_pb2.OUTCOME_UNKNOWN
            if served.loop is not None:
                served.loop.run(dedup.aclose())
        assert len(runs) == 2
