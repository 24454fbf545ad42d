"""Driver of the product's log rules for a player: each a course around the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from chaos.sim.faults import Point
from chaos.sim.log.course import Actor, Course
from chaos.sim.player.cast import PlayerCast
from sharedlog._core.errors import LogError
from sharedlog._core.following import Follower
from sharedlog._core.steps import Rule

__all__ = ["SimulatedCalls"]

_T = TypeVar("_T")
# For how long a call is tried again, and how often it is looked whether the log has grown.
_TIMEOUT_S, _LOOK_S = 2.0, 0.02
# What a call is for, by its rule.
_POINTS = {
    "take": Point.DUTY,
    "leave": Point.DUTY,
    "take_holds": Point.HOLDING_ON,
    "move_holds": Point.HOLDING_ON,
    "forget": Point.HOLDING_ON,
    "bury_skipped": Point.NAMED,
    "is_letter_at": Point.NAMED,
    "bind": Point.BINDING,
    "stores_of": Point.BINDING,
    "held_against": Point.BINDING,
    "tell": Point.TELLING,
    "all_told": Point.TELLING,
    "wishes": Point.TELLING,
}


class SimulatedCalls:
    """See ``LogCalls``. A cancelled call is not waited for: its rule goes on to its end."""

    def __init__(self, cast: PlayerCast, actor: Actor) -> None:
        self._cast = cast
        self._actor = actor

    async def run(self, rule: Callable[[], Rule[_T]]) -> _T:
        """See ``LogCalls``."""
        return await self._asked(rule, self._cast.loop.now + _TIMEOUT_S)

    async def once(self, rule: Rule[_T]) -> _T:
        """See ``LogCalls``."""
        return await self._asked(lambda: rule, self._cast.loop.now)

    async def wait(self, follower: Follower, timeout_s: float) -> bool:
        """See ``LogCalls``."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        while self._cast.server.log.tail <= follower.through:
            if loop.time() >= until_s:
                return False
            await asyncio.sleep(_LOOK_S)
        return True

    def close(self) -> None:
        """See ``LogCalls``."""

    async def _asked(self, rule: Callable[[], Rule[_T]], until: float) -> _T:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(found: Any, error: LogError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(found)
            else:
                future.set_exception(error)

        first = rule()
        point = _POINTS.get(_name_of(first), Point.FOLLOWING)

        def make() -> Rule[_T]:
            nonlocal first
            made, first = first, None  # type: ignore[assignment]
            return made if made is not None else rule()

        Course(self._cast, self._actor, make, point, done, until=until).go()
        return await future  # type: ignore[no-any-return]


def _name_of(rule: Any) -> str:
    """Return the name of a rule, also of one that could be run elsewhere."""
    return str(getattr(rule, "__name__", "") or getattr(rule, "name", ""))
