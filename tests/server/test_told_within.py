"""Observers, logging handlers and signals' handlers that ask what they are told by (DESIGN §3)."""

from __future__ import annotations

from typing import Any

import rifl
from rifl._server.health import HealthStatus
from rifl._stores.shared.refusing import Refusing
from tests.helpers.at_a_line import at_a_line, bounded


class _Drains(rifl.Observer):
    def __init__(self) -> None:
        self.told: list[str | None] = []
        self.dedup: Any = None

    def serving(self, refusal: rifl.RiflError | None) -> None:
        """Drain as soon as anything is refused, as a program that is to be replaced may."""
        self.told.append(refusal and refusal.reason)
        self.dedup.drain()
        self.dedup.close()


def test_an_observer_drains_and_closes_the_server() -> None:
    """While it is told that new calls are refused."""
    observer = _Drains()
    with rifl.Deduplicator("memory:", observer=observer) as observer.dedup:
        bounded(lambda: [observer.dedup.close()], 10)
    assert observer.told == ["DRAINING"]


def test_what_a_shared_store_refuses_is_told_in_its_order() -> None:
    """Also what who is told brings about."""
    told: list[str | None] = []

    def tell(refusal: rifl.RiflError | None) -> None:
        told.append(refusal and refusal.reason)
        if len(told) == 1:
            refusing.drain(True)

    refusing = Refusing(tell)
    bounded(lambda: [refusing.away("gone")], 10)
    assert told == ["STORE_UNAVAILABLE", "DRAINING"]


def test_a_signal_sets_the_health_in_the_middle_of_that() -> None:
    """At each line: the last that is said holds."""
    number, line = 1, None
    while line is None or line.came:
        health = HealthStatus()
        set_to: list[bool] = []
        health._setters.append((("",), lambda _, serving: set_to.append(serving)))  # noqa: B023

        def outer() -> Any:
            with at_a_line(number, lambda: health.set(False)) as line:  # noqa: B023 - at once
                health.set(True)  # noqa: B023
            return line

        line = bounded(outer, 10)
        if line.came:
            assert set_to in ([True, False], [False, True]), line
            assert health._serving is set_to[-1], line
        number += 1
