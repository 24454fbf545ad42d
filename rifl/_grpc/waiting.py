"""Calls whose message has not come, and which of them go when there are too many. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any, Generic, TypeVar

from rifl._grpc.source import source_of


class WaitingCall:
    """A call, since a time and until another. It is known by its identity."""

    __slots__ = ("_source", "context", "since", "until")

    def __init__(self, context: Any, since: float, wait_s: float) -> None:
        self.context = context
        self.since = since
        self.until = since + wait_s
        self._source = ""

    @property
    def source(self) -> str:
        """The caller's address, as of the first time that the call was asked: few are."""
        self.locate()
        return self._source

    def locate(self) -> None:
        """Note the address: gRPC forgets it when the call ends."""
        if not self._source:
            self._source = source_of(self.context.peer())


_C = TypeVar("_C", bound=WaitingCall)


class WaitingCalls(Generic[_C]):
    """At most so many calls. One thread at a time.

    A call that is over the bound pushes another one out, so that there is room for each new
    call: the oldest of the address that holds most. A caller that renews its calls as fast as
    they end gains nothing by that. Times are seconds that never fall.
    """

    def __init__(self, most: int, grace_s: float = 0.0) -> None:
        """``grace_s``: how long a call may wait at least, whatever comes after it."""
        self._most = most
        self._grace_s = grace_s
        # In the order in which they came.
        self._calls: dict[_C, None] = {}

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def crowded(self) -> bool:
        """Whether there are more than the bound."""
        return len(self._calls) > self._most

    def enter(self, call: _C) -> bool:
        """Add a call; return whether there are more than the bound."""
        self._calls[call] = None
        return len(self._calls) > self._most

    def leave(self, call: _C) -> bool:
        """Remove a call; return whether it was there: else it was told to go."""
        return self._calls.pop(call, self) is not self

    def take_crowding(self, now: float) -> list[_C]:
        """Remove and return the calls that make room for others."""
        gone: list[_C] = []
        while self.crowded:
            held = Counter(call.source for call in self._calls)
            most = max(held.values())
            oldest = next(call for call in self._calls if held[call.source] == most)
            if oldest.since + self._grace_s > now:
                break
            del self._calls[oldest]
            gone.append(oldest)
        return gone

    def take_expired(self, now: float) -> list[_C]:
        """Remove and return the calls that have waited as long as they may."""
        found = [call for call in self._calls if call.until <= now]
        for call in found:
            call.locate()
            del self._calls[call]
        return found
