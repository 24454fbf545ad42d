"""Renewals of many clients in virtual time: never in step, and few while nothing answers (§5)."""

from __future__ import annotations

import heapq
from collections import Counter
from random import Random

import pytest

from rifl.core._calling.client_lease import LeaseGrant
from rifl.core._calling.client_session import ClientSession, LeaseStep

TERM_S = 60.0
CLIENTS = 1000


class Fleet:
    """Idle clients and the times of their requests; between two times nothing answers."""

    def __init__(self, away: tuple[float, float], granted_at: float | None = None) -> None:
        """``granted_at``: of all at once; None: spread over a third of a term."""
        self._away = away
        self._random = Random(7)
        self.asked: list[float] = []
        self._due: list[tuple[float, int]] = []
        self._sessions: list[ClientSession] = []
        for client_id in range(CLIENTS):
            session = ClientSession()
            grant = LeaseGrant(
                client_id=client_id + 1, token=b"t", term_s=TERM_S, deduplicated=("*",)
            )
            at = granted_at
            session.granted(
                grant,
                self._random.random() * TERM_S / 3 if at is None else at,
                self._random.random(),
            )
            self._sessions.append(session)
            self._due.append((0.0, client_id))
        heapq.heapify(self._due)

    def run(self, until: float) -> None:
        """Send what is due."""
        while self._due[0][0] < until:
            now, number = heapq.heappop(self._due)
            session, jitter = self._sessions[number], self._random.random()
            step, at = session.lease_step(now, wanted=False)
            if step is LeaseStep.RENEW:
                self.asked.append(now)
                if self._away[0] <= now < self._away[1]:
                    session.lease_failed(now, jitter)
                else:
                    assert session.lease is not None
                    session.renewed(session.lease, TERM_S, b"", now, jitter)
                at = now
            assert at is not None
            heapq.heappush(self._due, (at, number))

    def busiest(self, begin: float, end: float) -> int:
        """The most requests in a second of a time."""
        return max(Counter(int(at) for at in self.asked if begin <= at < end).values())

    def each_second(self, begin: float, end: float) -> float:
        """The requests in a second, on the average of a time."""
        return sum(begin <= at < end for at in self.asked) / (end - begin)


def test_clients_that_began_at_once_do_not_renew_at_once() -> None:
    """Their first renewals are spread over a third of the term, and later ones stay apart."""
    fleet = Fleet((1e9, 1e9), granted_at=0.0)
    fleet.run(200.0)
    # Evenly it is fifty a second; in step it would be a thousand.
    assert fleet.busiest(0.0, 200.0) <= 150
    assert fleet.each_second(20.0, 200.0) <= 50 * 1.15


@pytest.mark.parametrize("jitter", [0.0, 0.5, 0.999])
def test_chance_makes_a_renewal_earlier_only(jitter: float) -> None:
    """The first one by all of a third of the term, others by a fifth of that (DESIGN §5)."""
    session, third_s = ClientSession(), TERM_S / 3
    grant = LeaseGrant(client_id=1, token=b"t", term_s=TERM_S, deduplicated=("*",))
    lease = session.granted(grant, 0.0, jitter)
    assert session.lease_step(0.0, wanted=False)[1] == pytest.approx(third_s * (1 - jitter))
    session.renewed(lease, TERM_S, b"", 100.0, jitter)
    due = session.lease_step(100.0, wanted=False)[1]
    assert due == pytest.approx(100.0 + third_s * (1 - 0.2 * jitter))


def test_after_an_outage_renewals_do_not_stay_in_step() -> None:
    """Of a half of all in one second there is nothing left after a third of a term."""
    fleet = Fleet((100.0, 160.0))
    fleet.run(400.0)
    assert fleet.busiest(180.0, 400.0) <= 100


def test_while_nothing_answers_few_requests_are_sent() -> None:
    """A client backs off while its lease is far from its end, and once it is over."""
    fleet = Fleet((100.0, 400.0))
    fleet.run(400.0)
    # As often as if it answered, but for the last seconds of the lease.
    assert fleet.each_second(100.0, 130.0) <= 150
    assert fleet.each_second(130.0, 160.0) <= 500
    assert fleet.each_second(180.0, 400.0) <= 80


def test_a_lease_that_is_near_its_end_is_renewed_in_time() -> None:
    """A server that is back in the last seconds of a term finds every lease alive."""
    fleet = Fleet((100.0, 138.0))
    fleet.run(145.0)
    assert all(session.usable(145.0) for session in fleet._sessions)


def test_where_a_call_waits_the_pauses_are_the_policys() -> None:
    """Also of a lease that is over, and of a lease that there is none of yet."""
    session = ClientSession()
    session.granted(
        LeaseGrant(client_id=1, token=b"t", term_s=TERM_S, deduplicated=("*",)), 0.0, 0.999
    )
    assert session.lease_step(1.0, wanted=False)[0] is LeaseStep.RENEW
    session.lease_failed(61.0, 0.5)
    step, idle_at = session.lease_step(61.0, wanted=False)
    assert step is LeaseStep.WAIT
    assert idle_at == 61.0 + TERM_S / 3 * 0.75
    assert session.lease_step(61.0, wanted=True) == (LeaseStep.WAIT, 61.0 + 0.025)
    assert session.lease_step(61.1, wanted=True)[0] is LeaseStep.RENEW


def test_a_companion_that_got_no_answer_asks_soon_by_its_own_channel() -> None:
    """Its lease may be another one's than the channel's that asked for it (invariant 6)."""
    session = ClientSession()
    lease = session.granted(
        LeaseGrant(client_id=1, token=b"t", term_s=TERM_S, deduplicated=("*",)), 0.0, 0.999
    )
    session.not_accompanied(lease, 20.0, 0.5)
    assert session.lease_step(20.0, wanted=False) == (LeaseStep.WAIT, 20.025)
