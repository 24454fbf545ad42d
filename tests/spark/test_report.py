"""The counts of a write (DESIGN §8)."""

from __future__ import annotations

import os
import pickle
import stat
import threading
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rifl.spark._dead_letters import DeadLetterFile, prepare_directory
from rifl.spark._errors import RowError
from rifl.spark._report import Counts, Latencies, report


@given(st.lists(st.floats(1e-4, 100), min_size=1, max_size=200), st.integers(1, 4))
def test_quantiles_hold_over_any_split_into_tasks(times: list[float], tasks: int) -> None:
    """Summed buckets give each quantile within five percent (DESIGN §8)."""
    parts = [Counts() for _ in range(tasks)]
    for at, seconds in enumerate(times):
        parts[at % tasks].latencies.add(seconds)
    whole = Counts.total(parts)
    times.sort()
    for share in (0.5, 0.99, 1.0):
        exact = times[max(0, -(-int(share * 1000) * len(times) // 1000) - 1)]
        found = whole.latencies.quantile(share)
        assert found is not None
        assert exact <= found * 1.0001
        assert found <= exact * 1.0501


def test_tasks_add_up() -> None:
    """A write's counts are the sums of its tasks', which travel pickled (DESIGN §8)."""
    one = Counts(rows=3, sent=3, executed=2, replayed=1, retries=1)
    other = Counts(rows=2, sent=1, executed=0, failed=2, dead_lettered=2)
    one.latencies.add(0.01, 3)
    whole = Counts.total([one, pickle.loads(pickle.dumps(other))])  # noqa: S301 - our own bytes
    summary = whole.summary()
    assert (summary["rows"], summary["sent"], summary["executed"]) == (5, 4, 2)
    assert (summary["replayed"], summary["failed"], summary["dead_lettered"]) == (1, 2, 2)
    assert summary["retries"] == 1
    assert summary["p50_s"] == pytest.approx(0.01, rel=0.06)


def test_nothing_sent_has_no_latency() -> None:
    """An empty partition is counted and has no quantile (DESIGN §8)."""
    assert Latencies().quantile(0.5) is None
    assert Counts.total([]).summary()["p99_s"] is None


def test_metrics_are_for_the_collector_and_follow_no_link(tmp_path: Path) -> None:
    """The file appears whole, under a name that no other user knows before (DESIGN §8)."""
    told, victim = tmp_path / "rifl.prom", tmp_path / "victim"
    victim.write_bytes(b"kept")
    (tmp_path / f"rifl.prom.{os.getpid()}.{threading.get_ident()}").symlink_to(victim)
    for _ in range(2):
        report(
            Counts(rows=1, sent=1, executed=1),
            method="/a.B/C",
            session="s",
            batch=None,
            lines=None,
            metrics=str(told),
        )
    assert 'rifl_spark_rows_total{method="/a.B/C"} 2.0' in told.read_text()
    assert stat.S_IMODE(told.stat().st_mode) == 0o644
    assert victim.read_bytes() == b"kept"


def test_dead_letters_are_private(tmp_path: Path) -> None:
    """They hold whole rows: no other user reads them (DESIGN §8)."""
    token = prepare_directory(str(tmp_path))
    schema = pyarrow.schema([("id", pyarrow.string())])
    file = DeadLetterFile(str(tmp_path), token, schema, "s", "run", "1")
    file.put(pyarrow.RecordBatch.from_pydict({"id": ["a"]}), [RowError("REFUSED", "failed")])
    (name,) = file.close()
    assert stat.S_IMODE((tmp_path / "_rifl" / name).stat().st_mode) == 0o600
