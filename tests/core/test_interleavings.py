"""Arrivals of the same calls, interleaved at random over a small store, with crashes.

Each arrival is a generator of ``rifl.core._serving.serving`` driven one step at a time; the
store decides by a real ``ClientTable`` and makes things durable late, or not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rifl._stores.held_answers import HeldAnswers
from rifl.core import (
    CompletionRecord,
    LeaseExpired,
    Outcome,
    OutcomeUnknown,
    RecordPending,
    RiflError,
    StoreUnavailable,
    Verdict,
)
from rifl.core._serving.admission import Wait
from rifl.core._serving.answer import Answer, HandlerResult, refusal_record
from rifl.core._serving.client_table import Attempt, ClientTable, Decision
from rifl.core._serving.later import Later
from rifl.core._serving.policy import Kind, MethodPolicy
from rifl.core._serving.serving import resolve, serve
from rifl.core._shared.call import Call

CLIENT = 7
NOTHING_HAPPENED = 14
CALLS = 12


class AlwaysAlive:
    def renew(self, client_id: int, now: float) -> bool:
        return True

    def is_session(self, client_id: int) -> bool:
        return False

    def writes(self, client_id: int, token: bytes) -> bool:
        return True

    def holder(self, client_id: int) -> bytes:
        return b""


class Due(Later):
    """Something the disk has yet to do; it happens when the scheduler says so."""

    def __init__(self, happen: Callable[[], None], failure: RiflError, patient: bool) -> None:
        self.happen = happen
        self.failure = failure
        self.patient = patient
        self.state: str = "queued"

    def wait(self) -> Any:
        raise NotImplementedError

    def __await__(self) -> Generator[Any, Any, Any]:
        raise NotImplementedError


class Disk:
    """What survives a crash: intents, records, and what is acknowledged."""

    def __init__(self) -> None:
        self.intents: set[int] = set()
        self.records: dict[int, CompletionRecord] = {}
        self.acknowledged: set[int] = set()


class DurableAttempt(Attempt):
    """An attempt that knows whether its intent is durable."""

    intended = False


class Store:
    """One incarnation of a server's store: ``Records`` over a ClientTable and the disk."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.queue: list[Due] = []
        self.table = ClientTable(AlwaysAlive(), note_released=True, attempts=DurableAttempt)
        for seq in disk.intents:
            lost = OutcomeUnknown("the server stopped while the call ran")
            disk.records.setdefault(seq, refusal_record(lost))
        disk.intents.clear()
        tracker = self.table.entry(CLIENT).tracker
        for seq in disk.acknowledged:
            tracker.acknowledge(1, [(seq, seq)])
        for seq, record in disk.records.items():
            tracker.restore(seq, (b"f", record, 0))

    def claim(self, call: Call, policy: MethodPolicy) -> Decision:
        decision = self.table.decide(call, policy, 0.0)
        self.forget()
        return decision

    def forget(self) -> None:
        for seq in [seq for _, seqs in self.table.take_released() for seq in seqs]:
            # One transaction (DESIGN §4, removing records).
            self.disk.acknowledged.add(seq)
            self.disk.intents.discard(seq)
            self.disk.records.pop(seq, None)

    def start(self, attempt: Attempt) -> Due | None:
        if attempt.policy.kind is not Kind.PLAIN:
            return None

        def durable() -> None:
            attempt.intended = True
            if self.wanted(attempt):
                self.disk.intents.add(attempt.call.seq)  # type: ignore[arg-type]

        return self.enqueue(durable, StoreUnavailable("disk full"), patient=False)

    def committed(self, attempt: Attempt) -> CompletionRecord | None:
        return attempt.recorded

    def finish(self, attempt: Attempt, record: CompletionRecord) -> Due:
        def durable() -> None:
            if self.wanted(attempt):
                self.disk.intents.discard(attempt.call.seq)  # type: ignore[arg-type]
                self.disk.records[attempt.call.seq] = record  # type: ignore[index]
            self.table.settle(attempt, record, keep=True)

        return self.enqueue(durable, RecordPending("disk full"), patient=True)

    @property
    def held(self) -> HeldAnswers:
        return HeldAnswers()

    def may_have_run(self, attempt: Attempt) -> bool:
        return False

    def adopt(self, attempt: Attempt, record: CompletionRecord) -> None:
        self.table.settle(attempt, record, keep=True)

    def abandon(self, attempt: Attempt) -> Due | None:
        if not attempt.intended:
            self.table.settle(attempt, None, keep=True)
            return None

        def durable() -> None:
            self.disk.intents.discard(attempt.call.seq)  # type: ignore[arg-type]
            self.table.settle(attempt, None, keep=True)

        return self.enqueue(durable, RecordPending("disk full"), patient=True)

    def wanted(self, attempt: Attempt) -> bool:
        """Not acknowledged while it ran."""
        tracker = self.table.entry(CLIENT).tracker
        return tracker.peek(attempt.call.seq) is not Verdict.STALE  # type: ignore[arg-type]

    def enqueue(self, happen: Callable[[], None], failure: RiflError, *, patient: bool) -> Due:
        due = Due(happen, failure, patient)
        self.queue.append(due)
        return due


