"""Drivers of a query from a stream of a log to another, killed: each row is there once (§16)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import sharedlog
from sharedlog._core.query.state import PlanState, find_query
from tests.sharedlog.places import url_of
from tests.spark.log_chain import Killed
from tests.spark.starting import LIMITED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


_ORDERS, _BATCH = 60, 20


def _ordered(log: sharedlog.Log, first: int = 0, end: int = _ORDERS) -> None:
    for number in range(first, end):
        log.publish("orders", f"o{number}", key=f"k{number % 7}")


def _begun(log: sharedlog.Log, driver: Killed, url: str) -> int:
    """Publish for several micro-batches; how many messages there are.

    Before PySpark 4.2 a micro-batch has all there is: the first one is a run of its own then.
    """
    if LIMITED:
        _ordered(log)
        return _ORDERS
    _ordered(log, 0, _BATCH)
    assert driver.launch(url, 3)
    _ordered(log, _BATCH, 2 * _BATCH)
    return 2 * _BATCH


def _numbers(log: sharedlog.Log) -> list[int]:
    """What committed readers see in ``paid``."""
    return sorted(int(each.text[1:]) for at in range(3) for each in log.read("paid", at))


def _is_over(log: sharedlog.Log) -> None:
    """Each row is there once, and nothing is under way."""
    orders = sum(1 for at in range(2) for _ in log.read("orders", at))
    assert orders > _BATCH
    assert _numbers(log) == list(range(orders))
    query = log._run(find_query("pay"))
    assert query is not None
    assert (query.state, query.closed >= (2 if LIMITED else 1)) == (PlanState.CLOSED, True)
    assert list(log._engine.scan("query-task/")) == []


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("planning", marks=pytest.mark.long),
        pytest.param("writing", marks=pytest.mark.long),
        pytest.param("committing", marks=pytest.mark.long),
        pytest.param("committed", marks=pytest.mark.long),
    ],
)
def test_a_driver_killed_anywhere_commits_each_row_once(
    java: None, log: sharedlog.Log, tmp_path: Path, point: str
) -> None:
    """Before, within and behind the commit, and between what freezes a batch and its marker (§16).

    It is started again with other shuffle partitions. Zombies may append meanwhile.
    """
    driver, url = Killed(tmp_path), f"sqlite:///{tmp_path / 'log.db'}"
    there = _begun(log, driver, url)
    assert not driver.launch(url, 3, kill_at=point)
    stood = len(_numbers(log))
    assert (stood > _BATCH) == (point == "committed")
    _ordered(log, there, there + 5)
    assert driver.launch(url, 5)
    _is_over(log)


@pytest.mark.long
@pytest.mark.parametrize("engine", ["postgres", "redis", "etcd"])
def test_a_driver_over_each_engine_is_killed_within_its_commit(
    java: None, tmp_path: Path, engine: str, request: pytest.FixtureRequest
) -> None:
    """Between what freezes a batch and its marker: each row is there once (§16)."""
    url = url_of(engine, tmp_path, request.getfixturevalue)
    with sharedlog.create(url) as log:
        log.stream("orders", 2)
        log.stream("paid", 3)
        driver = Killed(tmp_path)
        _begun(log, driver, url)
        assert not driver.launch(url, 3, kill_at="committing")
        assert len(_numbers(log)) == _BATCH
        assert driver.launch(url, 3)
        _is_over(log)


@pytest.mark.long
def test_of_two_live_copies_of_a_checkpoint_the_newer_run_goes_on(
    java: None, log: sharedlog.Log, tmp_path: Path
) -> None:
    """The older one's task, which had joined, is late: it appends nothing, and says why (§16)."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    older, newer = Killed(tmp_path / "older"), Killed(tmp_path / "newer")
    there = _begun(log, older, url)
    older.begin(url, 3, "pausing")
    try:
        older.until_paused()
        stood = len(_numbers(log))
        shutil.copytree(older.checkpoint, newer.checkpoint)
        assert newer.launch(url, 3)
        assert 0 < stood < there
        _is_over(log)
        older.go_on()
        assert not older.ended()
    finally:
        older.close()
    assert "took over" in older.said()
    _is_over(log)
