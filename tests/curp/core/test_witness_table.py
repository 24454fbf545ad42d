"""A witness's table: what it accepts and gives back (CURP §3.2.2, §3.3, §4.2; DESIGN §7, 2, 12)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curp._core.witness_table import (
    Identity,
    WitnessLimits,
    WitnessMode,
    WitnessTable,
    WitnessVerdict,
    group_of_log,
)
from rifl.core._shared.invariant import InvariantViolated

ACCEPTED, CONFLICT, FULL, OTHER, FROZEN, TOO_LARGE, OTHER_GROUP = WitnessVerdict
G, H = group_of_log("g", 0xA), group_of_log("h", 0xB)


def started(configuration: int = 1, **limits: int) -> WitnessTable:
    table = WitnessTable(WitnessLimits(**limits) if limits else None)
    assert table.may_start(G, configuration) is ACCEPTED
    table.start(G, configuration)
    return table


def record(
    table: WitnessTable,
    seq: int,
    *keys: int,
    configuration: int = 1,
    fingerprint: bytes = b"f",
    size: int = 10,
    log: int = 0xA,
) -> WitnessVerdict:
    identity: Identity = (1, seq)
    return table.record(configuration, identity, frozenset(keys), fingerprint, seq, size, log)


def collect(table: WitnessTable, *seqs: int) -> list[Any]:
    verdict, stuck = table.collect(G, table.configuration, [(1, seq) for seq in seqs])
    assert verdict is ACCEPTED
    return stuck


def test_calls_that_commute_are_accepted() -> None:
    """Invariant 2: a shared conflict key refuses, whatever else the calls touch."""
    table = started()
    assert record(table, 1, 10, 11) is ACCEPTED
    assert record(table, 2, 12) is ACCEPTED
    assert record(table, 3, 11, 13) is CONFLICT
    assert record(table, 4, 13) is ACCEPTED
    assert (len(table), table.accepted, table.refused) == (3, 3, 1)


def test_a_call_without_keys_conflicts_with_everything() -> None:
    """Invariant 2, and DESIGN §7: none given means the whole service."""
    table = started()
    assert record(table, 1) is ACCEPTED
    assert record(table, 2, 10) is CONFLICT
    assert record(table, 3) is CONFLICT
    collect(table, 1)
    assert record(table, 2, 10) is ACCEPTED
    assert record(table, 3) is CONFLICT


def test_the_same_call_again_is_accepted() -> None:
    """Invariant 2: a retry finds its own record; other content under its identity does not."""
    table = started()
    assert record(table, 1, 10) is ACCEPTED
    assert record(table, 1, 10) is ACCEPTED
    assert record(table, 1, 10, fingerprint=b"other") is CONFLICT
    assert record(table, 1, 99) is CONFLICT
    assert len(table) == 1
    assert table.freeze(G, 1) == [1]


def test_room_is_bounded() -> None:
    """Slots, bytes and the length of one request have bounds (DESIGN §9)."""
    table = started(slots=3, max_request_bytes=50, max_bytes=100)
    assert record(table, 1, 1, 2) is ACCEPTED
    assert record(table, 2, 3, 4) is FULL
    assert record(table, 3, 3, size=51) is TOO_LARGE
    assert record(table, 3, 3, size=50) is ACCEPTED
    assert record(table, 4, 4) is FULL
    collect(table, 1)
    assert record(table, 4, 4, size=50) is ACCEPTED
    assert record(table, 5, 5, size=1) is FULL
    with pytest.raises(ValueError, match="slots=0"):
        WitnessLimits(slots=0)


def test_only_the_configuration_in_force_is_recorded() -> None:
    """Invariants 2 and 11: clients with another number, older or newer, are refused."""
    assert record(WitnessTable(), 1, 10) is OTHER
    table = started(5)
    for number in (4, 6, 0):
        assert record(table, 1, 10, configuration=number) is OTHER
    assert table.may_start(G, 4) is OTHER
    table.start(G, 6)
    assert record(table, 1, 10, configuration=5) is OTHER
    assert record(table, 1, 10, configuration=6) is ACCEPTED
    assert table.collect(G, 5, [(1, 1)]) == (OTHER, [])
    assert len(table) == 1


def test_a_freeze_is_for_ever() -> None:
    """Invariants 2 and 5: nothing more is accepted, and the calls can be read again."""
    table = started()
    record(table, 1, 10)
    assert table.freeze(G, 1) == [1]
    assert record(table, 2, 11) is FROZEN
    assert record(table, 1, 10) is FROZEN
    assert table.may_start(G, 1) is FROZEN
    assert table.may_start(G, 1, refresh=True) is FROZEN
    assert table.collect(G, 1, [(1, 1)]) == (FROZEN, [])
    assert table.freeze(G, 1) == [1]
    table.start(G, 2)
    assert record(table, 2, 11, configuration=2) is ACCEPTED
    assert table.may_freeze(G, 1) is OTHER
    assert table.freeze(G, 2) == [2]


def test_a_number_it_holds_nothing_under_is_not_frozen() -> None:
    """It may have served that number in a life that it forgot (invariants 2 and 5)."""
    table = started()
    record(table, 1, 10)
    for number in (0, 2, 3):
        assert table.may_freeze(G, number) is OTHER
        with pytest.raises(InvariantViolated):
            table.freeze(G, number)
    assert table.freeze(G, 1) == [1]
    assert table.may_freeze(G, 3) is OTHER


def test_a_late_start_of_an_old_number_makes_no_answer_for_a_newer_one() -> None:
    """Restarted without its journal, it does not say that it holds nothing (invariants 2, 5)."""
    table = started(7)
    record(table, 1, 10, configuration=7)
    table = WitnessTable()
    table.start(G, 5)
    assert table.may_freeze(G, 7) is OTHER
    assert table.freeze(G, 5) == []
    assert table.may_freeze(G, 7) is OTHER


def test_a_restarted_witness_is_of_no_use_until_listed_anew() -> None:
    """Invariant 2: it refuses records, refreshes and recovery reads of what it forgot."""
    for highest, group in ((7, G), (0, "")):
        table = WitnessTable(highest=highest, group=group)
        assert table.mode is WitnessMode.UNLISTED
        assert record(table, 1, 10, configuration=7) is OTHER
        assert table.may_freeze(group, 7) is OTHER
        assert table.may_start(G, 7, refresh=True) is not ACCEPTED
        assert table.collect(group, 7, [])[0] is OTHER
    assert WitnessTable(highest=7, group=G).may_start(G, 7) is OTHER
    table = WitnessTable(highest=7, group=G)
    table.start(G, 8)
    assert record(table, 1, 10, configuration=8) is ACCEPTED


def test_a_start_asked_again_forgets_nothing() -> None:
    """A leader that lost the reply asks again; what was recorded between stays (2)."""
    table = started()
    record(table, 1, 10)
    assert table.may_start(G, 1) is ACCEPTED
    table.start(G, 1)
    assert table.may_start(G, 1, refresh=True) is ACCEPTED
    assert len(table) == 1


def test_a_witness_serves_one_group() -> None:
    """Another group's leader can neither start, nor freeze, nor collect (DESIGN §9)."""
    table = started()
    record(table, 1, 10)
    assert table.may_start(H, 9) is OTHER_GROUP
    assert table.may_freeze(H, 9) is OTHER_GROUP
    assert table.collect(H, 1, [(1, 1)]) == (OTHER_GROUP, [])
    assert WitnessTable(highest=3, group=G).may_start(H, 9) is OTHER_GROUP
    for step in (table.start, table.freeze):
        with pytest.raises(InvariantViolated):
            step(H, 9)


