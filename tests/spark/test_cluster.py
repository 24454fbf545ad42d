"""Speculation on a standalone cluster of two hosts (DESIGN §8)."""

from __future__ import annotations

import collections
import contextlib
from pathlib import Path

import pytest

import sharedlog
from examples.flights.cluster import cluster
from rifl._stores.opening import open_inspection
from tests.helpers.processes import Process
from tests.helpers.waiting import until
from tests.spark.conftest import SLOW_S, BankProcess, spark_environment
from tests.spark.signalled import SIGNALS

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800)]
_ROWS = 200


def _closed_is_swept(url: str) -> bool:
    with contextlib.closing(open_inspection(url)) as store:
        clients = list(store.clients())
    closed = [each for each in clients if each.session and each.session.state == "closed"]
    return not any(each.records for each in closed)


def test_a_zombie_task_that_finishes_late_repeats_nothing(java: None, tmp_path: Path) -> None:
    """Two attempts on two hosts, one going on after the commit: each row once (DESIGN §8).

    A run's own session, and a micro-batch before the last, are closed by then: the
    zombie is refused. In a named session its rows are replayed. Naively they count
    twice.
    """
    signals = tmp_path / "signals"
    signals.mkdir()
    store = f"sqlite:///{tmp_path}/rifl.db"
    bank = BankProcess(tmp_path, "--store", store)
    try:
        ended = _zombies(bank, store, signals, tmp_path)
    finally:
        bank.close()
    for name in ("run", "named"):
        assert bank.effects(f"{name}-") == {f"{name}-{n}": 1 for n in range(_ROWS)}
    assert bank.effects("stream-") == {
        f"stream-{file}-{n}": 1 for file in range(2) for n in range(_ROWS)
    }
    for name in ("run", "stream"):
        assert "SESSION_CLOSED" in ended[name][0]
    assert ended["named"] == ("replayed=25", 0)
    assert [effects for name, (_, effects) in ended.items() if name != "naive"] == [0, 0, 0]
    naive = bank.effects("naive-naive-")
    assert set(naive) == {f"naive-naive-{n}" for n in range(_ROWS)}
    # Both attempts sent the whole partition.
    assert naive.total() == _ROWS + _ROWS // 4


def _zombies(
    bank: BankProcess, store: str, signals: Path, tmp_path: Path
) -> dict[str, tuple[str, int]]:
    """Write in each way; how each zombie ended, and its effects after the commit."""
    ended = {}
    with cluster(tmp_path) as master:
        driver = Process(
            "tests.spark.cluster_driver",
            *("--master", master, "--target", bank.target),
            *("--directory", str(tmp_path), "--effects", str(bank.effects_file)),
            log=tmp_path / "driver.log",
            env={
                **spark_environment(),
                SIGNALS: str(signals),
                # Executors have the file.
                "RIFL_SESSION_SECRET": (tmp_path / "session-secret").read_text(),
            },
        )
        try:
            for name in ("run", "named", "stream", "naive"):
                assert driver.line(SLOW_S) == name
                # Committed, and the zombie still holds half of its rows.
                assert int((signals / f"{name}.half").read_text()) > 0
                assert not (signals / f"{name}.end").exists()
                if name in ("run", "stream"):
                    # Until then records of a closed session answer.
                    until(lambda: _closed_is_swept(store), "a sweep of what was closed", SLOW_S)
                before = bank.effects().total()
                (signals / f"{name}.go").touch()
                end = signals / f"{name}.end"
                until(end.exists, f"the end of the zombie of {name}", SLOW_S)
                ended[name] = end.read_text(), bank.effects().total() - before
            assert driver.line(SLOW_S) == "done"
        finally:
            driver.close()
    return ended


def test_a_zombie_of_the_logs_sink_adds_nothing_once_its_batch_is_committed(
    java: None, tmp_path: Path
) -> None:
    """Two attempts on two hosts, both append; the marker names one, and then the other is late.

    A job and a query read one stream and write another (DESIGN-LOG §16).
    """
    signals = tmp_path / "signals"
    signals.mkdir()
    url, names = f"sqlite:///{tmp_path / 'log.db'}", ("job", "query")
    with sharedlog.create(url) as log, cluster(tmp_path) as master:
        log.stream("orders", 4)
        log.stream("paid", 3)
        for part in range(2):
            with log.producer().transaction() as transaction:
                for number in range(part * _ROWS, (part + 1) * _ROWS):
                    transaction.publish("orders", f"o{number}", key=f"k{number % 40}")
        driver = Process(
            "tests.spark.log_cluster_driver",
            *("--master", master, "--log", url, "--checkpoint", str(tmp_path / "checkpoint")),
            log=tmp_path / "driver.log",
            env={**spark_environment(), SIGNALS: str(signals)},
        )
        try:
            for name in names:
                assert driver.line(SLOW_S) == name
                # Committed, and the zombie still holds half of its rows.
                assert int((signals / f"{name}.half").read_text()) > 0
                assert not (signals / f"{name}.end").exists()
                (signals / f"{name}.go").touch()
                end = signals / f"{name}.end"
                until(end.exists, f"the end of the zombie of {name}", SLOW_S)
                assert "Fenced" in end.read_text()
            assert driver.line(SLOW_S) == "done"
        finally:
            driver.close()
        written = collections.Counter(each.text for at in range(3) for each in log.read("paid", at))
        assert written == {f"{name}-o{number}": 1 for name in names for number in range(2 * _ROWS)}
        assert list(log._engine.scan("query-task/")) == []
