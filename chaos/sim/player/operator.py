"""Model of the world: the operator of a player, who sees to targets that have stopped."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from chaos.sim.faults import Fault, Point
from chaos.sim.log.course import Course
from chaos.sim.loop import Process
from chaos.sim.player.cast import PLAYER, PlayerCast
from sharedlog._core.errors import LogError
from sharedlog._core.player.rows import Order, SkipOne, TargetState, Wish, all_told, wish
from sharedlog._core.player.stores import adopt
from sharedlog._core.position import Position
from sharedlog._core.whole import read_trimmed

__all__ = ["Operator"]

_LOOKS_S = 0.7
# So often a message may fail before an operator skips it.
_TIMES = 7


class Operator:
    """One process, which never dies."""

    def __init__(self, cast: PlayerCast) -> None:
        self._cast = cast
        self.name = "operator"
        self.courses: dict[Course, None] = {}
        self.process = Process(cast.loop, self.name)
        # Where an index of a number begins, by target and number.
        self.firsts: dict[tuple[str, int], int] = {}
        # What each was seen to have stopped for.
        self.seen: set[tuple[str, str]] = set()
        # What it had skipped: by target, the number of the index, substream and position.
        self.skips: set[tuple[str, int, str, str]] = set()
        self._busy = False

    def start(self) -> None:
        """It looks again and again."""
        if not self._busy:
            self._busy = True
            self.process.after(_LOOKS_S, self._look)

    def crash(self, seconds: float) -> None:
        """Another one would do the same."""

    def pause(self, target: str, seconds: float) -> None:
        """Pause a target for a while."""
        self._cast.coverage.hit(Fault.PAUSE, Point.IDLE)

        def paused() -> None:
            self.process.after(seconds, self._resume, target)

        order = self._order("a while")
        self._wish(target, lambda known: known._replace(paused=order), paused)

    def replay(self, target: str, *, done: Callable[[], object] = lambda: None) -> None:
        """Have a target take everything anew that is whole."""

        def found(trimmed: Any, error: LogError | None) -> None:
            if trimmed is None:
                self._ended(None, error)
                return

            def change(known: Wish) -> Wish:
                # ``known`` is as the log has it: run again after a lost reply it is one more.
                number = known.number + 1
                self.firsts[target, number] = trimmed.whole
                return known._replace(number=number, first=trimmed.whole, resumed=known.resumed + 1)

            self._wish(target, change, done)

        Course(self._cast, self, read_trimmed, Point.TELLING, found).go()

    def _skip(self, target: str, order: SkipOne) -> None:
        self.skips.add((target, order.number, order.tag, str(order.place)))

        def change(known: Wish) -> Wish:
            skips = tuple(each for each in known.skips if each != order)
            return known._replace(skips=(*skips, order), resumed=known.resumed + 1)

        self._wish(target, change)

    def _resume(self, target: str) -> None:
        self._wish(target, lambda known: known._replace(paused=None, resumed=known.resumed + 1))

    def _look(self) -> None:
        def found(told: dict[str, TargetState] | None, error: LogError | None) -> None:
            if told is None:
                self._ended(None, error)
            else:
                for name, each in sorted(told.items()):
                    if each.state == "stopped":
                        self._see_to(name, each)
                    else:
                        self._give_up(name, each)
            self.process.after(_LOOKS_S, self._look)

        if not self._cast.over:
            Course(self._cast, self, partial(all_told, PLAYER), Point.TELLING, found).go()

    def _see_to(self, name: str, told: TargetState) -> None:
        """Do what docs/reference/player.md says of a target that has stopped."""
        self.seen.add((name, told.why))
        self._cast.trace(self.name, f"{name} has stopped: {told.why} {told.details}")
        if told.number != max(0, self._number(name)):
            # Of an index that is over.
            return
        match told.why:
            case "FAILED" | "REFUSED" | "UNKNOWN" if told.about:
                place, order = Position.parse(told.about), self._order(told.why)
                self._skip(name, SkipOne(told.about_tag, place, order, told.number))
            case "WIPED" if self._adopts(name, told):
                rule = partial(
                    adopt, PLAYER, name, told.number, told.store, self._order("restored")
                )
                Course(
                    self._cast, self, rule, Point.TELLING, lambda _, e: self._adopted(name, e)
                ).go()
            case _:
                self.replay(name)

    def _give_up(self, name: str, told: TargetState) -> None:
        """Skip what has failed again and again, if the player retries without end."""
        for tag, (place, count) in told.attempts.items():
            if count >= _TIMES:
                order = SkipOne(tag, Position.parse(place), self._order("it fails"), told.number)
                self._skip(name, order)
                return

    def _adopts(self, name: str, told: TargetState) -> bool:
        """Whether another store is the target's own, put back with its index; it is asked once."""
        mine = (name, told.number, told.store)
        if told.store not in self._cast.adoptable or mine in self._cast.adopted:
            return False
        self._cast.adopted.add(mine)
        return True

    def _number(self, name: str) -> int:
        return max([number for target, number in self.firsts if target == name], default=0)

    def _adopted(self, name: str, error: LogError | None) -> None:
        self._ended(None, error)
        self._resume(name)

    def _order(self, why: str) -> Order:
        return Order(self.name, why, int(self.process.wall_clock() * 1e6))

    def _wish(
        self,
        target: str,
        change: Callable[[Wish], Wish],
        done: Callable[[], object] = lambda: None,
    ) -> None:
        def ended(found: Wish | None, error: LogError | None) -> None:
            self._ended(found, error)
            done()

        rule = partial(wish, PLAYER, target, change)
        Course(self._cast, self, rule, Point.TELLING, ended).go()

    def _ended(self, _: object, error: LogError | None) -> None:
        if error is not None:
            self._cast.oracle.broken("refused", f"{self.name}: {error!r}")
