"""Processor time of calls at groups, and of messages at logs, measured small."""

from __future__ import annotations

from benchmarks.databases import Databases
from benchmarks.store_cpu import of_group, of_log


def test_of_a_log() -> None:
    """The publisher's alone: SQLite has no process of its own."""
    with Databases() as databases:
        found = of_log("sqlite", databases, 1, 0.2)
    assert set(found) == {"publisher_cpu_us"}
    assert found["publisher_cpu_us"] > 0


def test_of_a_group() -> None:
    """Of each replica, and of the witness."""
    with Databases() as databases:
        found = of_group("sqlite", "fast", databases, 1, 0.2)
    assert set(found) == {"leader_cpu_us", "follower_cpu_us", "witness_cpu_us"}
