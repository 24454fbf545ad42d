"""Fault schedules: drawn from a seed, spread over the run."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from chaos.fault_plan import Fault, plan_faults


def test_same_seed_same_schedule() -> None:
    """A schedule can be repeated from its seed, and another seed gives another one."""
    first, again, other = (
        plan_faults(seed, calls=1000, resets=3, drops=3, kills=3) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@given(
    seed=st.integers(0, 10_000),
    calls=st.integers(100, 5000),
    resets=st.integers(0, 10),
    drops=st.integers(0, 10),
    kills=st.integers(0, 10),
)
def test_faults_are_all_there_in_order_and_away_from_the_ends(
    seed: int, calls: int, resets: int, drops: int, kills: int
) -> None:
    """Every fault asked for strikes once, in order, within the middle nine tenths."""
    planned = plan_faults(seed, calls=calls, resets=resets, drops=drops, kills=kills)
    kinds = Counter(fault.fault for fault in planned)
    assert kinds == Counter({Fault.RESET: resets, Fault.DROP_ANSWERS: drops, Fault.KILL: kills})
    positions = [fault.after for fault in planned]
    assert positions == sorted(positions)
    assert all(calls // 20 <= position < calls - calls // 20 for position in positions)
