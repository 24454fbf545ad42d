"""The backoff of one target: when it, or one of its substreams, is tried again (§15, P4, P7)."""

from __future__ import annotations

from collections.abc import Collection

_SHORTEST_S, LONGEST_S = 0.05, 30.0
# Between two looks whether one that was not reached is there again.
_LONGEST_UNREACHED_S = 1.0


class Backoff:
    """Pauses that double, each drawn from its upper half, so that many do not come at once."""

    def __init__(self, shortest_s: float, longest_s: float) -> None:
        """Nothing has failed yet."""
        self._shortest_s = shortest_s
        self._longest_s = longest_s
        self._next_s = shortest_s

    def pause_s(self, drawn: float) -> float:
        """Return the next pause; ``drawn``: at random, 0.0 to 1.0."""
        pause_s = self._next_s
        self._next_s = min(2 * pause_s, self._longest_s)
        return pause_s * (1 + drawn) / 2

    def lasted(self, time_s: float) -> None:
        """What was tried went well for that long, and ended with nothing to do."""
        if time_s > self._next_s:
            self.reset()

    def reset(self) -> None:
        """Something went well."""
        self._next_s = self._shortest_s


class Pauses:
    """Of one target, by what went wrong."""

    def __init__(self) -> None:
        """Nothing has."""
        self._broken = _backoff()
        # A message that was sent alone, and failed.
        self._failed = _backoff()
        # Connections that did not come to be: a target that restarts is soon found again.
        self._unreached = Backoff(_SHORTEST_S, _LONGEST_UNREACHED_S)
        self._substreams: dict[str, Backoff] = {}

    def of_substream(self, tag: str, drawn: float) -> float:
        """Return how long a substream waits whose message has failed."""
        return self._substreams.setdefault(tag, _backoff()).pause_s(drawn)

    def of_target(self, drawn: float, *, failed: bool, reached: bool) -> float:
        """Return how long the target waits. ``failed``: for what a message of it did."""
        backoff = self._failed if failed else self._broken
        return (backoff if reached else self._unreached).pause_s(drawn)

    def connected(self) -> None:
        """It has said where it is."""
        self._unreached.reset()

    def died(self) -> None:
        """Its process has ended, and another one answers: what killed it has a pause of its own."""
        self._broken.reset()

    def rested(self, time_s: float) -> None:
        """A connection ended after that time, with nothing in flight: a proxy closed it, say."""
        self._broken.lasted(time_s)

    def taken(self, tag: str, failing: Collection[str]) -> None:
        """It has taken something of a substream. ``failing``: those whose messages fail still."""
        self._broken.reset()
        if tag in self._substreams and tag not in failing:
            del self._substreams[tag]
        if not failing:
            self._failed.reset()


def _backoff() -> Backoff:
    return Backoff(_SHORTEST_S, LONGEST_S)