class Arrival:
    """One arrival of a call: its generator, and what it waits for."""

    def __init__(self, seq: int, steps: Generator[Any, Any, Answer], resolving: bool) -> None:
        self.seq = seq
        self.steps = steps
        self.resolving = resolving
        self.waits_for: Any = None


class World:
    """A server, its arrivals and its crashes, run by a seeded scheduler."""

    def __init__(self, kind: Kind, seed: int) -> None:
        self.random = Random(seed)
        self.policy = MethodPolicy(kind=kind, unrecorded=frozenset({NOTHING_HAPPENED}))
        self.disk = Disk()
        self.store = Store(self.disk)
        self.arrivals: list[Arrival] = []
        self.effects: Counter[int] = Counter()
        self.runs = 0
        self.answers: dict[int, CompletionRecord] = {}
        self.refused_for_good: set[int] = set()
        # Of which this server knows that an earlier run may have had an effect.
        self.doubtful: set[int] = set()

    # -- what can happen -----------------------------------------------------------

    def arrive(self) -> None:
        seq = self.random.randint(1, CALLS)
        acknowledged = ()
        if self.random.random() < 0.05:
            gone = self.random.randint(2, CALLS)
            acknowledged = () if gone == seq else ((gone, gone),)
        call = Call(CLIENT, b"", seq, None, 1, acknowledged, fingerprint=b"f")
        resolving = self.random.random() < 0.05
        rule = resolve if resolving else serve
        self.advance(Arrival(seq, rule(self.store, call, self.policy), resolving))

    def commit(self) -> None:
        """The disk does one thing that is queued, or fails to."""
        if not self.store.queue:
            return
        due = self.random.choice(self.store.queue)
        if self.random.random() < 0.2:
            due.state = "failed"
            if not due.patient:
                self.store.queue.remove(due)
        else:
            self.store.queue.remove(due)
            due.happen()
            due.state = "failed" if due.state == "failed" else "done"
        self.wake()

    def end_a_run(self) -> None:
        running = [it for it in self.arrivals if isinstance(it.waits_for, Attempt)]
        if not running:
            return
        arrival = self.random.choice(running)
        attempt: Attempt = arrival.waits_for
        self.runs += 1
        record = CompletionRecord(0, "", f"run {self.runs}".encode())
        how = self.random.random()
        if how < 0.2:
            # Nothing happened, and the handler says so.
            self.advance(arrival, HandlerResult(CompletionRecord(NOTHING_HAPPENED)))
            return
        committed = self.policy.kind is not Kind.ATOMIC or how > 0.4
        if committed:
            self.effects[arrival.seq] += 1
            if self.policy.kind is Kind.ATOMIC:
                if not self.store.wanted(attempt):
                    # rifl.record refuses, and the transaction rolls back.
                    self.effects[arrival.seq] -= 1
                    self.doubtful.add(arrival.seq)
                    self.advance(arrival, HandlerResult(CompletionRecord(2), raised=True))
                    return
                # The effect and its record are one commit.
                self.disk.records[arrival.seq] = attempt.recorded = record
        raised = not committed or 0.4 < how < 0.6
        if self.random.random() < 0.1:
            self.crash()
            return
        result = CompletionRecord(2, f"raised {self.runs}") if raised else record
        # Of a transaction that is not ours nobody knows that it was rolled back.
        undone = raised and not committed and how < 0.3
        if raised and not undone:
            self.doubtful.add(arrival.seq)
        self.advance(arrival, HandlerResult(result, raised, undone=undone))

    def crash(self) -> None:
        """The server dies: only the disk is left."""
        self.arrivals.clear()
        self.doubtful.clear()
        self.store = Store(self.disk)

    # -- the shell -----------------------------------------------------------------

    def advance(self, arrival: Arrival, value: Any = None, error: RiflError | None = None) -> None:
        if arrival in self.arrivals:
            self.arrivals.remove(arrival)
        try:
            step = arrival.steps.send(value) if error is None else arrival.steps.throw(error)
        except StopIteration as stop:
            self.answered(arrival, stop.value)
        except RiflError:
            pass
        else:
            arrival.waits_for = step
            if isinstance(step, Attempt):
                self.starts(arrival)
            self.arrivals.append(arrival)
        self.wake()

    def wake(self) -> None:
        """Everyone whose wait is over goes on, in no particular order."""
        for arrival in self.random.sample(self.arrivals, len(self.arrivals)):
            if arrival not in self.arrivals:
                continue
            step = arrival.waits_for
            if isinstance(step, Wait) and step.attempt.ended:
                self.advance(arrival, True)
            elif isinstance(step, Due) and step.state == "failed":
                self.advance(arrival, error=step.failure)
            elif isinstance(step, Due) and step.state == "done":
                self.advance(arrival)

    # -- what must hold ------------------------------------------------------------

    def starts(self, arrival: Arrival) -> None:
        assert not arrival.resolving, "a resolution never runs the handler"
        others = [it.seq for it in self.arrivals if isinstance(it.waits_for, Attempt)]
        assert arrival.seq not in others, "two runs of one identity at once"
        assert arrival.seq not in self.disk.records, "a run began after the record"
        assert arrival.seq not in self.refused_for_good, "a resolved call ran"
        if self.policy.kind is Kind.PLAIN and arrival.seq not in self.disk.acknowledged:
            assert arrival.seq in self.disk.intents, "a run began before its intent"

    def answered(self, arrival: Arrival, answer: Answer) -> None:
        record, outcome = answer
        if record.code == NOTHING_HAPPENED or (
            self.policy.kind is Kind.ATOMIC
            and outcome in (Outcome.NOT_EXECUTED, Outcome.UNKNOWN)
            and not record.reason
        ):
            # Told to the one that ran: not recorded, and the next may run.
            told = outcome is Outcome.NOT_EXECUTED or arrival.seq in self.doubtful
            assert told or record.code != NOTHING_HAPPENED
            return
        if outcome is Outcome.NOT_EXECUTED:
            self.refused_for_good.add(arrival.seq)
            # After a crash nobody knows of an idempotent call's lost run.
            if self.policy.kind is not Kind.IDEMPOTENT:
                assert not self.effects[arrival.seq], "told as not executed, and it was"
        # An answer that left is the answer for ever, and it was durable first.
        assert self.answers.setdefault(arrival.seq, record) == record
        assert arrival.seq in self.disk.acknowledged or self.disk.records[arrival.seq] == record

    def check(self) -> None:
        for seq, count in self.effects.items():
            if self.policy.kind is not Kind.IDEMPOTENT:
                assert count <= 1, f"{seq} had its effect {count} times"

    def settle_down(self) -> None:
        """Everything queued is done and every run ends; then each call is asked for."""
        for _ in range(100_000):
            if not self.store.queue and not self.arrivals:
                break
            self.commit()
            self.end_a_run()
        assert not self.arrivals, "an arrival waits for ever"
        assert self.store.table.running() == [], "an attempt was never settled"
        for seq in set(self.disk.records):
            call = Call(CLIENT, b"", seq, fingerprint=b"f")
            steps = serve(self.store, call, self.policy)
            with pytest.raises(StopIteration) as stop:
                next(steps)
            assert stop.value.value.record == self.disk.records[seq]


