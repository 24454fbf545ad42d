"""Model of the world: the operator of a consumer, who lets stopped shards go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from chaos.sim.consumer.cast import ConsumerCast
from chaos.sim.consumer.names import CONSUMER, TAGS
from chaos.sim.consumer.process import ConsumerProcess
from chaos.sim.consumer.redis_store import RedisDatabase
from chaos.sim.faults import Point
from chaos.sim.log.course import Course
from chaos.sim.log.onlooker import Asked
from chaos.sim.loop import Process
from sharedlog._core.commit import Commit
from sharedlog._core.consumer.members import resume, stopped_key
from sharedlog._core.consumer.names import hold_name, producer_name
from sharedlog._core.consumer.operating import reset
from sharedlog._core.errors import InvalidRequest, LogError, StoreWentBack
from sharedlog._core.holds import BEGINNING, Start
from sharedlog._core.holds import forget as forget_holds
from sharedlog._core.incarnation import read_incarnation
from sharedlog._core.named import forget as forget_name
from sharedlog._core.steps import Rule

__all__ = ["Operator"]

_EVERY_S = 1.0
# Of what is on its way nothing comes later.
_GONE_S = 2.5
_RESETS_S = 6.0
_RETENTION_US = 10**15


class Operator:
    """Never dies."""

    def __init__(self, cast: ConsumerCast, consumers: Sequence[ConsumerProcess]) -> None:
        self._cast = cast
        self._consumers = consumers
        self.courses: dict[Course, None] = {}
        self.process = Process(cast.loop, "operator")
        # All processes are stopped, and what the log knows of the consumer is being forgotten.
        self._forgets = self._resets = False
        cast.told = self.look_at
        cast.server.watchers.append(self._see)

    def start(self) -> None:
        """Look again and again."""
        self.process.after(_EVERY_S, self._round)
        if self._cast.setup.resets and not self._resets:
            self._resets = True
            self.process.after(_RESETS_S, self._stop_all, self._clear)

    def crash(self, seconds: float) -> None:
        """Never happens."""

    def look_at(self, error: LogError) -> None:
        """See what a process ended with: a store that went back must go on unchanged."""
        if isinstance(error, StoreWentBack) and not self._forgets:
            self._forgets = True
            self._stop_all(self._forget)

    def _stop_all(self, then: Callable[[], None]) -> None:
        self._cast.trace("operator", "stops all")
        for each in self._consumers:
            each.held = True
            each.kill()
        self.process.after(_GONE_S, then)

    def _clear(self) -> None:
        """Have all be done again, with other answers, in tables that have nothing."""
        cast = self._cast
        cast.trace("operator", "has all be done again")
        cast.store_wire.cut()
        cast.database.clear()
        cast.service.wire.cut()
        cast.service.begin_anew()
        cast.heard.clear()
        cast.redone = True
        self._reset()

    def _reset(self) -> None:
        cast = self._cast

        def rule() -> Rule[int]:
            incarnation = yield from read_incarnation()
            starts: dict[str, Start] = dict.fromkeys(TAGS, BEGINNING)
            now_us = int(cast.loop.now * 1e6)
            return (yield from reset(CONSUMER, starts, incarnation, now_us, _RETENTION_US))

        Course(cast, self, rule, Point.OPERATOR, self._was_reset).go()

    def _was_reset(self, epoch: object, error: LogError | None) -> None:
        if isinstance(error, InvalidRequest):
            # A copy of what a process said before it was stopped came late: it seems to be there.
            self.process.after(_EVERY_S, self._reset)
        else:
            self._go_on(epoch, error)

    def _see(self, asked: Asked, commit: Commit) -> None:
        """Mend what stopped a shard when the shard resumes: a part of a transaction."""
        del asked
        database = self._cast.database
        if not isinstance(database, RedisDatabase):
            return
        for put in commit.puts:
            for tag in TAGS:
                if put.key == stopped_key(CONSUMER, tag) and put.value == b"":
                    self._cast.trace("operator", f"mends {tag}")
                    database.mend(tag)

    def _forget(self) -> None:
        names = [producer_name(CONSUMER, tag) for tag in TAGS]

        def rule() -> Rule[None]:
            yield from forget_holds(hold_name(CONSUMER))
            for name in names:
                yield from forget_name(name)

        Course(self._cast, self, rule, Point.OPERATOR, self._forgotten).go()

    def _forgotten(self, _: object, error: LogError | None) -> None:
        self._forgets = False
        self._cast.forgot = True
        self._go_on(_, error)

    def _go_on(self, _: object, error: LogError | None) -> None:
        if error is not None:
            self._cast.oracle.broken("refused", f"operator: {error!r}")
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
