"""Settling of unknown outcomes, for each store that outlives its processes."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from _rifl_ground.refusals import Outcome
from lease_server import open_authority
from lease_server._storage import Acknowledgements
from rifl._stores import (
    Settled,
    Settlement,
    StoreLocked,
    UnknownState,
    open_store,
    settle_unknown,
    unknown_calls,
)
from rifl._stores.base import Unresolved
from rifl._stores.opening import open_inspection
from rifl._stores.settling import settle
from rifl._stores.shared.store import SharedStore
from rifl.core._serving.answer import refusal_record
from rifl.core._serving.bounds import Bounds
from rifl.core._serving.policy import MethodPolicies, MethodPolicy
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.call import Call
from rifl.core._shared.errors import OutcomeUnknown, PayloadMismatch, StaleRpc
from rifl.core._shared.identity import RpcId
from rifl.core._shared.observer import Observer
from rifl.core._shared.record import CompletionRecord
from tests.compat.make_store import ANSWER, make
from tests.helpers.waiting import until

__all__ = [
    "GIVEN_UP",
    "SettlesUnknown",
    "check_count_that_hangs",
    "check_given_up",
    "end_client",
    "make_lost",
]

BEGUN = RpcId(1, 4)
KEY = RpcId(1025, None, b"lost")
ANSWERED = RpcId(1025, None, b"order-17")
RAN = Settlement(True, "ops", "the ledger has it", b"found")
LOST = Settlement(True, "ops", "the ledger has it")
NOT_RUN = Settlement(False, "ops", "the ledger has it not")
PLAIN = MethodPolicy()
# How a call ends that its caller gave up, and for how many of these the outcome is unknown then.
GIVEN_UP = {"ended": 0, "abandoned": 0, "unknown": 1, "killed": 1}


def _result(later: Any) -> Any:
    return later.wait() if hasattr(later, "wait") else later


@contextlib.contextmanager
def _serving(url: str, observer: Observer | None = None) -> Iterator[Any]:
    """A server's store, as it starts and stops."""
    store: Any = open_store(url)
    store.observer = observer
    authority = open_authority(store.leases, term_s=60.0)
    store.bind(
        authority, MethodPolicies({}, "plain"), clock=time.monotonic, bounds=Bounds(window=64)
    )
    try:
        yield store
    finally:
        store.close()


def end_client(store: Any, client_id: int) -> None:
    """Have a client's lease end, and its records go."""
    if not isinstance(store, SharedStore):
        store.clients_ended([client_id])
        return
    store.leases.release(client_id)
    store.leases.sweep(60.0, 60.0, time.time())


def _call(rpc_id: RpcId, payload: bytes | None = None) -> Call:
    call = Call(rpc_id.client_id, b"", rpc_id.seq, rpc_id.key, 4 if rpc_id.seq else 1)
    call.method = "/bank.Bank/Deposit"
    call.fingerprint = payload
    return call


def _arrive(url: str, rpc_id: RpcId, payload: bytes | None = None) -> CompletionRecord | None:
    """What an arrival is answered; None: it would run."""
    call = _call(rpc_id, payload)
    with _serving(url) as store:
        decision = _result(store.claim(call, PLAIN))
        if decision.verdict is Verdict.NEW:
            _result(store.abandon(decision.attempt))
            return None
        assert decision.verdict is Verdict.COMPLETED
        record = decision.record or store.fetch(call)
        assert isinstance(record, CompletionRecord)
        return record


def make_lost(url: str) -> str:
    """Fill a store with a call of a client, and one by a key, whose server died."""
    make(url)
    with _serving(url) as store:
        attempt = _result(store.claim(_call(KEY, b"p"), PLAIN)).attempt
        _result(store.start(attempt))
    return url


def _counted(store: Any) -> Any:
    """Return what the store has, after a sweep that counts."""
    store._unresolved_at = -math.inf
    store.expire_keys()
    return store.unresolved


