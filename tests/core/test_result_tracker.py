"""The server's tracker against its contract and RIFL §3.3 (DESIGN §4)."""

from __future__ import annotations

import copy
import tracemalloc
from collections import Counter
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rifl.core import BadHeader, RequestTracker, ResultTracker, Verdict, WindowExceeded

Ranges = list[tuple[int, int]]
FAR = 5000
_SEQS = [*range(1, 30), *range(FAR, FAR + 12), *range(2 * FAR, 2 * FAR + 12)]


class Naive:
    """The contract in sets and dictionaries, and nothing clever."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.first_incomplete = 1
        self.acknowledged: set[int] = set()
        self.running: set[int] = set()
        self.records: dict[int, object] = {}

    def begin(self, seq: int, first_incomplete: int, completed: Ranges) -> Verdict | str:
        flat = [edge for span in completed for edge in span]
        ordered = all(first <= last for first, last in completed) and all(
            flat[at] < flat[at + 1] for at in range(1, len(flat) - 1, 2)
        )
        above = not flat or flat[0] > first_incomplete
        covers = any(first <= seq <= last for first, last in completed)
        if seq < 1 or not 1 <= first_incomplete <= seq or not ordered or not above or covers:
            return "bad header"
        self.first_incomplete = max(self.first_incomplete, first_incomplete)
        for first, last in completed:
            self.acknowledged.update(range(first, last + 1))
        for known in [*self.running, *self.records]:
            if self.stale(known):
                self.running.discard(known)
                self.records.pop(known, None)
        if seq in self.running:
            return Verdict.IN_PROGRESS
        if seq in self.records:
            return Verdict.COMPLETED
        if self.stale(seq):
            return Verdict.STALE
        if len(self.running) + len(self.records) >= self.window:
            return "window exceeded"
        self.running.add(seq)
        return Verdict.NEW

    def stale(self, seq: int) -> bool:
        return seq < self.first_incomplete or seq in self.acknowledged

    def finish(self, seq: int, record: object) -> None:
        if seq in self.running:
            self.running.remove(seq)
            self.records[seq] = record


def begin(tracker: ResultTracker, *header: object) -> Verdict | str:
    try:
        return tracker.begin(*header)  # type: ignore[arg-type]
    except BadHeader:
        return "bad header"
    except WindowExceeded:
        return "window exceeded"


class Seen(NamedTuple):
    """All that can be observed of a tracker."""

    first_incomplete: int
    known: int
    ranges: Ranges
    verdicts: list[Verdict]
    records: list[object]


def observe(tracker: ResultTracker) -> Seen:
    return Seen(
        tracker.first_incomplete,
        len(tracker),
        tracker.completed_ranges(),
        [tracker.peek(seq) for seq in _SEQS],
        [tracker.record(seq) for seq in _SEQS],
    )


_SEQ = st.sampled_from(_SEQS)
_ORDERED = st.lists(_SEQ, max_size=8, unique=True).map(
    lambda edges: list(zip(sorted(edges)[::2], sorted(edges)[1::2], strict=False))
)
_ANYHOW = st.lists(st.tuples(_SEQ, _SEQ), max_size=3)
_BEGIN = st.tuples(
    st.just("begin"),
    st.one_of(_SEQ, st.integers(-2, 3)),
    st.one_of(st.just(1), st.just(1), st.integers(-1, 12), _SEQ),
    st.one_of(st.just([]), _ORDERED, _ORDERED, _ANYHOW),
)
_OTHER = st.tuples(st.sampled_from(["finish", "abandon"]), _SEQ, st.just(0), st.just([]))


@settings(max_examples=400, deadline=None)
@given(
    window=st.integers(1, 6), steps=st.lists(st.one_of(_BEGIN, _BEGIN, _BEGIN, _OTHER), max_size=40)
)
def test_it_keeps_the_contract(window: int, steps: list[tuple[str, int, int, Ranges]]) -> None:
    """Verdicts, records and refusals are those of the naive model, and BadHeader leaves
    no trace (RIFL §3.3)."""
    tracker, naive = ResultTracker(window), Naive(window)
    for number, (step, seq, first_incomplete, completed) in enumerate(steps):
        before = observe(tracker)
        if step == "begin":
            expected = naive.begin(seq, first_incomplete, completed)
            assert begin(tracker, seq, first_incomplete, completed) == expected
            if expected == "bad header":
                assert observe(tracker) == before
        elif step == "finish":
            naive.finish(seq, number)
            tracker.finish(seq, number)
        else:
            naive.running.discard(seq)
            tracker.abandon(seq)
        assert tracker.first_incomplete == naive.first_incomplete
        assert len(tracker) == len(naive.running) + len(naive.records) <= window
        for probe in _SEQS:
            assert tracker.record(probe) == naive.records.get(probe)
            assert (tracker.peek(probe) is Verdict.STALE) == naive.stale(probe)


@pytest.mark.parametrize(
    ("seq", "first_incomplete", "completed"),
    [
        (0, 1, []),
        (-1, 1, []),
        (2**63, 1, []),
        (2**64 - 1, 1, []),
        (5, 6, []),
        (5, 0, []),
        (5, -7, []),
        (9, 3, [(3, 4)]),
        (9, 3, [(2, 4)]),
        (9, 1, [(4, 3)]),
        (9, 1, [(5, 6), (3, 4)]),
        (9, 1, [(3, 5), (5, 6)]),
        (9, 1, [(9, 9)]),
        (9, 1, [(3, 4), (6, 12)]),
        (9, 1, [(10, 2**63)]),
    ],
)
def test_numbers_that_do_not_fit_leave_no_trace(
    seq: int, first_incomplete: int, completed: Ranges
) -> None:
    """Each rule on a header's numbers is BadHeader, with all state as before."""
    tracker = ResultTracker(4)
    tracker.begin(4)
    tracker.begin(6)
    tracker.finish(6, "six")
    before = observe(tracker)
    with pytest.raises(BadHeader):
        tracker.begin(seq, first_incomplete, completed)
    assert observe(tracker) == before