def test_two_groups_of_one_name_are_two() -> None:
    """Another log's leader and callers are refused, whatever their numbers (DESIGN §7)."""
    ours, theirs = group_of_log("bank", 0xA), group_of_log("bank", 0xB)
    table = WitnessTable()
    table.start(ours, 3)
    record(table, 1, 10, configuration=3, log=0xA)
    assert table.may_start(theirs, 9) is OTHER_GROUP
    assert table.may_freeze(theirs, 3) is OTHER_GROUP
    assert table.may_start("bank", 9) is OTHER_GROUP
    assert table.collect(theirs, 3, [(1, 1)]) == (OTHER_GROUP, [])
    assert record(table, 2, 11, configuration=3, log=0xB) is OTHER_GROUP
    assert record(table, 2, 11, configuration=3, log=0xA) is ACCEPTED
    assert record(table, 3, 12, configuration=3, log=0) is OTHER_GROUP
    assert table.freeze(ours, 3) == [1, 2]
    restarted = WitnessTable(highest=3, group=ours)
    assert restarted.may_start(theirs, 9) is OTHER_GROUP


def test_what_outlives_three_rounds_is_reported() -> None:
    """CURP §3.4, invariant 12: a stuck call is told to the leader, and kept until synced."""
    table = started()
    record(table, 1, 10)
    record(table, 2, 11)
    assert collect(table) == []
    assert collect(table, 2) == []
    record(table, 3, 12)
    assert collect(table) == [1]
    assert collect(table) == []
    assert collect(table) == [3]
    assert collect(table) == [1]
    assert record(table, 4, 10) is CONFLICT
    assert collect(table, 1, 3) == []
    assert record(table, 4, 10) is ACCEPTED


