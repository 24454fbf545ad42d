"""Retention over a store whose clock is set wrong: what every shared store has to show."""

from __future__ import annotations

from typing import Any

from rifl._stores.shared import CountBeat
from rifl.core._serving.bounds import KeyBounds
from rifl.core._serving.verdict import Verdict
from tests.helpers.waiting import until
from tests.stores.redis.replica import FIRST, IDEMPOTENT, Replica, keyed

__all__ = ["LivedTime"]

PEER = -7
_DAY_S = 86_400.0
_HOUR = KeyBounds(retention_s=3600.0)


class LivedTime:
    """``clock`` is that of the fixture ``clocked``'s server, whose URL that is."""

    def _beaten(self, replica: Replica, times: int = 3) -> None:
        """Wait for beats, and sweep after each."""
        for _ in range(times):
            seen = replica.store._heartbeat._replicas._looked_at
            until(
                lambda seen=seen: replica.store._heartbeat._replicas._looked_at != seen, "it beats"
            )
            replica.store.expire_keys()

    def test_a_clock_a_day_ahead_for_a_moment_makes_no_key_new(
        self, clocked: str, clock: Any
    ) -> None:
        """Retention is aged by what was lived through, not by dates (DESIGN §5)."""
        one = Replica(clocked, key_bounds=_HOUR)
        one.finish(one.begin(keyed(PEER, b"k"), IDEMPOTENT))
        clock.step(_DAY_S)
        self._beaten(one)
        assert one.claim(keyed(PEER, b"k"), IDEMPOTENT).record == FIRST
        one.finish(one.begin(keyed(PEER, b"meanwhile"), IDEMPOTENT))
        clock.step(-_DAY_S)
        self._beaten(one)
        for key in (b"k", b"meanwhile"):
            assert one.claim(keyed(PEER, key), IDEMPOTENT).record == FIRST
        one.close()

    def test_a_record_dated_by_a_clock_that_was_behind_is_kept_as_long(
        self, clocked: str, clock: Any
    ) -> None:
        """When the clock is set right, the record is no older than it is (DESIGN §5)."""
        clock.step(-_DAY_S)
        one = Replica(clocked, key_bounds=_HOUR)
        one.finish(one.begin(keyed(PEER, b"k"), IDEMPOTENT))
        clock.step(_DAY_S)
        self._beaten(one)
        assert one.claim(keyed(PEER, b"k"), IDEMPOTENT).record == FIRST
        one.close()

    def test_what_was_lived_through_ends_a_retention(self, clocked: str) -> None:
        """A key is new after its retention, and some seconds: the counter moves (DESIGN §3)."""
        one = Replica(clocked, key_bounds=KeyBounds(retention_s=0.1))
        two = Replica(clocked, key_bounds=KeyBounds(retention_s=0.1))
        one.finish(one.begin(keyed(PEER, b"k"), IDEMPOTENT))

        def is_new() -> bool:
            two.store.expire_keys()
            return bool(two.claim(keyed(PEER, b"k"), IDEMPOTENT).verdict is Verdict.NEW)

        until(is_new, "it is new")
        one.close()
        two.close()

    def test_one_replica_at_a_time_counts_and_by_little(self, clocked: str, lived: Any) -> None:
        """However many beat, and whatever their clocks show, time passes once (DESIGN §5)."""
        replicas = {name: Replica(clocked) for name in "ab"}
        for each in replicas.values():
            each.fall_silent()
        for each in replicas.values():
            each.store._heartbeat.leave()
        began = lived()

        def beat(name: str, reading_s: float, *, leaving: bool = False) -> float:
            store = replicas[name].store
            store._backend.ask(CountBeat(store.owner, (), leaving, reading_s))
            return float(round(lived() - began, 3))

        assert beat("a", 100.0) == 0.0, "it begins"
        assert beat("b", 9000.0) == 0.0
        assert beat("a", 101.0) == 1.0
        assert beat("a", 101.0) == 1.0, "asked again, since its reply was lost"
        assert beat("b", 9001.0) == 1.0, "another one's"
        assert beat("a", 50.0) == 1.0, "never back"
        assert beat("a", 9000.0) == 3.0, "suspended: two seconds at most"
        assert beat("a", 0.0, leaving=True) == 3.0
        assert beat("b", 9100.0) == 3.0, "it goes on from here"
        assert beat("b", 9100.5) == 3.5
        for each in replicas.values():
            each.store._backend.close()
