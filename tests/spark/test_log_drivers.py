"""Drivers of a query from a stream of a log to another, killed: each row is there once (§16)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import sharedlog
from sharedlog._core.query.state import State, find_query
from tests.spark.log_chain import LIMITED, Killed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[sharedlog.Log]:
    """A log with a stream to read and one to write."""
    with sharedlog.create(f"sqlite:///{tmp_path / 'log.db'}") as made:
        made.stream("orders", 2)
        made.stream("paid", 3)
        yield made


_DRIVEN = pytest.mark.skipif(not LIMITED, reason="a source says what a micro-batch has from 4.2 on")
_ORDERS = 60


def _ordered(log: sharedlog.Log) -> None:
    for number in range(_ORDERS):
        log.publish("orders", f"o{number}", key=f"k{number % 7}")


def _numbers(log: sharedlog.Log) -> list[int]:
    """What committed readers see in ``paid``."""
    return sorted(int(each.text[1:]) for at in range(3) for each in log.read("paid", at))


def _is_over(log: sharedlog.Log) -> None:
    """Each row is there once, and nothing is under way."""
    assert _numbers(log) == list(range(_ORDERS))
    query = log._run(find_query("pay"))
    assert query is not None
    assert (query.state, query.closed >= 2) == (State.CLOSED, True)
    assert list(log._engine.scan("query-task/")) == []


@_DRIVEN
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
    _ordered(log)
    driver, url = Killed(tmp_path), f"sqlite:///{tmp_path / 'log.db'}"
    assert not driver.launch(url, 3, kill_at=point)
    stood = len(_numbers(log))
    assert (stood > 20) == (point == "committed")
    assert stood < _ORDERS
    assert driver.launch(url, 5)
    _is_over(log)
