"""The simulator's shared store answers as Redis's scripts and PostgreSQL's functions do."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from chaos.postgres_server import PostgresServer
from chaos.redis_server import RedisServer
from rifl._stores.shared.requests import Claimed, Ending, Finished, Found
from tests.chaos.shared_requests import Sequence, taken
from tests.chaos.shared_stores import PostgresStore, RedisStore, SimulatedStore, Subject
from tests.helpers.waiting import until

# Sequences, and the steps of each; twice as many by ``make test-long``.
SEQUENCES, STEPS = 60, 60
# Sequences with calls that nobody claimed.
UNCLAIMED = 40


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Subject]]:
    """The simulator's store and the two real ones, each empty."""
    # What a crash would take is not asked for here.
    redis = RedisServer(tmp_path_factory.mktemp("redis"), appendfsync="no")
    postgres = PostgresServer(fsync="off", synchronous_commit="off")
    opened: list[Subject] = []
    try:
        opened += [SimulatedStore(), RedisStore(redis), PostgresStore(postgres)]
        yield opened
    finally:
        for subject in opened:
            subject.close()
        redis.stop()
        postgres.stop()


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, pytest.param(SEQUENCES, marks=pytest.mark.long)])
def test_all_stores_answer_alike(subjects: list[Subject], first: int) -> None:
    """Claims, records, leases, sessions, retention: one contract (DESIGN §4 to §6)."""
    found: set[Any] = set()
    for seed in range(first, first + SEQUENCES):
        found |= _compare(subjects, Sequence(Random(seed)), seed)
    assert set(Found) <= found


@pytest.mark.slow
def test_records_without_a_claim_are_judged_alike(subjects: list[Subject]) -> None:
    """Of idempotent methods, which every store may write so (DESIGN §4, step 6)."""
    found: set[Any] = set()
    for seed in range(UNCLAIMED):
        found |= _compare(subjects, Sequence(Random(seed), unclaimed=True), seed)
    assert {(each, Finished) for each in Ending} <= found


@pytest.mark.slow
def test_commits_without_a_claim_are_judged_alike(subjects: list[Subject]) -> None:
    """Between claims, acknowledgements and ends of leases: one contract (DESIGN §4, step 6)."""
    # Redis undoes nothing.
    subjects = [subject for subject in subjects if subject.name != "redis"]
    found: set[Any] = set()
    for seed in range(UNCLAIMED):
        found |= _compare(subjects, Sequence(Random(seed), unclaimed=True, commits=True), seed)
    assert {Ending.DONE, Ending.FENCED, Ending.GONE} <= found
    assert {(each, Finished) for each in Ending} <= found


def _compare(subjects: list[Subject], sequence: Sequence, seed: int) -> set[Any]:
    found: set[Any] = set()
    for subject in subjects:
        subject.clear()
    lines: list[str] = []
    steps = sequence.begin()
    for _ in range(STEPS):
        step = steps.pop(0) if steps else sequence.next()
        replies = {subject.name: taken(step, subject) for subject in subjects}
        first, *others = replies.values()
        lines.append(f"{step.text}: {first}")
        if any(other != first for other in others):
            text = "\n".join(lines)
            pytest.fail(f"sequence {seed}:\n{text}\n" + "\n".join(map(str, replies.items())))
        plain = first if isinstance(first, Ending) else type(first)
        if isinstance(first, Finished):
            plain = first.ending, type(first)
        found.add(first.found if isinstance(first, Claimed) else plain)
    _compare_woken(subjects, seed)
    return found


def _compare_woken(subjects: list[Subject], seed: int) -> None:
    simulated, *real = subjects
    simulated.flush()  # type: ignore[attr-defined]
    for subject in real:
        until(
            lambda subject=subject: simulated.woken <= subject.woken,
            f"{subject.name} wakes who waits, sequence {seed}",
        )
        assert subject.woken <= simulated.woken