def check_given_up(url: str, ends: str) -> None:
    """Of replicas: it counts not as long as it runs, and not once it has ended (DESIGN §4, §9)."""
    expected = GIVEN_UP[ends]
    with _serving(url, Observer()) as one, _serving(url, Observer()) as two:
        client_id = open_authority(two.leases, term_s=60.0).grant().client_id
        attempt = one.claim(_call(RpcId(client_id, 4)), PLAIN).wait().attempt
        two.leases.renew(client_id, Acknowledgements(5, ()))
        stores = [one, two]

        def counted() -> int:
            return sum(found.calls for each in stores if (found := _counted(each)))

        assert counted() == 0
        assert unknown_calls(url) == []
        if ends == "killed":
            one._heartbeat.stop()
            one._presence.close()
            stores.remove(one)
            until(lambda: one.owner not in two._heartbeat.living(), "it is taken for dead")
        elif ends == "abandoned":
            one.abandon(attempt).wait()
        else:
            record = CompletionRecord()
            if ends == "unknown":
                record = refusal_record(OutcomeUnknown("the answer cannot be recorded"))
            with pytest.raises(StaleRpc):
                one.finish(attempt, record).wait()
        until(lambda: counted() == expected, "it is counted, or not any more")
        listed = [(call.rpc_id.seq, call.state) for call in unknown_calls(url)]
        assert listed == [(4, UnknownState.OVER)] * expected


def check_count_that_hangs(url: str) -> None:
    """Another replica counts, though that one beats; also one that no observer asks (DESIGN §9)."""
    with _serving(url, Observer()) as one, _serving(url, Observer()) as two:
        hangs, counts = sorted((one, two), key=lambda each: each.owner)
        until(lambda: len(counts._heartbeat.living()) == 2, "both are seen")
        assert [_counted(hangs), _counted(counts)] == [(0, 0.0), None]
        begun, go_on = threading.Event(), threading.Event()

        def hanging() -> Unresolved:
            begun.set()
            go_on.wait(60)
            return Unresolved(9, 9.0)

        hangs._ask_unresolved = hanging
        thread = threading.Thread(target=_counted, args=(hangs,), daemon=True)
        thread.start()
        try:
            assert begun.wait(30)
            until(lambda: _counted(counts) == (0, 0.0), "another one counts")
            assert hangs.owner in counts._heartbeat.living()
            hangs._counted_at = -math.inf
            until(lambda: hangs.unresolved is None, "what it counted is too old")
        finally:
            go_on.set()
            thread.join()
        assert _counted(hangs) is None
        hangs.observer, counts.observer = Observer(), None
        until(lambda: _counted(hangs) == (9, 9.0), "no observer asks the other one")


