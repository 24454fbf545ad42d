"""Recovery from a long log, measured small: ``make bench-curp`` has the size."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.recovery import recovery


@pytest.mark.long
def test_a_replica_recovers_in_seconds_from_a_log_and_from_a_snapshot(tmp_path: Path) -> None:
    """What 100,000 entries may take, ten thousand take surely; all of them are read (§7)."""
    found = recovery(tmp_path, 10_000, 1)
    (log,), (snapshot,) = found["log"], found["snapshot"]
    assert log.entries == 10_000 + 100 + 2
    assert snapshot.entries == log.entries + 2
    assert log.seconds < 10
    assert snapshot.seconds < 2
