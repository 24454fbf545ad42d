"""Driver of the product's source and plans: a streaming query's runs over one checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from chaos.sim.faults import Fault, Point
from chaos.sim.log.cast import Cast
from chaos.sim.log.course import Course, count
from chaos.sim.query.batch import Batch
from chaos.sim.query.checkpoint import Checkpoint
from chaos.sim.query.parts import IN, of_range, tags_of
from sharedlog._core.errors import (
    CheckpointWentBack,
    Fenced,
    HoldMoved,
    LogError,
    LogUnavailable,
    TrimmedLog,
)
from sharedlog._core.holds import BEGINNING, Hold, move, take
from sharedlog._core.position import Position
from sharedlog._core.query.closing import Closed
from sharedlog._core.query.state import Ticket, draw_plan
from sharedlog._core.ranges import Range, last_offset
from sharedlog._core.reading import place_at
from sharedlog._core.steps import Rule
from sharedlog._core.streams import substream_number
from sharedlog.spark._offsets import Offset, first_offset, ranges_of

__all__ = ["Driver"]

_TAGS = tags_of(IN)
_POLL_S, _PACE_S = 0.8, 0.4
_RETENTION_US = 3_600_000_000


class Driver:
    """Plans batch after batch. ``within``: by ``foreachBatch``, which skips some."""

    def __init__(
        self, cast: Cast, name: str, incarnation: str, checkpoint: Checkpoint, *, within: bool
    ) -> None:
        self._cast = cast
        self.name = name
        self.checkpoint = checkpoint
        self.within = within
        self._incarnation = incarnation
        self.courses: dict[Course, None] = {}
        self.process = cast.life(name)
        self.process.alive = False
        self.batch: Batch | None = None
        # It is one of several copies; it never goes on.
        self.copied = self.over = False
        # Another copy goes on, for now.
        self._rests = False
        self._runs = self._refused = 0
        self._held: dict[str, Hold] = {}
        # Through where there was nothing more to read.
        self.read = 0

    def start(self) -> None:
        """Begin a run."""
        if self.process.alive or self._cast.over or self.over or self._rests:
            return
        self._runs += 1
        self.process = self._cast.life(f"{self.name}{self.checkpoint.place}#{self._runs}")
        self.courses.clear()
        self._held = {}
        if self.checkpoint.offsets:
            self._go_on()
        else:
            rule = partial(first_offset, _TAGS, self._incarnation, BEGINNING)
            self._course(Point.FOLLOWING, rule, self._begun)

    def crash(self, seconds: float) -> None:
        """Die; what its tasks are about goes on for a while."""
        if self.process.alive:
            count(self._cast, self, Fault.CRASH)
            self._die()
            self._cast.loop.after(seconds, self.start)

    def end(self) -> None:
        """Die, and never come back."""
        self.over = True
        self._die()

    def rest(self, *, rests: bool) -> None:
        """Die, and do not come back while it rests."""
        self._rests = rests
        if rests and self.process.alive:
            self._die()

    def skips(self, batch: int) -> bool:
        """Whether its function appends nothing of a batch."""
        return self.within and batch % 4 == 1

    def caught_up(self, tail: int) -> bool:
        """Whether everything is read, written and noted."""
        return (
            self.process.alive
            and self.batch is None
            and self.read >= tail
            and self.checkpoint.noted == self.checkpoint.planned
        )

    def _die(self) -> None:
        self._cast.trace(self.process.name, "dies")
        self.process.kill()
        if self.batch is not None:
            self.batch.abandon()
            self.batch = None

    # -- what is next ----------------------------------------------------------------------

    def _begun(self, offset: Offset | None, error: LogError | None) -> None:
        if offset is None:
            self._failed(error)
            return
        self._hold(offset, partial(self._first, offset))

    def _first(self, offset: Offset) -> None:
        self.checkpoint.offsets.append(offset)
        self._go_on()

    def _go_on(self) -> None:
        checkpoint = self.checkpoint
        if checkpoint.planned > checkpoint.noted:
            self._plan()
        else:
            most = self._cast.random.choice((None, 5, 30))
            after = checkpoint.offsets[-1].lsn
            rule = partial(last_offset, IN, after, most)
            asked = partial(self._found, after, self._cast.server.log.tail)
            self._course(Point.FOLLOWING, rule, asked)

    def _found(self, after: int, tail: int, lsn: int | None, error: LogError | None) -> None:
        """Go on to what is there; ``tail``: of the log when it was asked."""
        if lsn is None:
            self._failed(error)
        elif lsn == after:
            self.read = tail
            self.process.after(_POLL_S, self._go_on)
        else:
            self.read = 0
            before = self.checkpoint.offsets[-1]
            self.checkpoint.offsets.append(before._replace(lsn=lsn))
            # Spark says now that the batch before is done.
            self._hold(before, self._plan)

    def _hold(self, at: Offset, then: Callable[[], None]) -> None:
        def rule() -> Rule[dict[str, Hold]]:
            now_us = int(self.process.wall_clock() * 1e6)
            starts = dict.fromkeys(_TAGS, at.lsn + 1)
            held = self._held or (
                yield from take(
                    f"spark.{self.name}", starts, self._incarnation, now_us, _RETENTION_US
                )
            )
            found = (yield from place_at(at.lsn, self._incarnation)) if at.lsn else None
            behind = [tag for tag, hold in held.items() if at.lsn > hold.place[0]]
            if found is None or not behind:
                return held
            places: dict[str, Position | None] = {
                tag: found._replace(substream=substream_number(tag)) for tag in behind
            }
            return (yield from move(held, places, now_us))

        def done(held: dict[str, Hold] | None, error: LogError | None) -> None:
            if held is None:
                self._failed(error)
            else:
                self._held = held
                then()

        self._course(Point.HOLDING_ON, rule, done)

    # -- a batch ---------------------------------------------------------------------------

    def _plan(self) -> None:
        if self.skips(self.checkpoint.planned):
            self._note()
        else:
            self._course(Point.PLANNING, draw_plan, self._planned)

    def _planned(self, plan: int | None, error: LogError | None) -> None:
        if plan is None:
            self._failed(error)
            return
        begin, end = self.checkpoint.offsets[-2:]
        entries = self._cast.random.choice((8, 40, 1000))
        rule = partial(ranges_of, _TAGS, begin, end, entries)
        self._course(Point.FOLLOWING, rule, partial(self._split, plan))

    def _split(self, plan: int, ranges: list[Range] | None, error: LogError | None) -> None:
        if ranges is None:
            self._failed(error)
            return
        mark = f"{self.name} ".encode()
        checkpoint = self.checkpoint
        ticket = Ticket(
            self.name,
            checkpoint.identity,
            self.process.name,
            plan,
            checkpoint.planned,
            gaps=self.within,
            checkpoint="" if self.within else checkpoint.place,
        )
        parts = [of_range(each, self._incarnation, lambda row: mark + row) for each in ranges]
        if self._cast.loop.tracing:
            self._cast.trace(self.process.name, f"plans {ticket}, {len(parts)} tasks")
        self.batch = Batch(self._cast, self, ticket, parts, self._closed)
        self.batch.start()

    def _closed(self, closed: Closed | None, error: LogError | None) -> None:
        self.batch = None
        if closed is None:
            self._failed(error)
        else:
            # Spark notes it a moment later.
            self.process.after(0.02 * self._cast.random.random(), self._note)

    def _note(self) -> None:
        self.checkpoint.noted = self.checkpoint.planned
        self.process.after(_PACE_S, self._go_on)

    def _failed(self, error: LogError | None) -> None:
        """End this run; None: its tasks died. An operator begins another one, or does not."""
        self._cast.trace(self.process.name, f"fails: {error!r}")
        of_copies = CheckpointWentBack | TrimmedLog | HoldMoved
        if error is not None and not isinstance(error, Fenced | LogUnavailable):
            if not (self.copied and isinstance(error, of_copies)):
                self._cast.oracle.broken("refused", f"{self.process.name}: {error!r}")
            self.over = True
        self._die()
        if isinstance(error, Fenced) and self.copied:
            # An operator with copies gives one up.
            self._refused += 1
            self.over = self._refused > 2 and not self._cast.healed
        self._cast.loop.after(0.3 + self._cast.random.random(), self.start)

    def _course(self, point: Point, make: Callable[[], Any], done: Callable[..., None]) -> None:
        Course(self._cast, self, make, point, done).go()
