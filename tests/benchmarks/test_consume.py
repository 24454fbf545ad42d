"""The benchmark of consumers, measured small: ``make bench-consume`` has the size."""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from benchmarks.consume.parts import Size, latencies, parties, rate, run
from benchmarks.consume.worker import ACCOUNTS, body_of, read
from benchmarks.deliver.report import Report


def test_a_message_of_a_kibibyte_says_its_account_and_when_it_was_sent() -> None:
    """What latency is measured by travels in the message."""
    body = body_of(ACCOUNTS + 3)
    assert len(body) == 1024
    assert read(body)[0] == 3
    assert 0 < read(body)[1] <= read(body_of(0))[1]


@pytest.mark.slow
def test_each_worker_does_what_is_measured(tmp_path: Path) -> None:
    """The same messages, rows and outputs, by our consumer, by hand and over Redis (§14)."""
    with ExitStack() as stack:
        compared = parties(stack, tmp_path, None, postgresql=False)
        assert {each for each in compared if each.startswith("sqlite")} == {
            "sqlite consumer",
            "sqlite without",
            "sqlite single",
            "sqlite batched",
        }
        for party in compared.values():
            # A tenth of them, of who commits each by itself.
            assert rate(party, 50) > 0
            assert 0 < latencies(party, 200.0, 10).p50 < 60_000
    counts = {}
    for name in ("consumer", "without", "single", "batched", "inbox"):
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as database:
            (counts[name],) = database.execute("SELECT sum(messages) FROM account").fetchone()
    assert counts == {"consumer": 60, "without": 60, "single": 15, "batched": 60, "inbox": 60}


@pytest.mark.slow
def test_taking_over_and_recovery_are_measured(tmp_path: Path) -> None:
    """A killed process's shards go on in another one; a state is read anew (§14, T1, T4)."""
    report = Report()
    run(
        tmp_path,
        ["takeover", "recovery"],
        Size(1, 1, 1, 1, kills=1, changes=20_000),
        report,
        None,
        postgresql=False,
    )
    assert len(report.figures) == 4
    assert all(each["ratio"][0] > 0 for each in report.figures.values())