def test_the_largest_seq_is_a_seq() -> None:
    """2^63 - 1 is the last seq of the wire format and is served (rifl.proto; DESIGN §3)."""
    tracker = ResultTracker()
    assert tracker.begin(2**63 - 1, 2**63 - 1) is Verdict.NEW
    assert tracker.begin(2**63 - 2, 1) is Verdict.STALE


def test_ranges_that_touch_are_disjoint() -> None:
    """Ranges need not be maximal, only sorted and disjoint."""
    tracker = ResultTracker()
    assert tracker.begin(9, 1, [(2, 3), (4, 5)]) is Verdict.NEW
    assert [tracker.peek(seq) for seq in (1, 2, 5, 6)] == [
        Verdict.NEW,
        Verdict.STALE,
        Verdict.STALE,
        Verdict.NEW,
    ]


def test_the_window_is_judged_after_the_acknowledgements() -> None:
    """A header that makes room for its own call is let in (DESIGN §4, step 5)."""
    tracker = ResultTracker(2)
    tracker.begin(1)
    tracker.begin(2)
    assert tracker.begin(3, 2) is Verdict.NEW
    assert tracker.begin(4, 2, [(3, 3)]) is Verdict.NEW
    with pytest.raises(WindowExceeded):
        tracker.begin(5, 2)


def test_acknowledgements_stay_applied_when_the_window_is_exceeded() -> None:
    """A refused header has freed what it acknowledged (DESIGN §4, step 4)."""
    tracker = ResultTracker(2)
    for seq in (3, 4):
        tracker.begin(seq)
        tracker.finish(seq, f"record {seq}")
    tracker.abandon(3)
    with pytest.raises(WindowExceeded):
        tracker.begin(9, 3, [(6, 7)])
    assert tracker.first_incomplete == 3
    assert [tracker.peek(seq) for seq in (2, 6, 7)] == [Verdict.STALE] * 3
    assert tracker.peek(9) is Verdict.NEW
    assert (tracker.record(3), tracker.record(4)) == ("record 3", "record 4")


def test_the_first_record_stands() -> None:
    """A second finish, or one of a call never begun, changes nothing (RIFL §3.3)."""
    tracker = ResultTracker()
    tracker.finish(1, "never begun")
    assert tracker.begin(1) is Verdict.NEW
    tracker.finish(1, "first")
    tracker.finish(1, "second")
    tracker.abandon(1)
    assert tracker.begin(1) is Verdict.COMPLETED
    assert tracker.record(1) == "first"


@pytest.mark.parametrize("record", [None, 0, b"", "", False, ()])
def test_an_empty_record_is_a_record(record: object) -> None:
    """Whatever was recorded, the call is completed and does not run again (RIFL §3.3)."""
    tracker = ResultTracker()
    tracker.begin(1)
    tracker.finish(1, record)
    assert tracker.begin(1) is Verdict.COMPLETED
    assert tracker.record(1) == record


