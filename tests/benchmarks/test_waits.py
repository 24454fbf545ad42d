"""The parts of a recorded call's time (benchmarks.waits)."""

from __future__ import annotations

import pytest

from benchmarks.waits import measure


@pytest.mark.long
def test_every_call_is_timed_and_recorded_ones_in_their_parts() -> None:
    """All kinds are measured as often; a record is sent before its verdict and its answer."""
    took, parts = measure(0.0, 20)
    assert {name: len(each) for name, each in took.items()} == dict.fromkeys(
        ("plain", "rifl alone", "recorded", "record not sent"), 20
    )
    assert len(parts) == 20
    assert all(0 < each.sent < each.leader for each in parts)
    # Of a call that conflicts, or is recorded while a witness stalls, there may be none in time.
    assert sum(each.verdict > each.sent for each in parts) >= 10
