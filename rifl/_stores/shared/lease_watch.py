"""The watch of a sweeper over its store: may it end leases yet? (DESIGN §5) No I/O."""

from __future__ import annotations

from collections.abc import Callable


class LeaseWatch:
    """Knows for how long the store was watched without a gap.

    A lease is due by the store's clock, and its renewals went to the store; so if
    either was away, clients could not renew, and get a full new term: late is safe,
    early is not. ``saw`` is called with what changes when the store's server does,
    at intervals well below a term. Not thread-safe.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: float | None = None
        self._last = 0.0
        self._run = b""

    def saw(self, run: bytes, term_s: float) -> bool:
        """Note that the store answers; whether it did for a full term by now."""
        now = self._clock()
        if self._since is None or run != self._run or now - self._last > term_s / 2:
            self._since = now
        self._last, self._run = now, run
        return now - self._since >= term_s

    def lost(self) -> None:
        """Note that the store did not answer."""
        self._since = None