def test_a_late_finish_of_an_acknowledged_call_is_dropped() -> None:
    """It takes no room and brings nothing back (RIFL §3.3)."""
    tracker = ResultTracker(1)
    tracker.begin(1)
    tracker.begin(2, 2)
    tracker.finish(1, "late")
    tracker.abandon(1)
    assert tracker.record(1) is None
    assert tracker.begin(1) is Verdict.STALE
    assert len(tracker) == 1


def test_an_abandoned_call_is_new_again_unless_acknowledged() -> None:
    """abandon makes NEW once more, and frees its place (DESIGN §4)."""
    tracker = ResultTracker(1)
    assert tracker.begin(1) is Verdict.NEW
    tracker.abandon(1)
    tracker.abandon(1)
    assert tracker.begin(2) is Verdict.NEW
    tracker.abandon(2)
    assert tracker.begin(1) is Verdict.NEW
    assert tracker.begin(1) is Verdict.IN_PROGRESS


def test_an_old_header_takes_nothing_back() -> None:
    """A delayed header with older numbers changes no acknowledgement (RIFL §3.3)."""
    tracker = ResultTracker()
    tracker.begin(50, 40, [(42, 44)])
    before = observe(tracker)
    assert tracker.begin(7, 2, [(4, 5)]) is Verdict.STALE
    assert observe(tracker) == before


def test_a_far_acknowledgement_that_found_no_room_frees_nothing() -> None:
    """However many ranges a client sends, a call it completed never runs again: its record
    goes only when the acknowledgement is remembered (DESIGN §4; RIFL §3.3)."""
    tracker = ResultTracker(window=4)
    seq = 10**6
    tracker.begin(seq)
    tracker.finish(seq, "answer")
    for at in range(20_000):
        tracker.acknowledge(1, [(10**7 + 2 * at, 10**7 + 2 * at)])
    assert len(tracker.completed_ranges()) < 20_000
    tracker.acknowledge(1, [(seq, seq)])
    assert tracker.begin(seq) is Verdict.COMPLETED
    assert tracker.record(seq) == "answer"
    assert tracker.begin(10**8, seq + 1) is Verdict.NEW
    assert tracker.begin(seq) is Verdict.STALE


def test_thousands_of_far_ranges_are_remembered() -> None:
    """The bound on distance is far larger than the window, so STALE is for ever also for
    a client whose completed calls lie scattered."""
    tracker = ResultTracker(window=4)
    seqs = range(10_000, 10_000 + 2 * 4000, 2)
    for seq in seqs:
        tracker.acknowledge(1, [(seq, seq)])
    assert all(tracker.peek(seq) is Verdict.STALE for seq in seqs)
    assert all(tracker.peek(seq + 1) is Verdict.NEW for seq in seqs)


@pytest.mark.parametrize(
    "header", [(10**9, 10**9, ()), (10**9, 1, ()), (10**9, 1, ((2, 10**9 - 1),))]
)
def test_a_first_call_with_a_large_seq_is_cheap(
    header: tuple[int, int, tuple[tuple[int, int], ...]],
) -> None:
    """First contact after a failover takes memory, and so time, in proportion to what is
    unacknowledged, not to seq."""
    tracemalloc.start()
    try:
        tracker = ResultTracker()
        assert tracker.begin(*header) is Verdict.NEW
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16_384
    if header[2]:
        assert [tracker.peek(seq) for seq in (1, 2, 10**9 - 1, 10**9, 10**9 + 1)] == [
            Verdict.NEW,
            Verdict.STALE,
            Verdict.STALE,
            Verdict.IN_PROGRESS,
            Verdict.NEW,
        ]


def test_a_long_life_leaves_no_memory() -> None:
    """After a hundred thousand calls the tracker is as small as after one."""
    tracker = ResultTracker()
    for seq in range(1, 100_001):
        tracker.begin(seq, seq)
        tracker.finish(seq, "record")
    tracemalloc.start()
    try:
        copied = copy.deepcopy(tracker)
        size = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(copied) == 1
    assert size < 16_384


