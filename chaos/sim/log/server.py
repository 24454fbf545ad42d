"""Model of the world: a log's server, whose requests are lost, late or copied, and its backups."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from chaos.sim.faults import Coverage, Fault, Point
from chaos.sim.log.onlooker import Asked, Onlooker
from chaos.sim.loop import Loop, Process
from sharedlog._core.commit import Commit, Refused
from sharedlog._core.errors import CorruptLog, LogError, LogUnavailable, TrimmedLog
from sharedlog._core.incarnation import new_log
from sharedlog._core.producers import ProducerId, identity_key
from sharedlog._core.restoring import restore
from sharedlog._core.steps import Ends, Get, Lsns, Read, Remove, Rule, Scan, Step, Try
from sharedlog._engines.driving import do
from sharedlog._engines.memory import MemoryEngine, MemoryLog

__all__ = ["Backup", "LogServer"]

_TIMEOUT_S = 0.3
_LATEST_S = 1.5


class Backup(NamedTuple):
    """A copy of a log, and of what was seen of it until then."""

    log: MemoryLog
    seen: Onlooker


class LogServer:
    """One log, in a process that is always there; what goes wrong is on the way to it."""

    def __init__(self, loop: Loop, random: Random, coverage: Coverage) -> None:
        self._loop = loop
        self._random = random
        self._coverage = coverage
        self.log = MemoryLog(new_log(random.randbytes(8).hex()), clock=lambda: loop.now)
        self._engine = MemoryEngine(self.log)
        # Connections of an earlier life lead nowhere.
        self.lives = 0
        # Whether a transaction of an application's has the log locked; who waits for its end.
        self.locked = False
        self.behind: list[Callable[[], object]] = []
        self.lossy_until = self.stalled_until = self.copied_until = 0.0
        self.loss = 0.0
        self.seen = Onlooker()
        # Who else sees each commit that happens.
        self.watchers: list[Callable[[Asked, Commit], None]] = []

    def heal(self) -> None:
        """Answer everything from now on."""
        self.lossy_until = self.stalled_until = self.copied_until = 0.0

    def ask(
        self,
        process: Process,
        step: Step,
        point: Point,
        done: Callable[[Any, Exception | None], None],
    ) -> None:
        """Carry a step out; ``done`` gets the answer, or what is known instead, in ``process``."""
        loop, random = self._loop, self._random.random
        if isinstance(step, Commit):
            # Who asks says when it is.
            step = _at(step, process)
        asked = Asked(process, step, point, loop.now)
        reply = _Reply(process, done)
        delay = 0.0001 + 0.002 * random()
        if self._lost(point):
            return
        lossy = self.lossy_until > loop.now
        if lossy and random() < 0.3:
            # On its way for longer than anybody waits for it.
            delay += _LATEST_S * random()
        loop.after(delay, self._arrive, self.lives, asked, reply)
        if self.copied_until > loop.now and isinstance(step, Commit) and random() < 0.7:
            self._coverage.hit(Fault.DUPLICATE, point)
            later = delay + _LATEST_S * random()
            loop.after(later, self._arrive, self.lives, asked, None)

    def knows(self, producer: ProducerId | None) -> bool:
        """Whether this log granted a producer, and not another one by its id."""
        if producer is None:
            return True
        return self.log.keys.get(identity_key(producer.id), b"").endswith(producer.token)

    def backup(self) -> Backup:
        """Return a copy of the log, and of what was seen of it."""
        log = MemoryLog(self.log.keys, clock=self.log.clock)
        log.ends = dict(self.log.ends)
        log.rows, log.removed = list(self.log.rows), self.log.removed
        log.at_us = self.log.at_us
        for tag, lsns in self.log.tagged.items():
            log.tagged[tag] = list(lsns)
        return Backup(log, self.seen.copy())

    def restore(self, backup: Backup, *, declared: bool) -> None:
        """Go on with a copy; ``declared``: an operator says that it is one."""
        self.lives += 1
        self.locked, self.behind = False, []
        self.log, self.seen = backup
        self._engine = MemoryEngine(self.log)
        if declared:
            self.carry_out(restore(self._random.randbytes(8).hex()))

    def at_once(self, process: Process, step: Step, point: Point) -> Any:
        """Do what a process asks for in this moment: it is with what the log is in."""
        if isinstance(step, Commit):
            step = _at(step, process)
        return self._do(Asked(process, step, point, self._loop.now))

    def unlock(self) -> None:
        """The transaction that had the log locked is over: who waits goes on, in order."""
        self.locked = False
        behind, self.behind = self.behind, []
        for each in behind:
            self._loop.after(0.0, each)

    def carry_out(self, rule: Rule[Any]) -> None:
        """Do what an operator asks for, while no other process has the log open."""
        operator = Process(self._loop, "operator")
        answer: Any = None
        while True:
            try:
                step = rule.send(answer)
            except StopIteration:
                return
            answer = self._do(Asked(operator, step, Point.RETIRING, self._loop.now))

    def _lost(self, point: Point) -> bool:
        if self.lossy_until <= self._loop.now or self._random.random() >= self.loss:
            return False
        self._coverage.hit(Fault.STORE_LOSS, point)
        return True

    def _arrive(self, life: int, asked: Asked, reply: _Reply | None) -> None:
        loop = self._loop
        if life != self.lives:
            return
        if self.stalled_until > loop.now:
            self._coverage.hit(Fault.STORE_STALL, asked.point)
            loop.at(self.stalled_until, None, self._arrive, life, asked, reply)
            return
        if self.locked and isinstance(asked.step, Commit | Remove):
            self.behind.append(lambda: self._arrive(life, asked, reply))
            return
        answer: Any = None
        error: Exception | None = None
        try:
            answer = self._do(asked)
        except (Refused, LogError) as raised:
            error = raised
        if reply is not None and not self._lost(asked.point):
            delay = 0.0001 + 0.002 * self._random.random()
            asked.process.after(delay, self._reply, life, reply, answer, error)

    def _reply(self, life: int, reply: _Reply, answer: Any, error: Exception | None) -> None:
        if life == self.lives:
            reply.end(answer, error)

    def _do(self, asked: Asked) -> Any:
        match asked.step:
            case Commit() as commit:
                before = self.log.tail
                lsns = self._engine.commit(commit)
                self.seen.look(asked, commit, self.log, before, self._loop.now)
                for each in self.watchers:
                    each(asked, commit)
                return lsns
            case Get(keys):
                return self._engine.get(keys)
            case Scan(prefix):
                return self._engine.scan(prefix)
            case Read(after, limit, tag):
                return self._engine.read(after, limit, tag)
            case Try(step):
                try:
                    return do(self._engine, step)
                except (CorruptLog, TrimmedLog) as error:
                    return error
            case Ends():
                return Lsns(self._engine.first(), self._engine.tail())
            case Remove(through):
                return self._engine.remove(through)
        raise AssertionError(asked.step)


class _Reply:
    """What one request gets, once: an answer, or that there was none in time."""

    __slots__ = ("_done", "_ended", "_timer")

    def __init__(self, process: Process, done: Callable[[Any, Exception | None], None]) -> None:
        self._done = done
        self._ended = False
        self._timer = process.after(_TIMEOUT_S, self._late)

    def end(self, answer: Any, error: Exception | None) -> None:
        if not self._ended:
            self._ended = True
            self._timer.cancel()
            self._done(answer, error)

    def _late(self) -> None:
        self.end(None, LogUnavailable("timed out"))


def _at(commit: Commit, process: Process) -> Commit:
    """Return a commit with the time that its writer's clock shows."""
    return Commit(*commit[:3], int(process.wall_clock() * 1e6))
