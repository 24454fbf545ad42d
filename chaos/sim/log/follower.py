"""Driver of the product's following and holds: followers of some substreams (§12, §13)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from chaos.sim.faults import Fault, Point
from chaos.sim.log.cast import Cast
from chaos.sim.log.course import Course, count
from chaos.sim.log.onlooker import RETENTION_S
from chaos.sim.log.series import Begins, Delivered, Life, judge_series
from chaos.sim.loop import Process
from sharedlog._core.errors import LogError, LogForked, TrimmedLog
from sharedlog._core.following import Follower as Rules
from sharedlog._core.holds import forget
from sharedlog._core.incarnation import read_incarnation
from sharedlog._core.position import Position
from sharedlog._core.reading import Committed

__all__ = ["Follower"]

_POLL_S = 0.25
# How often one that has read everything drops its hold, and takes another one.
_ANEW = 0.04


class Follower:
    """Reads by rules of the product. ``held``: the log knows what it has done; else it does."""

    def __init__(self, cast: Cast, index: int, tags: Sequence[str], *, held: bool) -> None:
        self._cast = cast
        self.tags = tags
        self.name = f"follower{index}"
        self._held = held
        dice = cast.random
        # How much it reads ahead, bytes.
        self._ahead = dice.choice((1, 2000, 1 << 20))
        # How often it stops within a batch, and forgets the rest.
        self._forgets = dice.choice((0.0, 0.3))
        self.courses: dict[Course, None] = {}
        self.process = Process(cast.loop, self.name)
        self.process.alive = False
        # Durable, together; of one that is held only for the judge.
        self.lives: list[Life] = []
        self._position: Position | None = None
        # Of the first life of these; and up to where a log was read that this one is a copy of.
        self._first = Begins.WHOLE
        self._most = 0
        # What it read by holds that were forgotten since.
        self._past: list[tuple[list[Life], int]] = []
        self._names = 0
        # Its hold must be forgotten, or is; durable.
        self._leaving = False
        self.forked = False
        # It may have read what a log that was restored does not have.
        self._doubted = False
        self.through = 0
        self._rules: Rules

    @property
    def _hold(self) -> str | None:
        return f"{self.name}.{self._names}" if self._held else None

    def start(self) -> None:
        """Begin a life where the last one had come to."""
        if self.process.alive or self._cast.over or self.forked:
            return
        self.process = self._cast.life(self.name)
        self.courses.clear()
        if self._leaving:
            self._begin_anew()
        else:
            self._open()

    def crash(self, seconds: float) -> None:
        """Die; what was read and not kept is read again."""
        if self.process.alive:
            count(self._cast, self, Fault.CRASH)
            self.process.kill()
            self._cast.loop.after(seconds, self.start)

    def judge(self, there: list[Delivered], *, ended: bool) -> None:
        """Have what it read held against what there is."""
        if self.forked:
            return
        for lives, most in self._past:
            self._tell(judge_series(lives, there, most, ended=False)[1])
        self._past = []
        self._most, problems = judge_series(self.lives, there, self._most, ended=ended)
        self._tell(problems)

    def _tell(self, problems: list[str]) -> None:
        for each in problems:
            self._cast.oracle.broken("read", f"{self.name} read {each}")

    def restored(self, tail: int) -> None:
        """Read another log, a copy through this LSN; what was read is judged."""
        last = self.lives[-1].read[-1][1] if self.lives and self.lives[-1].read else 0
        if self._held:
            # Where it goes on, the copy says.
            self.lives, self._first = [], Begins.EITHER
        else:
            self._most = 0
            if not last:
                # Nothing says where it goes on.
                self.lives = []
        self._doubted = self._doubted or last > tail

    def _begin_anew(self) -> None:
        """Have an operator forget the hold, and follow by another one."""

        def done(_: object, error: LogError | None) -> None:
            if error is not None:
                self._broken(error)
                return
            self._leaving = False
            self._names += 1
            self._past.append((self.lives, self._most))
            self.lives, self._first, self._most = [], Begins.WHOLE, 0
            self._open()

        self._leaving = True
        old = str(self._hold)
        Course(self._cast, self, partial(forget, old), Point.HOLDING_ON, done).go()

    def _open(self) -> None:
        Course(self._cast, self, read_incarnation, Point.FOLLOWING, self._opened).go()

    def _opened(self, incarnation: str | None, error: LogError | None) -> None:
        if incarnation is None:
            self._refused(error)
            return
        self._begin(incarnation)

    def _begin(self, incarnation: str) -> None:
        self._incarnation = incarnation
        self._rules = Rules(
            self.tags,
            incarnation,
            self._position,
            name=self._hold,
            retention_us=int(RETENTION_S * 1e6),
            ahead_bytes=self._ahead,
        )
        if not self.lives or self._held:
            # One that read nothing may have had no hold yet.
            held = any(life.read for life in self.lives)
            self.lives.append(Life(Begins.HOLD if held else self._first))
        self._find()

    def _find(self) -> None:
        """Find where to begin, and take the holds; nothing is lost from then on."""
        rules = self._rules

        def done(_: object, error: LogError | None) -> None:
            first = self.lives[-1].begins is not Begins.HOLD
            if self._held and first and isinstance(error, TrimmedLog):
                # What is whole is looked for, and was trimmed meanwhile.
                self.process.after(0.001, self._find)
            elif error is not None:
                self._refused(error)
            else:
                self._poll()

        make = lambda: rules.begin(self._now_us())  # noqa: E731 - made anew for each try
        Course(self._cast, self, make, Point.FOLLOWING, done).go()

    def _now_us(self) -> int:
        return int(self.process.wall_clock() * 1e6)

    def _poll(self) -> None:
        rules = self._rules
        make = lambda: rules.read(self._now_us())  # noqa: E731 - made anew for each try
        Course(self._cast, self, make, Point.FOLLOWING, self._took).go()

    def _took(self, found: list[Committed] | None, error: LogError | None) -> None:
        if found is None:
            self._refused(error)
            return
        life = self.lives[-1]
        if not life.read:
            life.whole = self._cast.server.seen.whole
        again = len(found) > 1 and self._cast.random.random() < self._forgets
        messages = found[: self._cast.random.randrange(1, len(found))] if again else found
        for message in messages:
            life.read.append((message.envelope, message.position.lsn))
        if messages and self._cast.loop.tracing:
            text = ", ".join(each.envelope.decode() for each in messages)
            self._cast.trace(self.name, f"{', '.join(self.tags)}: {text}")
        self.through = self._rules.through if not messages else 0
        if self._held:
            self._move(messages, again=again)
            return
        if messages:
            self._position = messages[-1].position
        self._go_on(messages, again=again)

    def _go_on(self, messages: list[Committed], *, again: bool) -> None:
        if again:
            self.process.after(0.001, self._begin, self._incarnation)
        else:
            self.process.after(0.001 if messages else _POLL_S, self._poll)

    def _move(self, messages: list[Committed], *, again: bool) -> None:
        """Have the log know what is done; now and then where there was nothing to do, too."""
        rules, life = self._rules, self.lives[-1]
        if not messages:
            dice = self._cast.random.random()
            if dice < _ANEW and not self._cast.healed:
                self._begin_anew()
                return
            if dice < 0.7:
                self._go_on(messages, again=again)
                return
        for message in messages:
            rules.done(message.position)
        count = len(life.read)

        def make() -> Any:
            return rules.move(self._now_us(), idle=not messages)

        def done(_: object, error: LogError | None) -> None:
            if error is not None:
                self._refused(error)
                return
            life.confirmed = count
            self._go_on(messages, again=again)

        Course(self._cast, self, make, Point.HOLDING_ON, done).go()

    def _refused(self, error: LogError | None) -> None:
        forked = isinstance(error, LogForked) or (self._doubted and isinstance(error, TrimmedLog))
        if forked and self._cast.oracle.restored:
            self._cast.trace(self.name, f"stops: {error}")
            self.forked = True
        elif isinstance(error, TrimmedLog) and not self._held and self._lost_something():
            self._cast.trace(self.name, f"begins anew: {error}")
            self._position = None
            self.lives.append(Life(Begins.WHOLE))
            self.process.after(0.001, self._open)
        else:
            self._broken(error)

    def _lost_something(self) -> bool:
        """Whether what it would read next is trimmed, or what it reads from."""
        position = self._position
        return position is None or position.lsn < self._cast.server.seen.whole

    def _broken(self, error: LogError | None) -> None:
        self._cast.oracle.broken("refused", f"{self.name}: {error!r}")
