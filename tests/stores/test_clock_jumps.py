"""No jump of a clock makes a key new (DESIGN §5)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lease_server import LeaseAuthority
from rifl._stores import open_store
from rifl._stores.sqlite.journal_entries import JournalEntry
from rifl.core._serving.bounds import Bounds, KeyBounds
from rifl.core._serving.later import Later
from rifl.core._serving.namespace import namespace_id
from rifl.core._serving.policy import MethodPolicies
from rifl.core._serving.verdict import Verdict
from tests.stores.conformance import FIRST, IDEMPOTENT, TERM_S, keyed, wait

PEER = namespace_id(b"peer")
RETENTION_S = 100
DAY_S = 86_400.0


class Aging:
    """A store whose keys are kept for a while, and the clock that is told."""

    def __init__(self, url: str) -> None:
        self.now = 0.0
        self.url = url
        self.store: Any
        self.open()

    def open(self) -> None:
        """Open, or open again."""
        self.store = open_store(self.url)
        authority = LeaseAuthority(self.store.leases, term_s=TERM_S, clock=lambda: self.now)
        self.store.bind(
            authority,
            MethodPolicies({}, "idempotent"),
            clock=lambda: self.now,
            bounds=Bounds(window=16),
            key_bounds=KeyBounds(retention_s=RETENTION_S),
        )

    def live(self, seconds: int) -> None:
        """Let time pass, a sweep each second."""
        for _ in range(seconds):
            self.now += 1.0
            self.sweep()

    def sweep(self) -> None:
        """Look for keys whose time is over."""
        self.store.expire_keys()
        if self.url != "memory:":
            entry = JournalEntry(JournalEntry.DELETE, (0, 0), patient=False, failure=RuntimeError)
            self.store._main.journal.submit(entry).wait()

    def claim(self, key: bytes) -> Any:
        """Decide about a call by a key."""
        decision = self.store.claim(keyed(PEER, key), IDEMPOTENT)
        return wait(decision) if isinstance(decision, Later) else decision

    def record(self, key: bytes) -> None:
        """Complete a call by a key."""
        attempt = self.claim(key).attempt
        wait(self.store.finish(attempt, FIRST))

    def is_known(self, key: bytes) -> bool:
        """Whether a retry is answered, not run."""
        decision = self.claim(key)
        if decision.verdict is Verdict.NEW:
            wait(self.store.abandon(decision.attempt))
        return decision.verdict is Verdict.COMPLETED


@pytest.fixture(params=["memory", "sqlite"])
def aging(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Aging]:
    """Each store that has a process of its own."""
    aging = Aging("memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 's.db'}")
    yield aging
    aging.store.close()


def test_a_clock_that_is_a_day_ahead_for_three_seconds_ages_nothing(aging: Aging) -> None:
    """A jump there and back costs a few seconds of the retention at most (§5)."""
    aging.live(3)
    aging.record(b"before")
    aging.now += DAY_S
    aging.record(b"within")
    aging.live(3)
    aging.now -= DAY_S
    aging.live(RETENTION_S - 20)
    assert aging.is_known(b"before")
    assert aging.is_known(b"within")
    aging.live(40)
    assert not aging.is_known(b"before")


def test_a_record_of_a_clock_that_was_behind_is_kept_as_long(aging: Aging) -> None:
    """What was completed while the clock was behind is no older for it (§5)."""
    aging.live(3)
    aging.now -= DAY_S
    aging.live(3)
    aging.record(b"key")
    aging.now += DAY_S
    aging.live(RETENTION_S - 20)
    assert aging.is_known(b"key")


def test_a_crash_takes_nothing_of_the_retention(tmp_path: Path) -> None:
    """Age counts on from what was noted: a crash may add a minute to it, never take some (§5)."""
    aging = Aging(f"sqlite:///{tmp_path / 's.db'}")
    for restart in range(3):
        aging.record(b"%d" % restart)
        aging.live(30)
        aging.store.close()
        aging.open()
    assert all(aging.is_known(key) for key in (b"0", b"1", b"2"))
    aging.live(11)
    assert not aging.is_known(b"0"), "90 seconds were lived through before"
    assert aging.is_known(b"1")
    aging.store.close()