@pytest.mark.parametrize("kind", list(Kind))
@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_interleaving_keeps_the_promises(kind: Kind, seed: int) -> None:
    """However arrivals, late and failed commits, raising handlers, acknowledgements,
    resolutions and crashes of the server interleave: one run at a time, none once a record
    stands, one answer for ever, and plain and atomic effects at most once (DESIGN §1, §4)."""
    world = World(kind, seed)
    for _ in range(150):
        happens = world.random.random()
        if happens < 0.35:
            world.arrive()
        elif happens < 0.7:
            world.commit()
        elif happens < 0.98:
            world.end_a_run()
        else:
            world.crash()
        world.check()
    world.settle_down()
    world.check()


def test_the_scheduler_reaches_what_it_is_for() -> None:
    """Over some seeds effects, replays, lasting unknowns, resolutions and acknowledgements
    all occur, so that the property above is not empty (DESIGN §4)."""
    seen: Counter[str] = Counter()
    for seed in range(30):
        world = World(Kind.PLAIN, seed)
        for _ in range(150):
            world.random.choice((world.arrive, world.commit, world.end_a_run))()
            if world.random.random() < 0.02:
                world.crash()
        seen["effects"] += world.effects.total()
        seen["acknowledged"] += len(world.disk.acknowledged)
        for record in world.answers.values():
            seen[record.reason or "answered"] += 1
    assert set(seen) == {
        "effects",
        "acknowledged",
        "answered",
        "OUTCOME_UNKNOWN",
        "NOT_EXECUTED",
    }
    assert min(seen.values()) > 5


class Mortal(AlwaysAlive):
    """A lease that ends when the test says so."""

    def __init__(self) -> None:
        self.live = True

    def renew(self, client_id: int, now: float) -> bool:
        return self.live


def test_a_dropped_client_never_runs_again() -> None:
    """After its lease is over a late duplicate of a call that ran is refused, also when the
    call was still running then (DESIGN §4, removing records; §5)."""
    leases = Mortal()
    store = Store(Disk())
    store.table = ClientTable(leases, attempts=DurableAttempt)
    policy = MethodPolicy(kind=Kind.IDEMPOTENT)
    call = Call(CLIENT, b"", 1, fingerprint=b"f")
    steps = serve(store, call, policy)
    assert isinstance(next(steps), Attempt)
    leases.live = False
    assert store.table.drop([CLIENT]) == []
    due = steps.send(HandlerResult(CompletionRecord(0, "", b"answer")))
    store.table.settle(due_attempt(store), CompletionRecord(0, "", b"answer"), keep=True)
    assert due.patient
    with pytest.raises(LeaseExpired):
        next(serve(store, call, policy))


def due_attempt(store: Store) -> Attempt:
    (attempt,) = store.table.running()
    return attempt
