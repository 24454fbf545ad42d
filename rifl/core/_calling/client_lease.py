"""The lease as a client holds it: an id, its term, its methods (DESIGN §5)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rifl.core._calling.request_tracker import RequestTracker
from rifl.core._shared.identity import DEFAULT_WINDOW


class MethodPatterns:
    """Which methods a server deduplicates: "/pkg.Service/Method", "/pkg.Service/*", "*".

    The most specific pattern that fits a method says whether it is: a pattern given, or
    an exception. A pattern of any other form matches nothing. A method with a stream on one
    side is deduplicated only where it is named itself. Immutable.
    """

    __slots__ = ("_excluded", "_included")

    def __init__(self, included: tuple[str, ...], excluded: tuple[str, ...] = ()) -> None:
        self._included = frozenset(included)
        self._excluded = frozenset(excluded)

    def __contains__(self, method: str) -> bool:
        for form in (method, method.rpartition("/")[0] + "/*", "*"):
            if form in self._excluded:
                return False
            if form in self._included:
                return True
        return False

    def has(self, method: str, *, stream: bool) -> bool:
        """Whether a method is deduplicated, which has a stream on one side or has none."""
        return method in self._included if stream else method in self


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseGrant:
    """What the lease server gave. ``store``: whose records the id belongs to; 0: not said."""

    client_id: int
    token: bytes = field(repr=False)
    term_s: float
    deduplicated: tuple[str, ...]
    not_deduplicated: tuple[str, ...] = ()
    window: int = DEFAULT_WINDOW
    streams: bool = False
    store: int = 0


class ClientLease:
    """One client id and all that hangs on it; calls hold on to it when it is lost.

    ``expires_at`` counts from when the request was *sent* that the server
    accepted last, so it is never later than the server's own time (RIFL §3.3).
    ``early``: by this part of a third of the term it is renewed early, by chance. It holds
    in full while no call has renewed it since ``early_from``.
    ``encoded`` is a shell's cache of id and token; it goes with the token. Until
    ``asked_until`` a renewal of it may be on its way.
    """

    __slots__ = (
        "asked_until",
        "client_id",
        "early",
        "early_from",
        "encoded",
        "expires_at",
        "lost",
        "methods",
        "range_cursor",
        "renewed_at",
        "store",
        "streams",
        "term_s",
        "token",
        "token_at",
        "tracker",
        "window",
    )

    def __init__(self, grant: LeaseGrant, window: int, sent_at: float) -> None:
        self.client_id = grant.client_id
        self.token = grant.token
        self.term_s = grant.term_s
        self.streams = grant.streams
        self.store = grant.store
        self.asked_until = -math.inf
        self.early = 0.0
        self.early_from = sent_at
        self.methods = MethodPatterns(grant.deduplicated, grant.not_deduplicated)
        self.window = window
        self.tracker = RequestTracker(window)
        self.renewed_at = sent_at
        # When the server was last asked for the token to use.
        self.token_at = sent_at
        self.expires_at = sent_at + grant.term_s
        self.range_cursor = 0
        self.encoded = b""
        self.lost = False

    def accepted(self, sent_at: float) -> None:
        """Count the term anew from ``sent_at``; never backwards."""
        if sent_at > self.renewed_at:
            self.renewed_at = sent_at
            self.expires_at = sent_at + self.term_s
