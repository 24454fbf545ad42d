"""The stage of a player that leads: what its targets' courses have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from sharedlog._core.fences import Fence
from sharedlog._core.player.failing import Suspended
from sharedlog._core.player.feeding import Feeding
from sharedlog._core.player.indexes import KnownIndex
from sharedlog._core.player.trouble import Trouble
from sharedlog._core.position import Position
from sharedlog._core.steps import Rule
from sharedlog._log.place import Place
from sharedlog._player.declared import Target
from sharedlog._player.outside import LogCalls, Outside
from sharedlog._player.under_way import Highest
from sharedlog._player.watching import PlayerWatchers
from sharedlog.v1 import target_pb2

_T = TypeVar("_T")


class Stage(NamedTuple):
    """What courses have of the player that leads, under this fence."""

    place: Place
    outside: Outside
    log: LogCalls
    player: str
    log_name: str
    dead_letters: str
    fence: Fence
    watchers: PlayerWatchers
    dispatched: Callable[[], int | None]
    # Has what is told of a target be durable.
    tell: Callable[[str], Awaitable[None]]

    async def run(self, rule: Callable[[], Rule[_T]]) -> _T:
        """Carry out a rule that may be run again."""
        return await self.log.run(rule)


class Fed(Protocol):
    """A target's course, as what delivers to it sees it."""

    target: Target
    stage: Stage
    feeder: Feeding
    taken: int
    highest: Highest

    @property
    def feed(self) -> target_pb2.Feed:
        """Whose index it is, to the target."""

    def taken_through(self, term: int, tag: str, place: Position) -> None:
        """It has taken a substream through there."""

    def refused(self, term: int, trouble: Trouble) -> None:
        """It has answered that something is wrong."""

    hung: dict[str, Position]

    @property
    def polls_s(self) -> float:
        """How often it is asked whether a handler that hangs has ended."""

    async def noted(self) -> None:
        """Have what the next player needs be durable, before anything more is sent."""

    def was_late(self, tags: Sequence[str]) -> None:
        """It is cut off since it answered nothing of these substreams, the longest first."""

    async def polled(self, feeder: Feeding, index: KnownIndex) -> None:
        """It has said where a substream is whose handler hung."""

    def rested(self, time_s: float) -> None:
        """Its connection ended after that time, when it had all that was dispatched."""

    def suspend(self, suspended: Suspended) -> None:
        """Send it nothing more until an operator acts."""
