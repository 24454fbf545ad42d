"""Idle clients at rest (DESIGN §4, §9): nothing is forgotten, and little is kept."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from _rifl_ground.refusals import Outcome
from rifl.core._serving.client_table import ClientTable
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.call import Call
from rifl.core._shared.errors import RiflError
from rifl.core._shared.record import CompletionRecord

POLICY = MethodPolicy()
RECORDS = (
    CompletionRecord(response=b"answer"),
    CompletionRecord(response=b""),
    CompletionRecord(),
    CompletionRecord(5, "not found", None, (("a-bin", b"\0"),), (("b", "c"),)),
    CompletionRecord(13, outcome=Outcome.UNKNOWN, reason="OUTCOME_UNKNOWN"),
    CompletionRecord(messages=(b"one", b"two")),
)


class Everybody:
    """Every client is alive."""

    def renew(self, client_id: int, now: float) -> bool:
        return True

    def is_session(self, client_id: int) -> bool:
        return False

    def writes(self, client_id: int, token: bytes) -> bool:
        return True

    def holder(self, client_id: int) -> bytes:
        return b""


class Side:
    """A table, and what it said to each step."""

    def __init__(self, *, keep: bool, note_released: bool) -> None:
        self.table = ClientTable(Everybody(), window=6, note_released=note_released)
        self.keep = keep
        self.running: dict[tuple[int, int], Any] = {}

    def call(self, client_id: int, seq: int, first: int, ranges: Any, payload: bytes) -> Any:
        call = Call(client_id, b"", seq, None, first, ranges, fingerprint=payload)
        try:
            decision = self.table.decide(call, POLICY, 0.0)
        except RiflError as error:
            return type(error)
        if decision.verdict is Verdict.NEW:
            self.running[client_id, seq] = decision.attempt
        return decision.verdict, decision.record, decision.verified

    def renew(self, client_id: int, first: int, ranges: Any) -> None:
        self.table.acknowledge(client_id, first, ranges)

    def settle(self, client_id: int, seq: int, record: CompletionRecord | None) -> Any:
        attempt = self.running.pop((client_id, seq), None)
        if attempt is None:
            return None
        return self.table.settle(attempt, record, keep=self.keep)


SEQ = st.integers(1, 12)
STEP = st.one_of(
    st.tuples(
        st.just("call"),
        st.integers(1, 2),
        SEQ,
        SEQ,
        st.lists(SEQ, max_size=3),
        st.sampled_from([b"f", b"g"]),
    ),
    st.tuples(st.just("settle"), st.integers(1, 2), SEQ, st.sampled_from([None, *RECORDS])),
    st.tuples(st.just("renew"), st.integers(1, 2), SEQ, st.lists(SEQ, max_size=3)),
    st.tuples(st.just("drop"), st.integers(1, 2)),
    st.tuples(st.just("rest")),
)


@given(st.lists(STEP, max_size=30), st.booleans(), st.booleans())
def test_a_client_that_rested_is_decided_about_as_if_it_had_not(
    steps: list[Any], keep: bool, note_released: bool
) -> None:
    """Any history, with rests anywhere, gets the verdicts, records and refusals it had without."""
    rested, other = (Side(keep=keep, note_released=note_released) for _ in range(2))
    for step in steps:
        if step[0] == "rest":
            for _ in range(2):
                while rested.table.set_idle_aside(1):
                    pass
            releasing = {client_id for client_id, _ in rested.table.released}
            for entry in rested.table.active():
                released = entry.client_id in releasing
                assert entry.running or released or len(entry.tracker) > 4
        elif step[0] == "call":
            _, client_id, seq, first, far, payload = step
            first = min(first, seq)
            ranges = [(at, at) for at in sorted({*far}) if at > first and at != seq]
            answers = [
                side.call(client_id, seq, first, ranges, payload) for side in (rested, other)
            ]
            assert answers[0] == answers[1]
        elif step[0] == "renew":
            _, client_id, first, far = step
            ranges = [(at, at) for at in sorted({*far}) if at > first]
            for side in (rested, other):
                side.renew(client_id, first, ranges)
        elif step[0] == "settle":
            assert rested.settle(*step[1:]) == other.settle(*step[1:])
        else:
            assert rested.table.drop([step[1]]) == other.table.drop([step[1]])
        assert len(rested.table) == len(other.table)
    both = []
    for side in (rested, other):
        both.append(
            {
                entry.client_id: (
                    entry.tracker.first_incomplete,
                    entry.tracker.completed_ranges(),
                    sorted(entry.tracker.completed()),
                    entry.dropped,
                )
                for entry in side.table.entries()
            }
        )
    assert both[0] == both[1]


def test_what_a_client_is_known_by_outlives_its_rest() -> None:
    """Where it is registered, and that an earlier incarnation knew it, is kept (DESIGN §5)."""
    table = ClientTable(Everybody())
    entry = table.entry(7)
    entry.registered |= {"/a/long/path.db", "other"}
    table.set_idle_aside(10)
    table.set_idle_aside(10)
    assert table.active() == []
    assert len(table) == 1
    woken = table.entry(7)
    assert woken is not entry
    assert woken.registered == {"/a/long/path.db", "other"}
    assert woken.recovered


def test_the_first_look_lets_nobody_rest() -> None:
    """A client that goes on calling never rests: between two looks it acknowledges something."""
    side = Side(keep=True, note_released=False)
    for seq in range(1, 10):
        assert side.call(1, seq, seq, [], b"f")[0] is Verdict.NEW
        side.settle(1, seq, RECORDS[0])
        side.table.set_idle_aside(10)
        assert [entry.client_id for entry in side.table.active()] == [1]
