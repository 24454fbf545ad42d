"""Processor time of calls at groups, and of messages at logs, measured small."""

from __future__ import annotations

import pytest

from benchmarks.databases import Databases
from benchmarks.store_cpu import of_group, of_log
from benchmarks.tables import figures_page


@pytest.mark.parametrize(
    ("engine", "whose"),
    [("sqlite", {"publisher_cpu_us"}), ("etcd", {"publisher_cpu_us", "store_cpu_us"})],
)
def test_of_a_log(engine: str, whose: set[str]) -> None:
    """The publisher's, and its database's: SQLite has no process of its own."""
    with Databases() as databases:
        found = of_log(engine, databases, 1, 0.2)
    assert set(found) == whose
    assert found["publisher_cpu_us"] > 0


def test_servers_add_up_until_the_store_is_the_limit() -> None:
    """The page computes it from what a call takes at both."""
    call = {"server_cpu_us": 800, "store_cpu_us": 250, "at": "now"}
    page = figures_page({}, {"redis, plain": call, "log in redis": {"store_cpu_us": 30}}, {})
    rows = [line for line in page.partition("### Several")[2].splitlines() if line[:1] == "|"]
    assert "| redis, plain | 1,250 | 2,500 | 4,000 | 4,000 |" in rows
    assert not [line for line in rows if line.startswith("| log")]


def test_of_a_group() -> None:
    """Of each replica, and of the witness."""
    with Databases() as databases:
        found = of_group("sqlite", "fast", databases, 1, 0.2)
    assert set(found) == {"leader_cpu_us", "follower_cpu_us", "witness_cpu_us"}
