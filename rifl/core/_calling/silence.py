"""Rules of connections: when a silent one is replaced, and a failing one let go (DESIGN §5)."""

from __future__ import annotations

import enum
import math

# Another connection is tried at most so many times as rarely while nothing answers on it, either.
_RAREST = 16
# So soon an application makes another call in the place of one that failed.
_CALLED_AGAIN_S = 1.0


class SilenceStep(enum.Enum):
    """What a shell does next with a connection on which a request got no answer."""

    # Send the request on another, new connection.
    ANOTHER = "another"
    # Send it once more on the one that did not answer.
    AGAIN = "again"
    KEEP = "keep"
    REPLACE = "replace"


class ConnectionWatch:
    """When a connection is asked for a sign of life, and how it is found to be silent.

    A middle box may forget a connection, acknowledge what is sent on it, and pass nothing on.
    A slow handler, a full thread pool and a process that stands still look the same from here,
    so a request without an answer is a suspicion only. A connection is replaced after the
    same request was answered on a new connection, and then not on this one again.

    Times are seconds of any monotonic clock. No I/O, no clock; serialised by the shell.
    """

    def __init__(self, silence_s: float) -> None:
        """``silence_s``: see ``RetryPolicy``."""
        self.silence_s = silence_s
        self._in_vain = 0
        self._not_before = -math.inf

    def ask_at(self, now: float, answered_at: float, *, in_flight: bool) -> float:
        """Return when to ask for a sign of life, or to look again if no call is in flight.

        ``answered_at``: when the newest request was sent that was answered.
        """
        if not in_flight:
            return now + self.silence_s
        return max(answered_at + self.silence_s, self._not_before)

    def unanswered(self, now: float, timeout_s: float, *, renewing: bool) -> SilenceCheck:
        """Note that a request got no answer in ``timeout_s``; return what follows.

        ``renewing``: it can be sent again, as often as one likes.
        """
        return SilenceCheck(self, now, timeout_s, renewing=renewing)

    def may_try(self, now: float) -> bool:
        """Whether another connection may be opened: each time in vain, the pause doubles."""
        return now >= self._not_before

    def tried(self, now: float, *, in_vain: bool) -> None:
        """Note whether another connection was needed; not ``in_vain`` also where none was."""
        self._in_vain = self._in_vain + 1 if in_vain else 0
        pause_s = self.silence_s * min(2**self._in_vain, _RAREST) if in_vain else 0.0
        self._not_before = now + pause_s


class TargetWatch(ConnectionWatch):
    """The watch of one of several targets that take calls in turn: its own calls count.

    It is shown the oldest call that waits for the target, and how many the target answered, at
    least once in ``silence_s``.
    """

    def __init__(self, silence_s: float) -> None:
        super().__init__(silence_s)
        self._seen: tuple[object, int] = (None, 0)
        self._since = 0.0

    def look(self, now: float, oldest: object, answers: int) -> float | None:
        """Return when to ask for a sign of life; None: no call waits."""
        if self._seen != (oldest, answers):
            self._seen, self._since = (oldest, answers), now
        return None if oldest is None else self.ask_at(now, self._since, in_flight=True)

    def tried(self, now: float, *, in_vain: bool) -> None:
        """See ``ConnectionWatch``."""
        super().tried(now, in_vain=in_vain)
        self._since = now


class FailingConnection:
    """When a channel that finds no connection stops trying: until the next request.

    gRPC tries again for as long as the channel is there, several times a second, as a call may
    wait for it. No I/O, no clock; serialised by the shell.
    """

    def __init__(self) -> None:
        self._called_at = -math.inf

    def called(self, now: float) -> None:
        """Note that a call failed: its caller may make another one soon."""
        self._called_at = now

    def ends_at(self, *, waiting: bool, in_flight: bool, current: bool) -> float | None:
        """Return from when on the channel may stop; None: not now.

        ``waiting``: a call waits for a connection, a lease or a token, to whichever target.
        ``in_flight``: first attempts are on their way to the ``current`` target.
        """
        if waiting or (in_flight and current):
            return None
        return self._called_at + _CALLED_AGAIN_S if current else -math.inf


class SilenceCheck:
    """One check of a connection: a shell does ``step`` until it is KEEP or REPLACE.

    ANOTHER and AGAIN are answered by ``told``, at the latest after ``timeout_s``.
    """

    def __init__(
        self, watch: ConnectionWatch, now: float, timeout_s: float, *, renewing: bool
    ) -> None:
        self._watch = watch
        self._renewing = renewing
        self._sent_at = now
        self.timeout_s = timeout_s
        self.step = SilenceStep.ANOTHER if watch.may_try(now) else SilenceStep.KEEP

    def told(self, now: float, *, answered: bool) -> None:
        """Take whether the request of this step was answered."""
        if self.step is SilenceStep.ANOTHER and answered and self._renewing:
            # A server that had no time for the first request has it now.
            self.step = SilenceStep.AGAIN
            self.timeout_s = max(2 * (now - self._sent_at), self._watch.silence_s / 2)
            return
        replace = answered if self.step is SilenceStep.ANOTHER else not answered
        self.step = SilenceStep.REPLACE if replace else SilenceStep.KEEP
        self._watch.tried(now, in_vain=not replace)