def test_released_calls_are_told_once() -> None:
    """A store hears of every call that was known and is forgotten, once (DESIGN §4)."""
    released: list[tuple[int, int]] = []
    tracker = ResultTracker(client_id=7, released=released)
    for seq in (1, 2, 3, FAR, FAR + 1):
        tracker.begin(seq)
    tracker.finish(2, "two")
    tracker.begin(9, 3, [(4, 7), (FAR + 1, FAR + 5)])
    assert sorted(released) == [(7, 1), (7, 2), (7, FAR + 1)]
    released.clear()
    tracker.begin(9, 3, [(4, 7), (FAR + 1, FAR + 5)])
    assert released == []


def test_what_is_persisted_restores_the_tracker() -> None:
    """First incomplete, ranges and records put back give the same verdicts (DESIGN §5)."""
    tracker = ResultTracker()
    for seq in (4, 6, FAR, FAR + 3):
        tracker.begin(seq)
        tracker.finish(seq, f"record {seq}")
    tracker.begin(9, 4, [(5, 6), (FAR - 90, FAR - 50), (FAR + 1, FAR + 2)])
    tracker.abandon(9)
    restored = ResultTracker()
    restored.acknowledge(tracker.first_incomplete, tracker.completed_ranges())
    for seq in (4, 6, FAR, FAR + 3):
        # The row of 6 may still be there: its acknowledgement wins.
        restored.restore(seq, f"record {seq}")
    assert observe(restored) == observe(tracker)


class Message(NamedTuple):
    seq: int
    first_incomplete: int
    completed: Ranges


class Honest:
    """A client and its server's tracker, with a network between that repeats and reorders."""

    def __init__(self, window: int, random: Random) -> None:
        self.random = random
        self.client = RequestTracker(window)
        self.server = ResultTracker(window)
        self.network: list[Message] = []
        self.unanswered: set[int] = set()
        self.running: list[int] = []
        self.runs: Counter[int] = Counter()
        self.answers: dict[int, str] = {}

    def send(self, seq: int) -> None:
        header = Message(seq, self.client.first_incomplete, self.client.completed_ranges())
        self.network += [header] * self.random.choice((1, 1, 2, 3))

    def step(self) -> None:
        action = self.random.random()
        if action < 0.25:
            if self.client.incomplete < self.client.window:
                begun = self.client.begin()
                assert begun is not None
                seq = begun[0]
                self.unanswered.add(seq)
                self.send(seq)
        elif action < 0.35 and self.unanswered:
            self.send(self.random.choice(sorted(self.unanswered)))
        elif action < 0.75 and self.network:
            at = self.random.randrange(len(self.network))
            # Some stay in the network and arrive again.
            keep = self.random.random() < 0.3
            self.arrive(self.network[at] if keep else self.network.pop(at))
        elif self.running:
            seq = self.running.pop(self.random.randrange(len(self.running)))
            self.runs[seq] += 1
            self.server.finish(seq, f"run {self.runs[seq]} of {seq}")

    def arrive(self, message: Message) -> None:
        # WindowExceeded and BadHeader fail the test: the client is honest.
        verdict = self.server.begin(*message)
        if verdict is Verdict.NEW:
            self.running.append(message.seq)
        elif verdict is Verdict.COMPLETED:
            answer = self.server.record(message.seq)
            assert self.answers.setdefault(message.seq, answer) == answer
            self.unanswered.discard(message.seq)
            self.client.complete(message.seq)
        elif verdict is Verdict.STALE:
            assert message.seq not in self.unanswered
        assert len(self.server) <= self.client.window


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 24), st.integers(1, 24))
def test_every_call_of_honest_clients_runs_once(seed: int, window: int, other_window: int) -> None:
    """Over a network that repeats, reorders and delays, each seq runs exactly once, all its
    answers are the same, and an equal window never refuses (RIFL §3.2, §3.3)."""
    random = Random(seed)
    pair = [Honest(window, random), Honest(other_window, random)]
    for _ in range(400):
        random.choice(pair).step()
    for honest in pair:
        # What is still wanted is asked for until it is answered.
        while honest.unanswered:
            honest.send(min(honest.unanswered))
            honest.arrive(honest.network.pop())
            while honest.running:
                seq = honest.running.pop()
                honest.runs[seq] += 1
                honest.server.finish(seq, f"run {honest.runs[seq]} of {seq}")
        while honest.network:
            honest.arrive(honest.network.pop())
        issued = honest.client.first_incomplete - 1
        assert honest.runs == dict.fromkeys(range(1, issued + 1), 1)
        assert set(honest.answers) == set(range(1, issued + 1))
