"""The operator of a simulated consumer, who lets shards go on that have stopped."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from chaos.sim.consumer.cast import ConsumerCast
from chaos.sim.consumer.names import CONSUMER, TAGS
from chaos.sim.consumer.process import ConsumerProcess
from chaos.sim.faults import Point
from chaos.sim.log.course import Course
from chaos.sim.loop import Process
from sharedlog._core.consumer.members import resume
from sharedlog._core.consumer.names import hold_name, producer_name
from sharedlog._core.errors import LogError, StoreWentBack
from sharedlog._core.holds import forget as forget_holds
from sharedlog._core.named import forget as forget_name
from sharedlog._core.steps import Rule

__all__ = ["Operator"]

_EVERY_S = 1.0
# Of what is on its way nothing comes later.
_GONE_S = 2.5


class Operator:
    """Never dies."""

    def __init__(self, cast: ConsumerCast, consumers: Sequence[ConsumerProcess]) -> None:
        self._cast = cast
        self._consumers = consumers
        self.courses: dict[Course, None] = {}
        self.process = Process(cast.loop, "operator")
        # All processes are stopped, and what the log knows of the consumer is being forgotten.
        self._forgets = False
        cast.told = self.look_at

    def start(self) -> None:
        """Look again and again."""
        self.process.after(_EVERY_S, self._round)

    def crash(self, seconds: float) -> None:
        """Never happens."""

    def look_at(self, error: LogError) -> None:
        """See what a process ended with: a store that went back is to go on as it is."""
        cast = self._cast
        if isinstance(error, StoreWentBack) and not self._forgets:
            cast.trace("operator", "stops all, and has the log forget what it knew")
            self._forgets = True
            for each in self._consumers:
                each.held = True
                each.kill()
            self.process.after(_GONE_S, self._forget)

    def _forget(self) -> None:
        names = [producer_name(CONSUMER, tag) for tag in TAGS]

        def rule() -> Rule[None]:
            yield from forget_holds(hold_name(CONSUMER))
            for name in names:
                yield from forget_name(name)

        Course(self._cast, self, rule, Point.OPERATOR, self._forgotten).go()

    def _forgotten(self, _: object, error: LogError | None) -> None:
        self._forgets = False
        if error is not None:
            self._cast.oracle.broken("refused", f"operator: {error!r}")
        self._cast.forgot = True
        for each in self._consumers:
            each.held = False
            each.start()

    def _round(self) -> None:
        if not self._cast.over:
            rule = partial(resume, CONSUMER)
            Course(self._cast, self, rule, Point.OPERATOR, self._resumed).go()

    def _resumed(self, tags: list[str] | None, error: LogError | None) -> None:
        if error is not None:
            self._cast.oracle.broken("refused", f"operator: {error!r}")
        if tags:
            self._cast.trace("operator", f"lets {tags} go on")
        self.start()