class SettlesUnknown:
    """``url`` is the fixture of a store of its own."""

    @pytest.fixture
    def made(self, url: str) -> str:
        """A store with a call of a client, and one by a key, whose server died."""
        return make_lost(url)

    @pytest.mark.parametrize("rpc_id", [BEGUN, KEY], ids=str)
    @pytest.mark.parametrize("told", [False, True])
    def test_what_ran_is_answered_with_what_was_found(
        self, made: str, rpc_id: RpcId, told: bool
    ) -> None:
        """Also after arrivals were told unknown: from now on all get the answer (DESIGN §4)."""
        if told:
            before = _arrive(made, rpc_id)
            assert before is not None
            assert before.outcome is Outcome.UNKNOWN
        (listed,) = [call for call in unknown_calls(made) if call.rpc_id == rpc_id]
        assert (
            listed.state is UnknownState.UNKNOWN
            if told
            else listed.state is not UnknownState.SETTLED
        )
        assert listed.method in ("/bank.Bank/Deposit", "")
        assert settle_unknown(made, [rpc_id], RAN) == {rpc_id: Settled.EXECUTED}
        for _ in range(2):
            assert _arrive(made, rpc_id) == CompletionRecord(response=b"found")
        (listed,) = [call for call in unknown_calls(made) if call.rpc_id == rpc_id]
        assert listed.state is UnknownState.SETTLED
        assert listed.note is not None
        assert (listed.note["who"], listed.note["why"]) == ("ops", "the ledger has it")
        assert settle_unknown(made, [rpc_id], NOT_RUN) == {rpc_id: Settled.ANSWERED}

    def test_an_answer_that_is_lost_is_said_to_be(self, made: str) -> None:
        """Every later arrival is told that it ran, and its payload is compared still (§4)."""
        _arrive(made, KEY)
        assert settle_unknown(made, [KEY], LOST) == {KEY: Settled.EXECUTED}
        record = _arrive(made, KEY, b"p")
        assert record is not None
        assert (record.reason, record.outcome) == ("ANSWER_LOST", Outcome.EXECUTED)
        with pytest.raises(PayloadMismatch):
            _arrive(made, KEY, b"another")

    @pytest.mark.parametrize("rpc_id", [BEGUN, KEY], ids=str)
    @pytest.mark.parametrize("told", [False, True])
    def test_what_did_not_run_is_new(self, made: str, rpc_id: RpcId, told: bool) -> None:
        """Its next arrival runs it; who said so, and why, is remembered (DESIGN §4)."""
        if told:
            _arrive(made, rpc_id)
        assert settle_unknown(made, [rpc_id], NOT_RUN) == {rpc_id: Settled.NOT_EXECUTED}
        (listed,) = [call for call in unknown_calls(made) if call.rpc_id == rpc_id]
        assert listed.state is UnknownState.SETTLED
        assert listed.note is not None
        assert listed.note["decision"] == "not-executed"
        assert _arrive(made, rpc_id) is None

    def test_an_answer_is_never_touched(self, made: str) -> None:
        """A call that has its answer is left as it is, whatever is said of it (DESIGN §4)."""
        assert settle_unknown(made, [ANSWERED], LOST) == {ANSWERED: Settled.ANSWERED}
        assert settle_unknown(made, [ANSWERED], NOT_RUN) == {ANSWERED: Settled.ANSWERED}
        assert _arrive(made, ANSWERED) == ANSWER
        assert ANSWERED not in [call.rpc_id for call in unknown_calls(made)]

    @pytest.mark.parametrize("settlement", [RAN, NOT_RUN], ids=["ran", "did not"])
    def test_a_call_that_may_run_is_not_settled(self, url: str, settlement: Settlement) -> None:
        """While its process may live nothing is settled, and it shows as stuck (DESIGN §4)."""
        make(url)
        with _serving(url) as store:
            attempt = _result(store.claim(_call(KEY, b"p"), PLAIN)).attempt
            _result(store.start(attempt))
            (stuck,) = [call for call in unknown_calls(url, 0.0) if call.rpc_id == KEY]
            assert stuck.state is UnknownState.STUCK
            assert stuck.owner
            assert KEY not in [call.rpc_id for call in unknown_calls(url)]
            with pytest.raises(StoreLocked):
                settle_unknown(url, [KEY], settlement)
            _result(store.finish(attempt, CompletionRecord(response=b"mine")))
        assert _arrive(url, KEY) == CompletionRecord(response=b"mine")

    def test_what_changed_since_it_was_seen_is_not_replaced(self, made: str) -> None:
        """The record that was seen has to stand there still (DESIGN §4)."""
        _arrive(made, KEY)
        with closing(open_inspection(made)) as store:
            assert not store.replace(KEY, b"something else", b"data", "{}")
            assert not store.replace(KEY, None, b"data", "{}")
            assert settle(store, RpcId(77, 1), LOST) is Settled.GONE

    @pytest.mark.parametrize("told", [False, True])
    def test_a_verdict_outlives_its_client(self, made: str, told: bool) -> None:
        """It shows when its client is over, and can be settled for the record (DESIGN §4)."""
        if told:
            _arrive(made, BEGUN)
        with _serving(made) as store:
            end_client(store, 1)
        with closing(open_inspection(made)) as inspection:
            assert inspection.call(BEGUN) is None
        (verdict,) = [call for call in unknown_calls(made) if call.rpc_id == BEGUN]
        assert (verdict.state, verdict.method) == (UnknownState.OVER, "/bank.Bank/Deposit")
        assert verdict.since_unix_s
        assert settle_unknown(made, [BEGUN], LOST) == {BEGUN: Settled.GONE}
        (verdict,) = [call for call in unknown_calls(made) if call.rpc_id == BEGUN]
        assert (verdict.state, verdict.method) == (UnknownState.SETTLED, "/bank.Bank/Deposit")
        assert verdict.note is not None
        assert verdict.note["who"] == "ops"

    @pytest.mark.parametrize("told", [False, True])
    def test_a_verdict_outlives_its_acknowledgement(self, made: str, told: bool) -> None:
        """A client that was told unknown, or gave up, goes on, and the operator sees it (§4)."""
        if told:
            _arrive(made, BEGUN)
        later = Call(1, b"", 99, None, 99)
        later.method = "/bank.Bank/Deposit"
        with _serving(made) as store:
            attempt = _result(store.claim(later, PLAIN)).attempt
            _result(store.start(attempt))
            _result(store.finish(attempt, ANSWER))
        with closing(open_inspection(made)) as inspection:
            assert inspection.call(BEGUN) is None
        assert [call.state for call in unknown_calls(made) if call.rpc_id == BEGUN] == [
            UnknownState.OVER
        ]

    def test_an_answer_is_no_verdict(self, made: str) -> None:
        """What was answered is not remembered when its client is over (DESIGN §4)."""
        settle_unknown(made, [BEGUN, KEY], NOT_RUN)
        with _serving(made) as store:
            for rpc_id in (BEGUN, KEY):
                attempt = _result(store.claim(_call(rpc_id, b"p"), PLAIN)).attempt
                _result(store.start(attempt))
                _result(store.finish(attempt, ANSWER))
            end_client(store, 1)
        assert {call.state for call in unknown_calls(made)} == {UnknownState.SETTLED}

    @pytest.mark.parametrize("told", [False, True])
    def test_what_is_not_settled_is_counted(self, made: str, told: bool) -> None:
        """Also what no client asks for again; not what runs, nor what was settled (DESIGN §9)."""
        with _serving(made) as store:
            store.expire_keys()
            assert store.unresolved is None, "no observer asks"
        for rpc_id in (BEGUN, KEY) if told else ():
            _arrive(made, rpc_id)
        with _serving(made, Observer()) as store:
            assert _counted(store).calls == 2
            assert 0 <= store.unresolved.oldest_s < 3600
            attempt = _result(store.claim(_call(RpcId(1025, None, b"runs"), b"p"), PLAIN)).attempt
            _result(store.start(attempt))
            assert _counted(store).calls == 2
            end_client(store, BEGUN.client_id)
            with closing(open_inspection(made)) as inspection:
                until(lambda: inspection.call(BEGUN) is None, "its client is gone")
            assert _counted(store).calls == 2
            if isinstance(store, SharedStore):
                with _serving(made, Observer()) as other:
                    both = (store, other)
                    until(lambda: [_counted(each) for each in both].count(None) == 1, "one counts")
            settle_unknown(made, [BEGUN, KEY], LOST)
            assert until(lambda: _counted(store), "it counts").calls == 0
            assert store.unresolved.oldest_s == 0
            _result(store.finish(attempt, ANSWER))

    def test_many_are_settled_with_one_call(self, made: str) -> None:
        """A program settles what it found out; done again, what stands is left (DESIGN §4)."""
        both = [BEGUN, KEY, ANSWERED]
        found = settle_unknown(made, both, LOST)
        assert [found[rpc_id] for rpc_id in both] == [
            Settled.EXECUTED,
            Settled.EXECUTED,
            Settled.ANSWERED,
        ]
        assert set(settle_unknown(made, both, LOST).values()) == {Settled.ANSWERED}
