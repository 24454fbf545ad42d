"""The retry policy: exponential backoff with full jitter (DESIGN §3)."""

from __future__ import annotations

from dataclasses import dataclass

from _rifl_ground.numbers import check_counts

# A header's 32 bits.
_MOST_MS = (1 << 32) - 1
_MAX_EXPONENT = 64
# With less than twice this left, another attempt would find what the last one found.
_SHORTEST_S = 0.01
# By so much gRPC's clock may be ahead of the client's.
TICK_S = 0.05


def pause_s(backoff_s: float, told_s: float | None) -> float:
    """Seconds until the next attempt, where the server may have told a time.

    That is the least of it (google.rpc.RetryInfo): who fails again and again waits
    longer each time, or every duplicate of a slow call asks twenty times a second.
    A negative one is kept: it forbids the attempt.
    """
    if told_s is None:
        return backoff_s
    return told_s if told_s < 0 else max(told_s, backoff_s)


def shortened_s(
    pause_s: float, left_s: float, *, least_s: float = 0.0, shortest_s: float = _SHORTEST_S
) -> float | None:
    """Seconds until the next attempt of a call that has ``left_s`` left; None: it has none.

    A pause that would outlast the call is cut to half of what is left, again and again: a
    server that is back shortly before the deadline is found, and no call is given up with
    half of its time to spare. ``least_s`` is what the server told: it is never undercut.
    """
    if pause_s < left_s:
        return pause_s
    half_s = left_s / 2
    if half_s < shortest_s:
        return None
    if half_s >= least_s:
        return half_s
    return least_s if least_s < left_s else None


def in_ms(left_s: float | None) -> int:
    """Return for how long a call may be tried, in a header's milliseconds; None: without end."""
    return _MOST_MS if left_s is None else min(max(int(left_s * 1000), 1), _MOST_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and for how long a call is tried; times in seconds.

    Before attempt n+1 a client waits a random part of ``initial_backoff_s *
    multiplier ** (n-1)``, at most ``max_backoff_s``; longer if the server names a
    longer time. ``attempt_timeout_s`` bounds one attempt (None: the caller's
    deadline alone does). ``max_elapsed_s`` bounds the retries of calls without
    a deadline (None: no limit); it never cuts an attempt short.
    ``max_attempts`` bounds their number (None: no bound). If a call is in flight on a channel
    of ``connect``, and nothing was answered on it for ``silence_s``, the channel asks
    the lease service for a sign of life. It replaces a connection that gives none within
    ``silence_s``, while another one does; None: never.

    Retries and hedges have a budget for each target. ``budget_tokens`` are there at the
    beginning and at most; a retry or a hedge takes one, each call that is answered adds
    ``budget_ratio``. Without one it waits; one retry a second is sent all the same. Free are
    first attempts, and those after NOT_LEADER, DRAINING, DEPOSED or a lost connection. None: no
    budget. Raises ``ValueError`` for numbers that make no sense together.
    """

    initial_backoff_s: float = 0.05
    max_backoff_s: float = 2.0
    multiplier: float = 2.0
    attempt_timeout_s: float | None = None
    max_elapsed_s: float | None = 60.0
    max_attempts: int | None = None
    silence_s: float | None = 2.0
    budget_tokens: float | None = 10.0
    budget_ratio: float = 0.1

    def __post_init__(self) -> None:
        """Check the fields against each other."""
        if not 0 < self.initial_backoff_s <= self.max_backoff_s:
            raise ValueError("0 < initial_backoff_s <= max_backoff_s must hold")
        if self.multiplier < 1:
            raise ValueError("multiplier must be at least 1")
        if self.attempt_timeout_s is not None and self.attempt_timeout_s <= 0:
            raise ValueError("attempt_timeout_s must be positive, or None")
        if self.max_elapsed_s is not None and self.max_elapsed_s < 0:
            raise ValueError("max_elapsed_s must not be negative")
        check_counts(self, 1, "max_attempts")
        if self.silence_s is not None and self.silence_s <= 0:
            raise ValueError("silence_s must be positive, or None")
        if self.budget_tokens is not None and self.budget_tokens < 1:
            raise ValueError("budget_tokens must be at least 1, or None")
        if self.budget_ratio < 0:
            raise ValueError("budget_ratio must not be negative")

    def backoff_s(self, attempts: int, jitter: float) -> float:
        """Seconds to wait after ``attempts`` attempts; ``jitter`` in [0, 1)."""
        exponent = min(max(attempts - 1, 0), _MAX_EXPONENT)
        return jitter * min(
            self.max_backoff_s, self.initial_backoff_s * float(self.multiplier**exponent)
        )