def test_a_report_is_bounded() -> None:
    """All stuck calls are told in turn, a few at a time (DESIGN §9)."""
    table = started(max_reported=2, stuck_after_rounds=2)
    for seq in range(5):
        record(table, seq, seq)
    collect(table)
    found = [collect(table) for _ in range(3)]
    assert set(itertools.chain(*found)) == set(range(5))
    assert all(len(report) <= 2 for report in found)


class Model:
    """A witness beside a model that keeps everything it ever accepted."""

    def __init__(self) -> None:
        self.table = WitnessTable(WitnessLimits(slots=6, max_bytes=100, max_request_bytes=40))
        self.highest = 0
        self.dead: set[int] = set()
        # Accepted and not said to be synced, per configuration number.
        self.owed: dict[int, dict[int, frozenset[int]]] = {}

    def record(self, one: int, two: int) -> None:
        seq, number = one % 6, self.table.configuration - (one >> 3 == 7)
        keys = frozenset(key for key in range(5) if two >> key & 1)
        fingerprint = bytes([two & 31])
        size = 1 + (two >> 5) * 8
        if self.table.record(number, (1, seq), keys, fingerprint, seq, size, 0xA) is not ACCEPTED:
            return
        assert number not in self.dead
        assert self.table.mode is WitnessMode.NORMAL
        owed = self.owed.setdefault(number, {})
        for other, held in owed.items():
            assert held == keys if other == seq else held and keys and held.isdisjoint(keys)
        owed[seq] = keys

    def collect(self, one: int, two: int) -> None:
        del two
        number = self.table.configuration
        owed = self.owed.get(number, {})
        synced = [seq for seq in range(6) if one >> seq & 1]
        verdict, stuck = self.table.collect(G, number, [(1, seq) for seq in synced])
        assert verdict is ACCEPTED or stuck == []
        if verdict is ACCEPTED:
            for seq in synced:
                owed.pop(seq, None)
            assert set(stuck) <= set(owed)

    def start(self, one: int, two: int) -> None:
        number = self.table.configuration + one % 5 - 2
        if self.table.may_start(G, number, refresh=bool(two & 1)) is ACCEPTED:
            assert number not in self.dead
            assert number >= self.highest
            if not two & 1:
                self.table.start(G, number)
                self.highest = number

    def freeze(self, one: int, two: int) -> None:
        del two
        number = self.table.configuration + one % 5 - 2
        if self.table.may_freeze(G, number) is ACCEPTED:
            # All that it ever owed under that number.
            assert set(self.table.freeze(G, number)) == set(self.owed.get(number, {}))
            self.dead.add(number)
            self.highest = max(self.highest, number)

    def restart(self, one: int, two: int) -> None:
        del one, two
        self.dead.add(self.highest)
        group = G if self.highest else ""
        self.table = WitnessTable(self.table.limits, highest=self.highest, group=group)
        assert self.table.may_freeze(G, self.highest) is not ACCEPTED


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=180))
def test_no_course_of_events_breaks_the_promise(course: bytes) -> None:
    """Invariants 2, 5, 11 and 12: what is owed is held, commutes, and can be read (§7)."""
    model = Model()
    model.start(3, 0)
    steps = [model.record] * 8 + [model.collect] * 2 + [model.start] * 3 + [model.freeze] * 2
    steps.append(model.restart)
    for at in range(0, len(course) - 2, 3):
        steps[course[at] % 16](course[at + 1], course[at + 2])
        assert len(model.table) <= 6
        assert model.table.configuration == model.highest
