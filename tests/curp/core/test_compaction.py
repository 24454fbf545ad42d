"""Snapshots and trimming: DESIGN §7, invariant 8."""

from __future__ import annotations

from typing import Any

from curp._core.compaction import Copy, GoOn, Halt, Save, Trim, compact
from curp._core.steps import Sync


def _drive(kept_behind: int, *, halted: bool = True, lsn: int | None = 50) -> tuple[Any, Any]:
    rule = compact(kept_behind)
    steps: list[Any] = []
    answer: Any = None
    while True:
        try:
            step = rule.send(answer)
        except StopIteration as stop:
            return steps, stop.value
        steps.append(step)
        answer = {Halt: halted, Copy: lsn}.get(type(step))


def test_the_state_is_copied_when_nothing_runs_and_the_log_has_it() -> None:
    """Halted, synced, copied; saved before anything is trimmed (invariant 8)."""
    steps, found = _drive(20)
    assert steps == [Halt(), Sync(None), Copy(), GoOn(), Save(50), Trim(30)]
    assert found == 50


def test_no_more_is_trimmed_than_stays_behind() -> None:
    """Entries for standbys stay, however few there are."""
    steps, _ = _drive(50)
    assert steps[-1] == Save(50)


def test_calls_run_again_when_no_snapshot_comes_of_it() -> None:
    """What does not end in time, or a leadership that is over, costs the snapshot only."""
    assert _drive(20, halted=False) == ([Halt()], None)
    assert _drive(20, lsn=None) == ([Halt(), Sync(None), Copy(), GoOn()], None)
