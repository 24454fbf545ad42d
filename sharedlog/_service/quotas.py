"""Quotas: how much one caller, stream or producer may have done (DESIGN-LOG §12, L8). No clock."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from sharedlog._core.errors import QuotaExceeded
from sharedlog._service.settings import ServerLimits

# How much may be done at once, in seconds of the rate.
_BURST_S = 2.0
# A rate that was not used for so long is as a new one.
_MOST_KNOWN = 10_000


class Rates:
    """Token buckets by name: what is over a rate is refused, until it is below it again."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: seconds that never fall."""
        self._clock = clock
        # Debt, in what is counted, as of a time.
        self._debts: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, wanted: Mapping[str, tuple[float, float]]) -> None:
        """Take amounts of rates, by name, all or none; raises ``QuotaExceeded``.

        One that is more than a rate allows at once is taken where nothing is owed.
        """
        now = self._clock()
        owed: dict[str, float] = {}
        for name, (amount, per_s) in wanted.items():
            if not per_s:
                continue
            debt, since = self._debts.get(name, (0.0, now))
            debt = max(0.0, debt - (now - since) * per_s)
            if debt and debt + amount > per_s * _BURST_S:
                raise QuotaExceeded(
                    f"{name}: the quota of {per_s:g} a second is used up; send it again later"
                )
            owed[name] = debt + amount
        for name, debt in owed.items():
            self._debts[name] = (debt, now)
            self._debts.move_to_end(name)
        while len(self._debts) > _MOST_KNOWN:
            self._debts.popitem(last=False)


class Quotas:
    """Of one server. Any thread."""

    def __init__(self, limits: ServerLimits, clock: Callable[[], float]) -> None:
        """Nothing is counted at first."""
        self._limits = limits
        self._lock = threading.Lock()
        self._rates = Rates(clock)
        self._unanswered: Counter[str] = Counter()
        self._followers: Counter[str] = Counter()

    @contextmanager
    def calling(self, caller: str) -> Iterator[None]:
        """Count one more call of this caller while the block runs."""
        with self._one(self._unanswered, caller, self._limits.caller_unanswered, "calls"):
            yield

    @contextmanager
    def following(self, caller: str) -> Iterator[None]:
        """One more stream is followed."""
        with self._lock:
            if 0 < self._limits.followers <= self._followers.total():
                raise QuotaExceeded(
                    f"{self._limits.followers} followers is the most that this server has"
                )
        with self._one(self._followers, caller, self._limits.caller_followers, "followers"):
            yield

    def publish(self, caller: str, producer: str, streams: Mapping[str, int]) -> None:
        """So many bytes are published to these streams."""
        limits = self._limits
        wanted = {
            f"bytes of {caller} to {stream}": (float(size), limits.stream_bytes_per_s)
            for stream, size in streams.items()
        }
        wanted[f"bytes of producer {producer}"] = (
            float(sum(streams.values())),
            limits.producer_bytes_per_s,
        )
        with self._lock:
            self._rates.take(wanted)

    def step(self, caller: str) -> None:
        """Something is made that stays."""
        with self._lock:
            self._rates.take({f"steps of {caller}": (1.0, self._limits.caller_steps_per_s)})

    @contextmanager
    def _one(self, counts: Counter[str], caller: str, most: int, what: str) -> Iterator[None]:
        with self._lock:
            if 0 < most <= counts[caller]:
                raise QuotaExceeded(f"{most} {what} of {caller} are in flight")
            counts[caller] += 1
        try:
            yield
        finally:
            with self._lock:
                counts[caller] -= 1
                if not counts[caller]:
                    del counts[caller]
