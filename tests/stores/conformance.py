"""The scenarios every store must pass (DESIGN §6), at the ``Store`` interface.

A store joins by a subclass of ``StoreConformance`` with a ``place`` fixture that
yields a ``Place``: somewhere records live, that can be opened again and again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import pytest

from _rifl_ground.refusals import Outcome
from lease_server import Acknowledgements, LeaseAuthority, SessionRow, SessionState
from lease_server._authority import Beat
from lease_server._storage import LeaseStorage
from rifl._stores import RecordCodec, Store, open_store
from rifl._stores.opening import open_inspection
from rifl.core._serving.admission import Fetch, Wait, admit
from rifl.core._serving.answer import Answer, HandlerResult
from rifl.core._serving.batching import serve_batch
from rifl.core._serving.bounds import Bounds
from rifl.core._serving.client_table import Attempt
from rifl.core._serving.later import Later
from rifl.core._serving.policy import Kind, MethodPolicies, MethodPolicy
from rifl.core._serving.serving import resolve, serve
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.call import Call
from rifl.core._shared.errors import (
    BadHeader,
    Draining,
    InProgress,
    LeaseExpired,
    NotYours,
    OutcomeUnknown,
    PayloadMismatch,
    SessionClosed,
    StaleRpc,
    StoreMismatch,
    WindowExceeded,
)
from rifl.core._shared.record import CompletionRecord
from tests.helpers.sealing import FINGERPRINT_KEYS, seal, unseal
from tests.helpers.waiting import DEADLINE_S, until

__all__ = ["Opened", "Place", "StoreConformance", "drive", "drive_batch"]

PLAIN = MethodPolicy()
IDEMPOTENT = MethodPolicy(kind=Kind.IDEMPOTENT)
TERM_S = 60.0
FIRST = CompletionRecord(response=b"first", trailing_metadata=(("note", "x"), ("n-bin", b"\xff")))
OTHER = CompletionRecord(response=b"other")


class Place(Protocol):
    """Somewhere records live."""

    durable: bool
    url: str


class Opened:
    """A store that is open, with a lease authority over it and a clock that is told."""

    def __init__(
        self,
        place: Place,
        *,
        window: int = 8,
        now: float = 0.0,
        codec: RecordCodec | None = None,
    ) -> None:
        self.now = now
        self.store: Store = open_store(place.url, codec=codec)
        self.authority = LeaseAuthority(
            self.store.leases, term_s=TERM_S, clock=lambda: self.now, id_block=4
        )
        self.store.bind(
            self.authority,
            MethodPolicies({}, "plain"),
            clock=lambda: self.now,
            bounds=Bounds(window=window),
        )

    def client(self) -> int:
        """Grant a client id."""
        return self.authority.grant().client_id

    def renewing(self) -> tuple[int, Callable[..., bytes]]:
        """Grant a client id; and what renews it, which says what it acknowledges."""
        grant = self.authority.grant()

        def renew(first: int = 1, completed: Sequence[tuple[int, int]] = ()) -> bytes:
            told = Acknowledgements(first, completed)
            return self.authority.heartbeat(grant.client_id, grant.token, b"", told)

        return grant.client_id, renew

    def claim(self, call: Call, policy: MethodPolicy = PLAIN) -> Any:
        """Decide about a call."""
        decision = self.store.claim(call, policy)
        return wait(decision) if isinstance(decision, Later) else decision

    def begin(self, call: Call, policy: MethodPolicy = PLAIN) -> Attempt:
        """Claim a call that is new, and start it."""
        decision = self.claim(call, policy)
        assert decision.verdict is Verdict.NEW
        assert decision.attempt is not None
        wait(self.store.start(decision.attempt))
        return decision.attempt

    def complete(self, call: Call, record: CompletionRecord = FIRST) -> None:
        """Run a call from its claim to its durable record."""
        wait(self.store.finish(self.begin(call), record))

    def answer(self, call: Call) -> CompletionRecord | None:
        """Return the record a completed call is answered with."""
        decision = self.claim(call)
        assert decision.verdict is Verdict.COMPLETED
        return decision.record or self.store.fetch(call)

    def drop(self) -> list[int]:
        """Drop what expired."""
        gone = self.authority.expire(self.now)
        self.store.clients_ended(gone)
        return gone

    def close(self) -> None:
        """Close the store."""
        self.store.close()


def call(
    client: int, seq: int, payload: bytes = b"p", first: int = 1, *, seed: int = 0, **more: Any
) -> Call:
    """Return a sequenced call."""
    made = Call(
        client,
        b"",
        seq,
        first_incomplete=first,
        fingerprint=payload.ljust(16, b"."),
        method="/s/M",
        **more,
    )
    made.seed = seed
    return made


def keyed(client: int, key: bytes, payload: bytes = b"p") -> Call:
    """Return a keyed call."""
    return Call(client, b"", None, key, fingerprint=payload.ljust(16, b"."), method="/s/M")


class Shell:
    """How whoever asks a store waits for it: as a thread does, or on an event loop."""

    loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Shell:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        self.loop = None

    def wait(self, later: Any) -> Any:
        """Return what it gives, or raise what it raises."""
        if self.loop is None:
            return later.wait()
        return asyncio.run_coroutine_threadsafe(_awaited(later), self.loop).result(DEADLINE_S)


async def _awaited(later: Any) -> Any:
    return await later


_SHELL = Shell()


def wait(pending: Any) -> Any:
    """Wait for what a store has yet to do, in the way of the shell that the test is for."""
    return None if pending is None else _SHELL.wait(pending)


def drive(steps: Any, store: Store, run: Callable[[Attempt], HandlerResult]) -> Answer:
    """Carry out the steps of a call as a shell does, blocking."""
    value: Any = None
    try:
        while True:
            step = steps.send(value)
            value = None
            if isinstance(step, Attempt):
                value = run(step)
            elif isinstance(step, Wait):
                woken = threading.Event()
                if store.wait(step.attempt, woken.set):
                    assert woken.wait(DEADLINE_S)
                value = True
            elif isinstance(step, Fetch):
                value = store.fetch(step.call)
            else:
                value = wait(step)
    except StopIteration as stop:
        answer: Answer = stop.value
        return answer


def go_on(steps: Any, store: Store, value: Any = None) -> Any:
    """Carry out the steps of a call until it waits for another arrival: that, or its answer."""
    try:
        while not isinstance(step := steps.send(value), Wait):
            value = store.fetch(step.call) if isinstance(step, Fetch) else wait(step)
    except StopIteration as stop:
        return stop.value
    return step


class Now(Later):
    """Work that is done where it is waited for."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work

    def wait(self) -> Any:
        """Do it."""
        return self._work()

    def __await__(self) -> Any:
        """Do it beside the loop, where it may block."""
        return asyncio.to_thread(self._work).__await__()


