"""Model of the world: an application that appends in transactions of its own (§12).

It does one job after another: a row of its own and messages, in one transaction, which it commits
or, of some jobs, rolls back. Where it does not know what became of a job it looks for the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

from chaos.sim.faults import Fault, Point
from chaos.sim.log.cast import Cast
from chaos.sim.log.course import Course
from chaos.sim.log.oracle import Delivered, Outcome
from chaos.sim.log.session import Session
from sharedlog._core.errors import Fenced, LogError, LogUnavailable
from sharedlog._core.fences import Fence, fence_key, number_of, raise_fence
from sharedlog._core.incarnation import read_incarnation
from sharedlog._core.producers import NewMessage
from sharedlog._core.steps import Lsns
from sharedlog._core.within import Within

__all__ = ["Application"]

_JOBS = 16
_PAUSE_S = 1.2
# Before the numbers of what they append; relays have those below.
_FIRST_CALL = 1_000_000


class _Job(NamedTuple):
    number: int
    row: str
    call: int
    messages: list[NewMessage]
    commits: bool


class _Found(NamedTuple):
    """What it looks for: its rows that are there, and under what it appends."""

    incarnation: str
    fence: Fence
    rows: frozenset[str]


class Application:
    """Through its lives."""

    def __init__(self, cast: Cast, index: int) -> None:
        self._cast = cast
        self._index = index
        self.name = f"application{index}"
        self.courses: dict[Course, None] = {}
        self.process = cast.life(self.name)
        self.process.alive = False
        # Of its own: where there is none, the others' fall as they did.
        self._dice = Random(f"log {self.name} {cast.seed}")  # noqa: S311 - repeatable
        self._jobs = [self._job(number) for number in range(1, _JOBS + 1)]
        self._rolled_back: set[int] = set()
        self._begun: set[int] = set()
        # Under which number of its fence each job was committed.
        self._under: dict[int, int] = {}
        self._session: Session | None = None
        self._done = False

    def start(self) -> None:
        """Begin a life, unless it lives."""
        if self.process.alive or self._cast.over:
            return
        self.process = self._cast.life(self.name)
        self._done = False
        self._look()

    def crash(self, seconds: float) -> None:
        """Die; its session ends with it."""
        if self.process.alive:
            under_way = self._session is not None
            self._cast.coverage.hit(Fault.CRASH, Point.APPEND_IN if under_way else Point.IDLE)
            self.process.kill()
            self._close()
            self._cast.loop.after(seconds, self.start)

    def idle(self) -> bool:
        """Whether all jobs are done."""
        return self.process.alive and self._done

    def judge(
        self,
        found: Mapping[str, list[Delivered]],
        raised: Mapping[str, Sequence[tuple[int, int]]],
    ) -> None:
        """Its rows are there with what was appended, and nothing is under a number that was over.

        What of each job has to be there the oracle judges.
        """
        lsns = {envelope: lsn for each in found.values() for envelope, lsn in each}
        for job in self._jobs:
            where = lsns.get(job.messages[0].envelope)
            if (where is not None) != (job.row in self._cast.server.log.keys):
                self._cast.oracle.broken("torn", f"{job.row} without its messages, or they alone")
            over = [
                tail
                for number, tail in raised.get(self.name, ())
                if number > self._under.get(job.number, 0)
            ]
            if where is not None and over and where > min(over):
                self._cast.oracle.broken("fenced", f"{job.row} is at LSN {where}, after its fence")

    def _job(self, number: int) -> _Job:
        call = _FIRST_CALL * (1 + self._index) + number
        messages = self._cast.messages(call, 0, 1 + self._dice.randrange(2))
        row = f"row/{self.name}/{number:03}"
        return _Job(number, row, call, messages, self._dice.random() < 0.75)

    def _look(self) -> None:
        """Find in the database what to do."""
        self._session = session = Session(self._cast, self._dice, self.process)
        session.ask(self._read, self._found)

    def _read(self) -> _Found:
        log = self._cast.server.log
        rule = read_incarnation()
        try:
            step = next(rule)
            while True:
                step = rule.send(self._cast.server.at_once(self.process, step, Point.APPEND_IN))
        except StopIteration as stop:
            incarnation = stop.value
        fence = Fence(self.name, number_of(log.keys.get(fence_key(self.name))))
        return _Found(incarnation, fence, frozenset(log.keys))

    def _found(self, found: _Found | None, error: LogError | None) -> None:
        self._close()
        if found is None:
            self._again(error)
            return
        for job in self._jobs:
            if job.row in found.rows:
                self._ended(job, Outcome.ALL)
            elif job.number not in self._rolled_back:
                self.process.after(
                    _PAUSE_S * self._dice.random(), self._begin, job, found.incarnation, found.fence
                )
                return
        self._done = True

    def _begin(self, job: _Job, incarnation: str, fence: Fence) -> None:
        """Do a job, in a transaction of its own."""
        self._ended(job, Outcome.ANY)
        self._session = session = Session(self._cast, self._dice, self.process)
        within = Within(incarnation, tuple(job.messages), fence)
        done = partial(self._appended, job, session, fence)
        session.ask(partial(session.append, job.row, within), done, writes=True)
        dice = self._dice
        if not self._cast.healed:
            if dice.random() < 0.3:
                self._cast.loop.after(0.012 * dice.random(), self.crash, 0.3 * dice.random())
            if dice.random() < 0.2:
                # Another one is to append from now on, which is the next life of this.
                self._cast.loop.after(0.012 * dice.random(), self._raise_fence)

    def _appended(
        self, job: _Job, session: Session, fence: Fence, new: bool | None, error: LogError | None
    ) -> None:
        if new is None or not new:
            self._close()
            self._again(error)
            return
        later = 0.006 * self._dice.random()
        if job.commits:
            commit = partial(self._commit, job, session, fence)
            self.process.after(later, session.ask, commit, partial(self._committed, job))
        else:
            self.process.after(later, self._roll_back, job, session)

    def _commit(self, job: _Job, session: Session, fence: Fence) -> Lsns:
        lsns = session.commit()
        self._under[job.number] = fence.number
        return lsns

    def _committed(self, job: _Job, lsns: Lsns | None, error: LogError | None) -> None:
        self._close()
        if lsns is not None:
            self._cast.trace(self.name, f"{job.row} is committed, with LSN {lsns.last}")
            self._ended(job, Outcome.ALL, lsns.last)
        self._again(error)

    def _roll_back(self, job: _Job, session: Session) -> None:
        """Whether the server hears of it or not: nothing of it is there."""
        self._rolled_back.add(job.number)
        self._ended(job, Outcome.NONE)
        session.ask(session.roll_back, lambda *_: self._again(None))

    def _again(self, error: LogError | None) -> None:
        if error is not None and not isinstance(error, Fenced | LogUnavailable):
            self._cast.oracle.broken("refused", f"{self.name}: {error!r}")
            return
        self.process.after(0.05 * self._dice.random(), self._look)

    def _ended(self, job: _Job, outcome: Outcome, lsn: int | None = None) -> None:
        if job.number not in self._begun:
            self._begun.add(job.number)
            self._cast.oracle.begin(job.call, _FIRST_CALL + self._index, job.messages)
        self._cast.oracle.ended(job.call, outcome, lsn)

    def _raise_fence(self) -> None:
        """Raise it, once no writer has the log locked."""
        server = self._cast.server
        if server.locked:
            server.behind.append(self._raise_fence)
        else:
            server.carry_out(raise_fence(self.name))

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
