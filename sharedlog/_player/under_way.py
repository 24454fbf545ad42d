"""The deliveries in flight on one connection, for the observers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from sharedlog._core.player.item import Outgoing
from sharedlog._core.player.observer import DeliveryReport
from sharedlog._core.position import Position
from sharedlog._player.watching import PlayerWatchers

# A substream's last place that was ever sent, as places are compared.
Highest = dict[str, tuple[int, int]]


class _Sent(NamedTuple):
    report: DeliveryReport
    begun: Any
    at_s: float


class UnderWay:
    """Of one connection to one target; on the player's event loop."""

    def __init__(
        self, watchers: PlayerWatchers, target: str, highest: Highest, clock: Callable[[], float]
    ) -> None:
        """``highest``: what was sent to the target on earlier connections; kept up to date.

        ``clock``: seconds, one that does not jump.
        """
        self._clock = clock
        self._watchers = watchers
        self._target = target
        self._highest = highest
        self._waiting: dict[str, deque[_Sent]] = {}

    def sent(self, sent: Outgoing, envelope: bytes) -> tuple[str, str]:
        """A message is sent; return the trace context it is to travel with, or nothing twice."""
        item = sent.item
        place = item.place[:2]
        before = self._highest.get(item.tag)
        again = before is not None and place <= before
        if not again:
            self._highest[item.tag] = place
        report = DeliveryReport(
            self._watchers.player, self._target, item.tag, item.place, item.at_us, again, envelope
        )
        begun = self._watchers.sending(report)
        waiting = self._waiting.setdefault(item.tag, deque())
        waiting.append(_Sent(report, begun, self._clock()))
        for trace in begun:
            if trace is not None and trace[0]:
                return trace[0], trace[1]
        return "", ""

    def taken(self, tag: str, place: Position) -> None:
        """The target has taken a substream through there."""
        waiting = self._waiting.get(tag)
        now_s = self._clock()
        while waiting and waiting[0].report.position[:2] <= place[:2]:
            self._answered(waiting.popleft(), now_s, "")

    def failed(self, tag: str, error: str) -> None:
        """The target did not take a substream's next message, nor what was sent behind it."""
        now_s = self._clock()
        for each in self._waiting.pop(tag, ()):
            self._answered(each, now_s, error)
            error = "behind a message that was not taken"

    def close(self, error: str) -> None:
        """The connection is over: what is not answered is asked for anew."""
        now_s = self._clock()
        for waiting in self._waiting.values():
            for each in waiting:
                self._answered(each, now_s, error)
        self._waiting.clear()

    def _answered(self, sent: _Sent, now_s: float, error: str) -> None:
        self._watchers.answered(sent.report, sent.begun, max(0.0, now_s - sent.at_s), error)