def drive_batch(
    store: Store,
    calls: list[Call],
    run: Callable[[Attempt], HandlerResult],
    policy: MethodPolicy = PLAIN,
) -> list[Any]:
    """Carry out a batch as a sync shell does."""
    steps = serve_batch(
        store,
        calls,
        policy,
        run=lambda attempts: Now(lambda: [run(attempt) for attempt in attempts]),
        fetch=lambda wanted: Now(lambda: [store.fetch(call) for call in wanted]),
        gone=lambda: False,
    )
    answers: Any = drive(steps, store, run)
    return list(answers)


class StoreConformance:
    """The suite, as a sync server and as an aio server ask the store; see the module."""

    @pytest.fixture(autouse=True, params=["sync", "aio"])
    def shell(self, request):
        """Wait in threads, or on an event loop of another thread."""
        with _SHELL if request.param == "aio" else contextlib.nullcontext():
            yield

    # -- batches ------------------------------------------------------------------------

    @pytest.mark.parametrize("kind", [Kind.PLAIN, Kind.IDEMPOTENT])
    def test_a_batch_is_run_once_and_kept(self, place, kind):
        """Each call of a batch is recorded and replayed, after a restart, too (DESIGN §4)."""
        policy = MethodPolicy(kind=kind, unrecorded={"UNAVAILABLE"})
        opened = Opened(place, window=100)
        client = opened.client()
        runs: list[Any] = []

        def run(attempt: Attempt) -> HandlerResult:
            identity = attempt.call.identity
            runs.append(identity)
            code = {b"nothing": 14, b"refused": 5}.get(attempt.call.key, 0)
            return HandlerResult(CompletionRecord(code, response=b"%r" % (identity,)))

        calls = [keyed(client, b"%d" % at) for at in range(40)]
        calls += [call(client, seq) for seq in range(1, 40)]
        calls += [keyed(client, b"nothing"), keyed(client, b"refused"), keyed(client, b"0")]
        calls += [keyed(client, b"1", b"q")]
        first = drive_batch(opened.store, calls, run, policy)
        assert runs == [each.identity for each in calls[:81]]
        assert [answer.outcome for answer in first[:79]] == [Outcome.EXECUTED] * 79
        assert (first[79].record.code, first[79].outcome) == (14, Outcome.NOT_EXECUTED)
        assert (first[80].record.code, first[80].outcome) == (5, Outcome.EXECUTED)
        assert (first[81].record, first[81].outcome) == (first[0].record, Outcome.REPLAYED)
        assert isinstance(first[82], PayloadMismatch)
        assert opened.store.running() == 0
        if place.durable:
            opened.close()
            opened = Opened(place, window=100)
        again = drive_batch(opened.store, calls, run, policy)
        assert [answer.record for answer in again[:82]] == [a.record for a in first[:82]]
        assert {answer.outcome for answer in again[:79]} == {Outcome.REPLAYED}
        assert isinstance(again[82], PayloadMismatch)
        assert runs == [each.identity for each in calls[:81]] + [b"nothing"]
        opened.close()

    def test_a_batch_is_refused_call_by_call(self, opened):
        """Acknowledged, running, of another payload, without room: each its own (DESIGN §3)."""
        client = opened.client()
        for seq in range(1, 4):
            opened.complete(call(client, seq))
        running = opened.begin(call(client, 4, first=2))
        calls = [call(client, 1), call(client, 2, b"q"), call(client, 3)]
        calls += [call(client, seq) for seq in range(5, 12)]
        done = CompletionRecord(response=b"done")
        answers = drive_batch(opened.store, calls, lambda _: HandlerResult(done))
        assert isinstance(answers[0], StaleRpc)
        assert isinstance(answers[1], PayloadMismatch)
        assert answers[2] == Answer(FIRST, Outcome.REPLAYED)
        assert answers[3:8] == [Answer(done, Outcome.EXECUTED)] * 5
        assert [type(answer) for answer in answers[8:]] == [WindowExceeded] * 2
        wait(opened.store.finish(running, FIRST))
        stranger = [keyed(client + 1000, b"a"), keyed(client + 1000, b"b")]
        refused = drive_batch(opened.store, stranger, lambda _: HandlerResult(done))
        assert [type(answer) for answer in refused] == [LeaseExpired] * 2

    def test_batches_of_the_same_calls_at_once(self, opened):
        """Many batches of the same keys in every order: each runs once, none hangs (§4)."""
        client = opened.client()
        keys = [b"%d" % at for at in range(30)]
        runs: Counter[Any] = Counter()
        lock = threading.Lock()

        def run(attempt: Attempt) -> HandlerResult:
            with lock:
                runs[attempt.call.key] += 1
            return HandlerResult(CompletionRecord(response=attempt.call.key))

        def batch(number: int) -> list[Any]:
            order = [keys, keys[::-1], keys[15:] + keys[:15], keys[1::2] + keys[::2]][number % 4]
            found = drive_batch(opened.store, [keyed(client, key) for key in order], run)
            assert [answer.record.response for answer in found] == order
            return found

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(batch, range(8)))
        assert runs == dict.fromkeys(keys, 1)
        executed = [a for batch in found for a in batch if a.outcome is Outcome.EXECUTED]
        assert len(executed) == 30

    @pytest.fixture
    def opened(self, place):
        """An open store, closed afterwards."""
        opened = Opened(place)
        yield opened
        opened.close()

    # -- deciding -----------------------------------------------------------------------

    def test_a_call_is_new_once_then_running_then_completed(self, opened):
        """A claim is decision and claim in one: new, in progress, completed (DESIGN §4)."""
        one = call(opened.client(), 1)
        attempt = opened.begin(one)
        again = opened.claim(one)
        assert (again.verdict, again.attempt) == (Verdict.IN_PROGRESS, attempt)
        wait(opened.store.finish(attempt, FIRST))
        assert opened.answer(one) == FIRST

    def test_what_is_recorded_comes_back_whole(self, opened):
        """Status, details, both metadata and response come back as recorded (DESIGN §4)."""
        whole = CompletionRecord(
            9,
            "dé tails",
            b"\x00\xff",
            (("i", "v"), ("i", "w")),
            (("t-bin", b"\x00\xff"), ("t", "v")),
            Outcome.EXECUTED,
            "REASON",
        )
        one = call(opened.client(), 1)
        opened.complete(one, whole)
        assert opened.answer(one) == whole

    def test_an_empty_answer_is_not_no_answer(self, opened):
        """A response of no bytes and no response at all stay apart (DESIGN §4)."""
        client = opened.client()
        opened.complete(call(client, 1), CompletionRecord(response=b""))
        opened.complete(call(client, 2), CompletionRecord(response=None, code=5))
        assert opened.answer(call(client, 1)).response == b""
        assert opened.answer(call(client, 2)).response is None

    @pytest.mark.parametrize("ended", [True, False])
    def test_another_clients_call_of_one_identity_is_refused(self, place, ended):
        """Another seed is another client's: neither is answered with the other's (DESIGN §3)."""
        opened = Opened(place)
        client = opened.client()
        attempt = opened.begin(call(client, 1, seed=7))
        if ended:
            wait(opened.store.finish(attempt, FIRST))
        for again in range(1 + (place.durable and ended)):
            if again:
                opened.close()
                opened = Opened(place)
            for other in (call(client, 1, seed=8), Call(client, b"", 1)):
                other.seed = 8
                with pytest.raises(StoreMismatch):
                    drive(resolve(opened.store, other, PLAIN), opened.store, None)
            if ended:
                assert opened.answer(call(client, 1, seed=7)) == FIRST
                # Who says nothing of a seed is known by the rest.
                assert opened.answer(call(client, 1)) == FIRST
            else:
                mine = opened.claim(call(client, 1, seed=7))
                assert mine.verdict is Verdict.IN_PROGRESS
                wait(opened.store.finish(attempt, FIRST))
        key = keyed(client, b"k")
        opened.complete(key)
        assert opened.answer(keyed(client, b"k")) == FIRST
        opened.close()

    @pytest.mark.parametrize("ended", [False, True])
    def test_another_payload_is_refused(self, opened, ended):
        """An identity with another fingerprint is refused, running or done (DESIGN §4.2)."""
        client = opened.client()
        attempt = opened.begin(call(client, 1))
        if ended:
            wait(opened.store.finish(attempt, FIRST))
        with pytest.raises(PayloadMismatch):
            opened.claim(call(client, 1, b"q"))
        if not ended:
            wait(opened.store.finish(attempt, FIRST))

    @pytest.mark.parametrize("ended", [False, True])
    def test_a_payload_is_known_under_any_key(self, opened, ended):
        """Fingerprints are HMACs, and a call of the key before still matches (DESIGN §6)."""
        client = opened.client()
        new, old = FINGERPRINT_KEYS

        def told(*keys: bytes, payload: bytes = b"p") -> Call:
            made = call(client, 1)
            made.fingerprint_keys = keys
            made.take_digest(payload.ljust(16, b"."))
            return made

        attempt = opened.begin(told(old))
        if ended:
            wait(opened.store.finish(attempt, FIRST))
            assert opened.answer(told(new, old)) == FIRST
        else:
            assert opened.claim(told(new, old)).verdict is Verdict.IN_PROGRESS
        for other in (told(new), told(new, old, payload=b"q"), told()):
            with pytest.raises(PayloadMismatch):
                opened.claim(other)
        if not ended:
            wait(opened.store.finish(attempt, FIRST))

    def test_a_sealed_record_answers_its_own_call_alone(self, place):
        """Records that were swapped, and unsealed ones, are unknown and do not run (DESIGN §6)."""
        if not place.durable:
            pytest.skip("nothing is sealed in memory")
        codec = RecordCodec(seal, unseal, require_sealed=True)
        opened = Opened(place, codec=codec)
        client = opened.client()
        calls = [call(client, 1), call(client, 2), keyed(client, b"k"), call(client, 3)]
        for each in calls:
            opened.complete(each)
        opened.close()
        with contextlib.closing(open_inspection(place.url)) as looked:
            stored = [looked.stored(each.rpc_id) for each in calls]
            changed = [stored[2], stored[0], stored[1], RecordCodec().to_bytes(OTHER, None)]
            for each, seen, data in zip(calls, stored, changed, strict=True):
                assert looked.replace(each.rpc_id, seen, data, "{}")
        opened = Opened(place, codec=codec)
        for each in calls:
            with pytest.raises(OutcomeUnknown):
                opened.answer(each)
        opened.close()
        # Without ``require_sealed``.
        opened = Opened(place, codec=RecordCodec(seal, unseal))
        assert opened.answer(calls[3]) == OTHER
        opened.close()

    def test_a_payload_known_later_is_compared(self, opened):
        """A caller that sends two streams as one call gets no answer to the other, also where
        the first one's end came while its duplicates waited (DESIGN §4.2)."""
        client = opened.client()
        first, same, other = (call(client, 1, payload) for payload in (b"p", b"p", b"q"))
        # A request stream's, which has not ended.
        first.fingerprint, first.streamed = None, True
        attempt = opened.begin(first)
        waiting = [admit(opened.store, each, PLAIN) for each in (same, other)]
        for steps in waiting:
            assert isinstance(go_on(steps, opened.store), Wait)
        first.fingerprint = same.fingerprint
        wait(opened.store.finish(attempt, FIRST))
        assert go_on(waiting[0], opened.store, True) == Answer(FIRST, Outcome.REPLAYED)
        with pytest.raises(PayloadMismatch):
            go_on(waiting[1], opened.store, True)
        with pytest.raises(PayloadMismatch):
            opened.claim(other)

    def test_an_abandoned_call_is_new_again(self, opened):
        """An attempt that ended without a record leaves the call new (DESIGN §4)."""
        one = call(opened.client(), 1)
        wait(opened.store.abandon(opened.begin(one)))
        opened.complete(one, OTHER)
        assert opened.answer(one) == OTHER

    def test_an_unknown_client_leaves_no_state(self, opened):
        """A client nobody granted is LEASE_EXPIRED and creates nothing; a grant is a row (§5)."""
        client = opened.client()
        for stranger in (client + 1000, 2**63 - 1):
            with pytest.raises(LeaseExpired):
                opened.claim(call(stranger, 1))
        assert opened.store.running() == 0
        assert set(opened.store.leases.known_clients()) <= {client}

    def test_the_window_is_judged_after_the_acknowledgements(self, opened):
        """Acknowledgements of a refused call count, and make room (DESIGN §4.4, 4.5)."""
        client = opened.client()
        for seq in range(1, 9):
            opened.complete(call(client, seq))
        with pytest.raises(WindowExceeded):
            opened.claim(call(client, 9))
        opened.complete(call(client, 9, first=2))
        assert opened.claim(call(client, 1)).verdict is Verdict.STALE

    def test_a_call_in_flight_when_acknowledged_can_still_end(self, opened):
        """Acknowledging a running call frees it when it ends, and it stays stale (DESIGN §4)."""
        client = opened.client()
        attempt = opened.begin(call(client, 1))
        opened.complete(call(client, 2, first=2))
        # A shared store cannot tell its answer from a late finisher's: nobody gets it.
        with contextlib.suppress(StaleRpc):
            wait(opened.store.finish(attempt, FIRST))
        assert opened.claim(call(client, 1)).verdict is Verdict.STALE

    def test_a_renewal_acknowledges_as_a_header_does(self, opened):
        """And one that is late, or repeated, moves nothing back (DESIGN §4, §5)."""
        client, renew = opened.renewing()
        for seq in range(1, 7):
            opened.complete(call(client, seq))
        running = opened.begin(call(client, 7))
        renew(3, [(5, 5), (7, 7)])
        for _ in range(2):
            for seq in (1, 2, 5):
                assert opened.claim(call(client, seq)).verdict is Verdict.STALE
            for seq in (3, 4, 6):
                assert opened.answer(call(client, seq)) == FIRST
            # What it said before, or of a connection that was silent for long.
            renew(3, [(5, 5), (7, 7)])
            renew(2)
            renew()
        with contextlib.suppress(StaleRpc):
            wait(opened.store.finish(running, FIRST))
        assert opened.claim(call(client, 7)).verdict is Verdict.STALE
        # In the place of what it freed there is room.
        for seq in range(8, 12):
            opened.complete(call(client, seq))
        renew(12)
        for seq in range(1, 12):
            assert opened.claim(call(client, seq)).verdict is Verdict.STALE

    def test_several_renewals_acknowledge_each_its_own(self, opened):
        """Those of one request; of a client that has ended nothing is applied (DESIGN §5)."""
        grants = [opened.authority.grant() for _ in range(3)]
        for grant in grants:
            opened.complete(call(grant.client_id, 1))
            opened.complete(call(grant.client_id, 2))
        opened.authority.release(grants[2].client_id, grants[2].token)
        opened.drop()
        beats = [
            Beat(each.client_id, each.token, 0, Acknowledgements(first))
            for each, first in zip(grants, (3, 2, 3), strict=True)
        ]
        opened.authority.heartbeats(beats)
        known = [
            opened.claim(call(each.client_id, seq)).verdict for each in grants[:2] for seq in (1, 2)
        ]
        assert known == [Verdict.STALE] * 3 + [Verdict.COMPLETED]
        with pytest.raises(LeaseExpired):
            opened.claim(call(grants[2].client_id, 2))

    def test_of_a_session_nothing_is_acknowledged(self, opened):
        """Its keys are freed by its end, or their retention (DESIGN §4)."""
        session = opened.authority.open_session("nightly")
        opened.complete(keyed(session.client_id, b"k"))
        told = Acknowledgements(9, [(11, 12)])
        opened.authority.heartbeat(session.client_id, session.token, b"", told)
        assert opened.answer(keyed(session.client_id, b"k")) == FIRST

    def test_ranges_free_records_above_a_stuck_call(self, opened):
        """One slow call pins nothing but itself (DESIGN §4, head-of-line)."""
        client = opened.client()
        slow = opened.begin(call(client, 1))
        for seq in range(2, 40):
            done = [(2, seq - 1)] if seq > 2 else []
            opened.complete(call(client, seq, completed=done))
        assert opened.claim(call(client, 20)).verdict is Verdict.STALE
        wait(opened.store.finish(slow, FIRST))
        assert opened.answer(call(client, 1)) == FIRST

    # -- duplicates ---------------------------------------------------------------------

    def test_waiters_are_woken_when_the_attempt_ends(self, opened):
        """Every waiter of an attempt is called once, when it is settled (DESIGN §4)."""
        one = call(opened.client(), 1)
        attempt = opened.begin(one)
        woken = Counter()
        calls = [lambda name=name: woken.update([name]) for name in "abc"]
        for wake in calls:
            assert opened.store.wait(attempt, wake)
        opened.store.leave(attempt, calls[1])
        wait(opened.store.finish(attempt, FIRST))
        until(lambda: woken == Counter("ac"), "the two that stayed are woken once")
        assert not opened.store.wait(attempt, calls[0])

    def test_a_waiter_is_woken_by_an_abandon_too(self, opened):
        """An attempt without a record wakes its waiters, who decide again (DESIGN §4)."""
        attempt = opened.begin(call(opened.client(), 1))
        woken = threading.Event()
        assert opened.store.wait(attempt, woken.set)
        wait(opened.store.abandon(attempt))
        assert woken.wait(DEADLINE_S)

    def test_each_identity_runs_once_among_many_threads(self, opened):
        """Duplicates from many threads: one run, one answer, for every identity (DESIGN §1)."""
        client, runs = opened.client(), Counter()

        def run(attempt: Attempt) -> HandlerResult:
            runs[attempt.call.seq] += 1
            return HandlerResult(CompletionRecord(response=b"%d" % runs[attempt.call.seq]))

        def one(seq: int) -> bytes | None:
            steps = serve(opened.store, call(client, seq), PLAIN)
            return drive(steps, opened.store, run).record.response

        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(one, [seq for seq in range(1, 9) for _ in range(16)]))
        assert set(answers) == {b"1"}
        assert runs == Counter(range(1, 9))

    def test_one_waiter_wins_after_an_unrecorded_end(self, opened):
        """Of many waiters, exactly one runs after an attempt without a record (DESIGN §4)."""
        client, runs, lock = opened.client(), [], threading.Lock()
        policy = MethodPolicy(unrecorded=frozenset({14}))

        def run(attempt: Attempt) -> HandlerResult:
            with lock:
                runs.append(attempt)
                first = len(runs) == 1
            return HandlerResult(CompletionRecord(14) if first else FIRST)

        def one(_: int) -> int:
            return drive(serve(opened.store, call(client, 1), policy), opened.store, run).record[0]

        with ThreadPoolExecutor(8) as pool:
            codes = sorted(pool.map(one, range(8)))
        assert codes == [0] * 7 + [14]
        assert len(runs) == len(set(runs)) == 2

    def test_many_clients_at_once_share_nothing(self, opened):
        """Clients' calls of the same seq are different calls (DESIGN §3)."""
        clients = [opened.client() for _ in range(12)]

        def one(client: int) -> None:
            for seq in range(1, 6):
                opened.complete(call(client, seq), CompletionRecord(response=b"%d" % client))

        with ThreadPoolExecutor(12) as pool:
            list(pool.map(one, clients))
        for client in clients:
            assert opened.answer(call(client, 5)).response == b"%d" % client

    # -- keys, sessions, tokens -----------------------------------------------------------

    def test_keys_are_identities_of_their_own(self, opened):
        """A key is never a seq, and equal keys of two clients are two calls (DESIGN §3)."""
        one, two = opened.client(), opened.client()
        opened.complete(keyed(one, b"1"))
        opened.complete(call(one, 1), OTHER)
        opened.complete(keyed(two, b"1"), OTHER)
        assert opened.answer(keyed(one, b"1")) == FIRST
        assert opened.answer(call(one, 1)) == OTHER
        assert opened.claim(keyed(one, b"\x01"), PLAIN).verdict is Verdict.NEW

    def test_a_session_takes_keys_only_and_never_reopens(self, opened):
        """Sessions take keyed calls; a closed one is SESSION_CLOSED for ever (DESIGN §5)."""
        session = opened.authority.open_session("s").client_id
        with pytest.raises(BadHeader):
            opened.claim(call(session, 1))
        opened.complete(keyed(session, b"k"))
        opened.authority.close_session("s")
        assert opened.drop() == [session]
        with pytest.raises(SessionClosed):
            opened.claim(keyed(session, b"k"))

    def test_the_token_verified_last_is_kept(self, opened):
        """A client's verified token is remembered; a stranger's is empty (DESIGN §3)."""
        client = opened.client()
        assert opened.store.token(client) == b""
        opened.complete(Call(client, b"token", 1, fingerprint=b"f"))
        assert opened.store.token(client) == b"token"
        assert opened.store.token(client + 1) == b""

    # -- dropping -----------------------------------------------------------------------

    def test_an_expired_client_is_gone_with_its_records(self, opened):
        """Expiry removes the records; the id is unknown for ever (DESIGN §5)."""
        client = opened.client()
        opened.complete(call(client, 1))
        opened.now = TERM_S * 2
        assert opened.answer(call(client, 1)) == FIRST, "known calls outlive the lease"
        assert opened.drop() == [client]
        with pytest.raises(LeaseExpired):
            opened.claim(call(client, 1))
        until(lambda: client not in opened.store.leases.known_clients(), "the rows are gone")

    def test_a_drop_waits_for_running_calls(self, opened):
        """Records of a dropped client go after its running calls ended (DESIGN §4)."""
        client = opened.client()
        opened.complete(call(client, 1))
        attempt = opened.begin(call(client, 2))
        opened.now = TERM_S * 2
        opened.drop()
        assert opened.answer(call(client, 1)) == FIRST
        # Where a crash could bring the client back, the former cannot be told yet.
        with pytest.raises((LeaseExpired, InProgress)):
            opened.claim(call(client, 3))
        wait(opened.store.finish(attempt, FIRST))
        with pytest.raises(LeaseExpired):
            opened.claim(call(client, 2))
        until(lambda: client not in opened.store.leases.known_clients(), "the rows are gone")

    def test_draining_refuses_new_calls_only(self, opened):
        """New calls are DRAINING, known ones still answered, running ones end (DESIGN §3)."""
        client = opened.client()
        opened.complete(call(client, 1))
        attempt = opened.begin(call(client, 2))
        opened.store.refuse_new(True)
        with pytest.raises(Draining):
            opened.claim(call(client, 3))
        assert opened.answer(call(client, 1)) == FIRST
        assert not opened.store.settled(0.0)
        wait(opened.store.finish(attempt, FIRST))
        assert opened.store.settled(DEADLINE_S)
        opened.store.refuse_new(False)
        opened.complete(call(client, 3))

    # -- resolving ------------------------------------------------------------------------

    def test_a_call_resolved_before_it_arrived_never_runs(self, opened):
        """Resolving a call nobody saw records NOT_EXECUTED for good (DESIGN §4)."""
        client = opened.client()
        asked = Call(client, b"", 1)
        answer = drive(resolve(opened.store, asked, PLAIN), opened.store, None)
        assert answer.outcome is Outcome.NOT_EXECUTED
        late = opened.answer(call(client, 1))
        assert (late.outcome, late.reason) == (Outcome.NOT_EXECUTED, "NOT_EXECUTED")

    def test_a_call_that_ran_and_is_new_again_runs_again(self, opened):
        """Given up after its handler may have had an effect, it is no other call (DESIGN §1)."""
        client = opened.client()
        one = call(client, 1)
        for _ in range(2):
            attempt = opened.begin(one, IDEMPOTENT)
            attempt.ran = True
            wait(opened.store.abandon(attempt))
        opened.complete(one, OTHER)
        assert opened.answer(one) == OTHER

    def test_a_call_that_ran_and_is_new_again_is_not_resolved_as_not_executed(self, opened):
        """Only what is known to be not executed says so (DESIGN §3)."""
        client = opened.client()
        for seq, key in ((1, None), (None, b"k")):
            asked = Call(client, b"", seq, key, method="/m", fingerprint=b"p")
            attempt = opened.begin(asked, IDEMPOTENT)
            attempt.ran = True
            wait(opened.store.abandon(attempt))
            resolved = resolve(opened.store, Call(client, b"", seq, key), PLAIN)
            assert drive(resolved, opened.store, None).outcome is Outcome.UNKNOWN
        never = drive(resolve(opened.store, Call(client, b"", 2), PLAIN), opened.store, None)
        assert never.outcome is Outcome.NOT_EXECUTED

    def test_a_completed_call_resolves_to_its_record(self, opened):
        """Resolving a completed call gives its record and runs nothing (DESIGN §4)."""
        client = opened.client()
        opened.complete(call(client, 1))
        answer = drive(resolve(opened.store, Call(client, b"", 1), PLAIN), opened.store, None)
        assert answer.record == FIRST

    # -- keys -----------------------------------------------------------------------------

    def test_a_key_of_the_greatest_length_is_kept_as_it_is(self, place):
        """255 bytes of any kind name a call, and another last byte another (DESIGN §3)."""
        before = Opened(place)
        client = before.client()
        keys = [bytes(range(1, 256)), bytes(255), bytes(254) + b"\1", b"k" * 64, b"k" * 65]
        answers = [CompletionRecord(response=b"%d" % at) for at in range(len(keys))]
        for key, answer in zip(keys, answers, strict=True):
            before.complete(keyed(client, key), answer)
        assert [before.answer(keyed(client, key)) for key in keys] == answers
        before.close()
        if place.durable:
            after = Opened(place)
            assert [after.answer(keyed(client, key)) for key in keys] == answers
            after.close()
            with contextlib.closing(open_inspection(place.url)) as inspection:
                assert {each.rpc_id.key for each in inspection.calls(client)} == set(keys)

    # -- restart --------------------------------------------------------------------------

    def test_records_after_a_restart(self, place):
        """Durable stores answer from the record; memory refuses as expired (DESIGN §1)."""
        before = Opened(place)
        client = before.client()
        before.complete(call(client, 1))
        before.complete(keyed(client, b"k"), OTHER)
        before.close()
        after = Opened(place, now=1e6)
        try:
            if place.durable:
                assert after.answer(call(client, 1)) == FIRST
                assert after.answer(keyed(client, b"k")) == OTHER
                with pytest.raises(PayloadMismatch):
                    after.claim(call(client, 1, b"q"))
                after.now += TERM_S / 2
                after.complete(call(client, 2))
            else:
                for known in (call(client, 1), keyed(client, b"k")):
                    with pytest.raises(LeaseExpired):
                        after.claim(known)
        finally:
            after.close()

    def test_acknowledgements_after_a_restart(self, place):
        """A deleted record's acknowledgement survives with the deletion (DESIGN §4)."""
        before = Opened(place)
        client = before.client()
        for seq in range(1, 6):
            before.complete(call(client, seq))
        before.complete(call(client, 6, first=3, completed=[(5, 5)]))
        before.close()
        after = Opened(place)
        try:
            if not place.durable:
                with pytest.raises(LeaseExpired):
                    after.claim(call(client, 1))
                return
            for seq in (1, 2, 5):
                assert after.claim(call(client, seq)).verdict is Verdict.STALE
            for seq in (3, 4, 6):
                assert after.answer(call(client, seq)) == FIRST
        finally:
            after.close()

    def test_what_a_renewal_acknowledged_after_a_restart(self, place):
        """The record is gone, and the call stays stale: one commit did both (DESIGN §4, §5)."""
        before = Opened(place)
        client, renew = before.renewing()
        for seq in (1, 2, 3):
            before.complete(call(client, seq))
        renew(2, [(3, 3)])
        before.close()
        after = Opened(place)
        try:
            if not place.durable:
                with pytest.raises(LeaseExpired):
                    after.claim(call(client, 1))
                return
            verdicts = [after.claim(call(client, seq)).verdict for seq in (1, 2, 3)]
            assert verdicts == [Verdict.STALE, Verdict.COMPLETED, Verdict.STALE]
            with contextlib.closing(open_inspection(place.url)) as looked:
                assert looked.summary().records == 1
        finally:
            after.close()

    def test_an_open_intent_is_unknown_for_ever(self, place):
        """A plain call in flight at the end is OUTCOME_UNKNOWN ever after (DESIGN §1, §4)."""
        before = Opened(place)
        client = before.client()
        before.begin(call(client, 1))
        before.close()
        for _ in range(3):
            after = Opened(place)
            try:
                if not place.durable:
                    with pytest.raises(LeaseExpired):
                        after.claim(call(client, 1))
                    continue
                record = after.answer(call(client, 1))
                assert (record.reason, record.outcome) == ("OUTCOME_UNKNOWN", Outcome.UNKNOWN)
            finally:
                after.close()

    def test_an_idempotent_call_in_flight_is_new_after_a_restart(self, place):
        """No intent is kept of an idempotent call: it runs again (DESIGN §1)."""
        before = Opened(place)
        client = before.client()
        before.complete(call(client, 1))
        before.begin(call(client, 2), IDEMPOTENT)
        before.close()
        after = Opened(place)
        try:
            if place.durable:
                after.complete(call(client, 2), OTHER)
            else:
                with pytest.raises(LeaseExpired):
                    after.claim(call(client, 2))
        finally:
            after.close()

    def test_a_client_that_was_granted_is_known_after_a_restart(self, place):
        """Its row is durable before its id is told: its first call is like others (DESIGN §5)."""
        before = Opened(place)
        client = before.client()
        before.close()
        after = Opened(place)
        try:
            if place.durable:
                assert after.claim(call(client, 1)).verdict is Verdict.NEW
            else:
                with pytest.raises(LeaseExpired):
                    after.claim(call(client, 1))
        finally:
            after.close()

    def test_a_dropped_client_stays_dropped_after_a_restart(self, place):
        """Row and records go in one transaction; the id is unknown for ever (DESIGN §5)."""
        before = Opened(place)
        client = before.client()
        before.complete(call(client, 1))
        before.now = TERM_S * 2
        before.drop()
        before.close()
        after = Opened(place)
        try:
            assert after.store.leases.known_clients() == []
            with pytest.raises(LeaseExpired):
                after.claim(call(client, 1))
        finally:
            after.close()

    def test_a_known_client_gets_a_full_new_term(self, place):
        """Expiry times are not kept: after a restart a known client has a term (DESIGN §5)."""
        before = Opened(place)
        client = before.client()
        before.complete(call(client, 1))
        before.now = TERM_S * 5
        before.close()
        after = Opened(place, now=77.0)
        try:
            assert after.authority.alive(client) is place.durable
        finally:
            after.close()

    # -- what leases need kept -------------------------------------------------------------

    def test_id_blocks_never_overlap(self, place):
        """Blocks lie above all earlier ones, from many threads and openings (DESIGN §5)."""
        blocks = []
        for _ in range(2):
            opened = Opened(place)
            leases = opened.store.leases
            with ThreadPoolExecutor(8) as pool:
                mine = list(pool.map(lambda _, kept=leases: kept.reserve_ids(7), range(40)))
            opened.close()
            if blocks and place.durable:
                assert min(mine)[0] > max(blocks)[1]
            blocks += mine
        ids = [number for first, last in blocks for number in range(first, last + 1)]
        assert len(ids) == len(set(ids)) == 2 * 40 * 7
        assert min(ids) >= 1
        assert max(ids) < 2**63

    def test_secrets_are_stable(self, place):
        """Everyone gets the same secret; rotation keeps two; both survive (DESIGN §5)."""
        opened = Opened(place)
        leases = opened.store.leases
        with ThreadPoolExecutor(8) as pool:
            seen = list(pool.map(lambda _: leases.secrets(), range(16)))
        assert all(secrets == seen[0] for secrets in seen)
        second = leases.rotate_secret()
        assert second[1:] == seen[0]
        third = leases.rotate_secret()
        assert third[1:] == second[:1]
        assert third == leases.secrets()
        opened.close()
        if place.durable:
            after = Opened(place)
            assert after.store.leases.secrets() == third
            after.close()

    def test_a_session_has_one_secret_after_a_restart(self, place):
        """The new one that was shown with the old one, of its whole series too (DESIGN §5)."""
        opened = Opened(place)
        names = ("s", "q#1", "q#2")
        ids = [opened.authority.open_session(name, secret=b"old").client_id for name in names]
        for name in ("s", "q#2"):
            opened.authority.open_session(name, secret=b"new", older=[b"old"])
        if place.durable:
            opened.close()
            opened = Opened(place)
        ours = opened.authority
        assert [ours.open_session(name, secret=b"new").client_id for name in names] == ids
        for name in names:
            with pytest.raises(NotYours):
                ours.open_session(name, secret=b"old")
        opened.close()

    def test_sessions_are_put_once_and_never_reopened(self, place):
        """One id a name; what is closed stays closed; forgotten names are free (DESIGN §5)."""
        opened = Opened(place)
        leases: LeaseStorage = opened.store.leases
        leases.reserve_ids(100)
        row = SessionRow(5, "n", b"peer", SessionState.OPEN, 10.0, 1.5)
        assert leases.put_session(row) == row
        rival = SessionRow(6, "n", b"peer", SessionState.OPEN, 10.0, 1.5)
        assert leases.put_session(rival) == row
        assert leases.put_session(SessionRow(6, "n", b"", SessionState.OPEN, 1.0, 1.0)).name == "n"
        closed = SessionRow(5, "n", b"peer", SessionState.CLOSED, 10.0, 2.5)
        assert leases.put_session(closed) == closed
        assert leases.put_session(row) == closed
        assert leases.put_session(rival) == closed
        if place.durable:
            opened.close()
            opened = Opened(place)
            leases = opened.store.leases
        assert sorted(kept.client_id for kept in leases.load_sessions()) == [5, 6]
        assert closed in leases.load_sessions()
        leases.forget_session(5)
        leases.forget_session(12345)
        anew = SessionRow(7, "n", b"peer", SessionState.OPEN, 1.0, 3.5)
        assert leases.put_session(anew) == anew
        opened.close()

    def test_the_winner_of_two_openers_is_one(self, opened):
        """Of threads opening one name, all get the one id that stands (DESIGN §5)."""
        leases = opened.store.leases

        def put(number: int) -> int:
            row = SessionRow(number, "same", b"", SessionState.OPEN, 1.0, 1.0)
            return leases.put_session(row).client_id

        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(put, range(100, 116)))) == 1
