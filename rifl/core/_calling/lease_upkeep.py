"""The lease of a channel: when it is asked for, renewed, and given up (RIFL §3.3; DESIGN §5)."""

from __future__ import annotations

import enum
import math
from typing import NamedTuple

from rifl.core._calling.client_lease import ClientLease, LeaseGrant
from rifl.core._calling.retry import RetryPolicy, shortened_s
from rifl.core._calling.silence import ConnectionWatch
from rifl.core._shared.identity import ALSO_AT_MOST

# Between two requests for a lease, however little time the calls have that wait for it.
_SHORTEST_LEASE_PAUSE_S = 0.05

# A lease may be renewed along with another one so much of its term before it is due: half of
# the time between two renewals.
_EARLY_OF_TERM = 1 / 6


class LeaseStep(enum.Enum):
    """What a shell does next for the lease."""

    GRANT = "grant"
    RENEW = "renew"
    # Ask for a sign of life of the connection, by a renewal: see ``ConnectionWatch``.
    PROBE = "probe"
    WAIT = "wait"


class LostLease(NamedTuple):
    """A client id that is gone, with calls whose outcome may never be known."""

    client_id: int
    outstanding: int


class LeaseUpkeep:
    """The part of ``ClientSession`` that has a client id and keeps it."""

    def __init__(self, *, window: int, retry: RetryPolicy, named: bool) -> None:
        self.retry = retry
        self.lease: ClientLease | None = None
        # What granted the last client id, 0 before that.
        self.store = 0
        self.named = named
        self._window = window
        self._losses: list[LostLease] = []
        self._lease_failures = 0
        self._lease_failed_at = 0.0
        self._lease_retry_at = 0.0

    def may_take(self, grant: LeaseGrant) -> bool:
        """Whether a grant's id may be taken: that of a named session from its store only.

        The same key would be a new call under an id of other records (invariant 7).
        """
        return not self.named or self.store in (0, grant.store)

    def granted(self, grant: LeaseGrant, sent_at: float) -> ClientLease:
        """Take a new client id, asked for at ``sent_at``."""
        self.store = grant.store
        window = min(self._window, grant.window) if grant.window else self._window
        self.lease = ClientLease(grant, window, sent_at)
        self._lease_failures = 0
        return self.lease

    def renewed(self, lease: ClientLease, term_s: float, token: bytes, sent_at: float) -> None:
        """Note a renewal asked for at ``sent_at``; an empty token means the old one."""
        self._lease_failures = 0
        lease.asked_until = -math.inf
        if term_s > 0:
            lease.term_s = term_s
        lease.accepted(sent_at)
        lease.token_at = max(lease.token_at, sent_at)
        if token and token != lease.token:
            lease.token = token
            lease.encoded = b""

    def lease_failed(self, now: float, jitter: float) -> None:
        """Note that a request of the lease server's got no answer; back off."""
        if self.lease is not None:
            self.lease.asked_until = -math.inf
        self._lease_failures += 1
        self._lease_failed_at = now
        self._lease_retry_at = now + self.retry.backoff_s(self._lease_failures, jitter)

    def lost(self, lease: ClientLease) -> None:
        """Note that a lease is gone; idempotent. Its calls keep their identities."""
        if lease.lost:
            return
        lease.lost = True
        if self.lease is lease:
            self.lease = None
            self._lease_failures = 0
        if lease.tracker.incomplete:
            self._losses.append(LostLease(lease.client_id, lease.tracker.incomplete))

    def take_losses(self) -> list[LostLease]:
        """Return, once each, the losses that the application is to be told of."""
        losses, self._losses = self._losses, []
        return losses

    def lease_step(
        self,
        now: float,
        *,
        wanted: bool,
        ends_at: float | None = None,
        watch: ConnectionWatch | None = None,
        in_flight: bool = False,
    ) -> tuple[LeaseStep, float | None]:
        """Decide what to do for the lease, and when to look again.

        ``wanted`` tells that a call waits for a usable lease, ``ends_at`` until when: a
        pause that would outlast it is shortened, as those of calls are. A lease whose time
        is over by our count is renewed before it is given up: the server counts
        later, and gives everybody a full term after a restart (DESIGN §5). ``watch``: of
        a connection that can be replaced; ``in_flight``: whether a call waits for its answer.
        """
        lease = self.lease
        retry_at = self._lease_retry_at if self._lease_failures else now
        if retry_at > now and ends_at is not None:
            failed_at = self._lease_failed_at
            pause_s = shortened_s(
                retry_at - failed_at, ends_at - failed_at, shortest_s=_SHORTEST_LEASE_PAUSE_S
            )
            retry_at = retry_at if pause_s is None else failed_at + pause_s
        if lease is None:
            if not wanted:
                return LeaseStep.WAIT, None
            return (LeaseStep.GRANT, None) if now >= retry_at else (LeaseStep.WAIT, retry_at)
        due = max(_heartbeat_at(lease), retry_at)
        if wanted and now >= lease.expires_at:
            due = retry_at
        due = max(due, lease.asked_until)
        if now >= due:
            return LeaseStep.RENEW, None
        if watch is not None:
            ask_at = max(watch.ask_at(now, lease.renewed_at, in_flight=in_flight), retry_at)
            if now >= ask_at:
                return LeaseStep.PROBE, None
            due = min(due, ask_at)
        return LeaseStep.WAIT, due

    # Renewals that several channels of a process share (DESIGN §5).

    def room_for_companions(self) -> int:
        """Return how many other leases a renewal may renew, too."""
        # While this channel's requests fail, no other lease depends on them.
        return 0 if self._lease_failures else ALSO_AT_MOST

    def accompany(self, other: ClientLease, now: float, until: float) -> ClientLease | None:
        """Have the renewal of another channel's lease renew ours, too, if it is due soon.

        Return ours then; until ``until`` it is not asked for here, unless
        ``not_accompanied`` says that nothing came of it.
        """
        lease = self.lease
        if (
            lease is None
            or lease.store != other.store
            or lease.store == 0
            or self._lease_failures
            or now < lease.asked_until
            or now < _heartbeat_at(lease) - lease.term_s * _EARLY_OF_TERM
        ):
            return None
        lease.asked_until = until
        return lease

    def not_accompanied(self, lease: ClientLease, now: float, jitter: float) -> None:
        """Note that another channel's request brought no *yes* for a lease (invariant 6)."""
        if self.lease is lease:
            self.lease_failed(now, jitter)

    def asking(self, lease: ClientLease, until: float) -> None:
        """Note that a renewal of the lease is being sent, answered by ``until`` or never."""
        lease.asked_until = until

    def of_another_store(self, store: int) -> bool:
        """Whether the client id that calls are issued under now is not of that store."""
        return store != 0 and self.lease is not None and self.lease.store != store

    def usable(self, now: float) -> bool:
        """Whether calls may be issued: there is a lease, and by our count it lives."""
        return self.lease is not None and now < self.lease.expires_at


def _heartbeat_at(lease: ClientLease) -> float:
    # Accepted calls renew; but only a heartbeat brings the token of a new secret,
    # and the old one is good for a term after that.
    return min(lease.renewed_at + lease.term_s / 3, lease.token_at + lease.term_s)
