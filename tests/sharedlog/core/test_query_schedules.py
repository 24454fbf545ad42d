"""A query's rules in random schedules: drivers, copies, zombies, sweepers, lost replies (§16)."""

from __future__ import annotations

import collections
import itertools
import random
import unittest.mock
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import pytest

from sharedlog._core import sweeping
from sharedlog._core.commit import Commit, Condition, Refused
from sharedlog._core.entry import EntryKind, ProducerDecision, read_row
from sharedlog._core.errors import LogError
from sharedlog._core.fences import Fence, raise_fence
from sharedlog._core.incarnation import new_log
from sharedlog._core.query import cleaning, closing, joining, state, tasks
from sharedlog._core.query.cleaning import OPERATIONS
from sharedlog._core.query.closing import BatchSummary, close
from sharedlog._core.query.joining import join
from sharedlog._core.query.state import Query, Ticket, draw_plan, find_query
from sharedlog._core.query.tasks import begin_task, grant_task, members, pend_task
from sharedlog._core.verifying import Verifier
from sharedlog._engines.driving import carry_out, do
from sharedlog._engines.memory import MemoryEngine, MemoryLog
from tests.sharedlog.logs import TOKEN, pending, texts

_BATCHES, _TASKS = 4, 2
Course = Generator[Any, Any, Any]


class Broken(Exception):
    """A promise was not kept."""


class World:
    """One log, and who acts on it: courses that yield once for each step that they take."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.engine = MemoryEngine(MemoryLog(new_log("0" * 16)))
        self.courses: list[Course] = []
        self.runs = 0
        self.at_once = OPERATIONS * (seed % 2)
        self.plans: dict[int, str] = {}

    def ask(self, rule: Callable[[], Any]) -> Course:
        """Carry a rule out, a step at a time; after a lost reply it is run again, whole."""
        steps, answer = rule(), None
        while True:
            try:
                refused = isinstance(answer, Refused)
                step = steps.throw(answer) if refused else steps.send(answer)
            except StopIteration as stop:
                return stop.value
            yield
            try:
                answer = do(self.engine, step)
            except Refused as error:
                answer = error
            if isinstance(step, Commit) and self.random.random() < 0.1:
                steps, answer = rule(), None

    def run(self, steps: int) -> None:
        """Let whoever is chosen take its next step."""
        for _ in range(steps):
            if not self.courses:
                return
            at = self.random.randrange(len(self.courses))
            try:
                next(self.courses[at])
            except (StopIteration, LogError):
                del self.courses[at]


class Driver:
    """One run of a query over a checkpoint, which says which batch is next."""

    def __init__(self, world: World, checkpoint: dict[str, int]) -> None:
        world.runs += 1
        self.world, self.checkpoint, self.run = world, checkpoint, f"run {world.runs}"

    def course(self) -> Course:
        """Plan, run and commit batches until there are no more."""
        while self.checkpoint["next"] < _BATCHES:
            batch = self.checkpoint["next"]
            plan = yield from self.world.ask(draw_plan)
            self.world.plans[plan] = self.run
            ticket = Ticket("q", "id", self.run, plan, batch)
            told: dict[int, tuple[ProducerDecision | None, bool]] = {}
            for number in range(_TASKS):
                # Some twice at once, and some that fail before they end.
                for attempt in range(1 + (self.world.random.random() < 0.3)):
                    self.world.courses.append(self._task(ticket, number, attempt, told))
            waited = 0
            while len(told) < _TASKS:
                waited += 1
                if waited % 200 == 0:
                    for number in set(range(_TASKS)) - set(told):
                        self.world.courses.append(self._task(ticket, number, waited, told))
                if waited > 2000:
                    return
                yield
            decisions = tuple(each for each, _ in told.values() if each is not None)
            those = BatchSummary(decisions, _TASKS, 0, any(again for _, again in told.values()))
            yield from self.world.ask(partial(close, ticket, those, at_once=self.world.at_once))
            self.checkpoint["next"] = max(self.checkpoint["next"], batch + 1)

    def _task(self, ticket: Ticket, number: int, attempt: int, told: dict[int, Any]) -> Course:
        joined = yield from self.world.ask(lambda: join(ticket))
        if joined.committed:
            told.setdefault(number, (None, True))
            return
        told_by = f"{ticket.plan} {attempt}"
        begins: dict[str, int] = {}
        task = None
        if number:
            task = yield from self.world.ask(lambda: grant_task(joined, ticket, TOKEN))
        for seq in (1, 2):
            those = [pending(f"{ticket.batch} {number} {seq} {told_by}", seq % 2)]
            if task is None:
                task, found = yield from self.world.ask(
                    lambda those=those: begin_task(joined, ticket, TOKEN, those)
                )
            else:
                opened = sorted(begins)
                found = yield from self.world.ask(
                    lambda t=task, s=seq, m=those, o=opened: pend_task(t, s, m, o)
                )
            begins |= found.begins
            if self.world.random.random() < 0.1:
                return
        told.setdefault(number, (ProducerDecision(task.producer.id, 2, begins), False))


def _sweeper(world: World) -> Course:
    """Abandon whatever is there, now and then, as if it had been silent."""
    while True:
        number = yield from world.ask(lambda: raise_fence("sweeper"))
        for _ in range(world.random.randrange(60)):
            yield
        there = yield from world.ask(sweeping.unfinished_plans)
        for plan in there:
            fence = Fence("sweeper", number)
            yield from world.ask(lambda p=plan, f=fence: sweeping.abandon_silent(p, f))


def _schedule(seed: int) -> None:
    """Run one, and hold what is in the log against what was promised.

    Every other one freezes its batches, as those of many tasks are.
    """
    world = World(seed)
    dice = world.random
    checkpoints = [{"next": 0}]
    world.courses.append(Driver(world, checkpoints[0]).course())
    if dice.random() < 0.5:
        world.courses.append(_sweeper(world))
    for _ in range(dice.randrange(1, 5)):
        world.run(dice.randrange(300))
        kind = dice.random()
        if kind < 0.3 and len(checkpoints) < 3:
            # A copy, beside the original or in its place.
            checkpoints.append(dict(dice.choice(checkpoints)))
        elif kind < 0.5 and world.courses:
            # Somebody dies.
            del world.courses[dice.randrange(len(world.courses))]
        world.courses.append(Driver(world, dice.choice(checkpoints)).course())
    world.run(dice.randrange(1500))
    # What is left of all of them goes on beside one more run.
    newest = max(checkpoints, key=lambda each: each["next"])
    while newest["next"] < _BATCHES:
        last = Driver(world, newest)
        before = world.runs
        world.courses.append(last.course())
        world.run(4000)
        if before > 40:
            raise Broken("no run comes to its end")
    _judge(world)


def _judge(world: World) -> None:
    engine = world.engine
    query = carry_out(engine, find_query("q"))
    assert query is not None
    # A plan of a copy may be open behind the last batch.
    carry_out(engine, closing.abandon("q", query.plan))
    for number in (0, 1):
        whose: dict[int, set[str]] = collections.defaultdict(set)
        found = [text.split() for text in texts(engine, number)]
        for batch, _, _, plan, _ in found:
            whose[int(batch)].add(plan)
        counted = collections.Counter((each[0], each[1]) for each in found)
        wanted = {(str(b), str(t)): 1 for b in range(_BATCHES) for t in range(_TASKS)}
        if counted != wanted:
            raise Broken(f"substream {number} has {counted - collections.Counter(wanted)} more")
        if any(len(each) > 1 for each in whose.values()):
            raise Broken(f"batches of several plans: {whose}")
        runs = [world.plans[int(plan)] for _, _, _, plan, _ in found]
        if len(list(itertools.groupby(runs))) > len(set(runs)):
            raise Broken(f"a run came back: {runs}")
        order = [int(each[0]) for each in found]
        if order != sorted(order):
            raise Broken(f"batches out of order: {order}")
    left = [key for kept in ("producer/", "open/", "span/") for key in engine.scan(kept)]
    if left:
        raise Broken(f"left: {left}")
    verifier = Verifier()
    while carry_out(engine, verifier.read()):
        pass
    problems = carry_out(engine, verifier.report()).problems
    problems = [each for each in problems if "envelope" not in each and "stream" not in each]
    if problems:
        raise Broken(str(problems))
    _judge_decided(engine)


def _judge_decided(engine: MemoryEngine) -> None:
    decided: set[tuple[int, str]] = set()
    for row in engine.read(0, 100_000).rows:
        entry = read_row(row)
        if entry.kind in (EntryKind.MARKER, EntryKind.ROLLBACK):
            for decision in entry.decisions:
                those = {(decision.producer, tag) for tag in decision.begins}
                if those & decided:
                    raise Broken(f"LSN {entry.lsn} decides again what was decided")
                decided |= those


def _not_conditional() -> Any:
    original = tasks.pend_under

    def pend(*args: Any, conditions: Any = (), **named: Any) -> Any:
        return original(*args, **named)

    return unittest.mock.patch.object(tasks, "pend_under", pend)


def _not_frozen() -> Any:
    """The marker is written whatever the row says."""

    def commit(conditions: Any = (), puts: Any = (), entries: Any = (), at_us: int = 0) -> Commit:
        if entries:
            conditions = tuple(each for each in conditions if not _of_row(each))
        return Commit(conditions, puts, entries, at_us)

    return unittest.mock.patch.object(closing, "Commit", commit)


def _of_row(condition: Condition) -> bool:
    return condition.key.startswith(state.QUERIES)


def _admits(change: Callable[[Ticket, Query], Query]) -> Any:
    original = state.admitted

    def admitted(ticket: Ticket, found: Query) -> Query:
        return original(ticket, change(ticket, found))

    return unittest.mock.patch.multiple(joining, admitted=admitted)


def _runs_forgotten() -> Any:
    return _admits(lambda _, found: found._replace(deposed=()))


def _batch_repeated() -> Any:
    def change(ticket: Ticket, found: Query) -> Query:
        if found.closed == ticket.batch and found.plan < ticket.plan:
            return found._replace(closed=ticket.batch - 1)
        return found

    return _admits(change)


def _older_plan_let_in() -> Any:
    def change(ticket: Ticket, found: Query) -> Query:
        return found._replace(plan=min(found.plan, ticket.plan - 1), deposed=())

    return _admits(change)


def _cleaned_too_early() -> Any:
    """Whoever cleans takes the producers of the plan that is in, too."""

    def clean(name: str) -> Any:
        there = yield from members(name)
        yield from cleaning._remove(there, set())
        return len(there)

    return unittest.mock.patch.object(joining, "clean", clean)


def _never_cleaned() -> Any:
    def clean(name: str) -> Any:
        yield from find_query(name)
        return 0

    return unittest.mock.patch.multiple(closing, clean=clean)


def _abandoned_without_its_row() -> Any:
    """What a silent plan has pending is rolled back, and its marker may still come."""

    def abandon(name: str, plan: int, fence: Any = None) -> Any:
        there = yield from members(name)
        yield from cleaning._remove([each for each in there if each.plan == plan], set())
        return True

    return unittest.mock.patch.object(sweeping, "abandon", abandon)


_RUNS = "a run that was followed is never in again"
_RULES = {
    "appends are conditional on the row": _not_conditional,
    "the marker is conditional on the row": _not_frozen,
    "a closed batch is answered": _batch_repeated,
    "older plans are refused": _older_plan_let_in,
    _RUNS: _runs_forgotten,
    "a live plan is not cleaned": _cleaned_too_early,
    "what no marker names is rolled back": _never_cleaned,
    "abandoning is a step of the row": _abandoned_without_its_row,
}


@pytest.mark.parametrize("first", range(0, 60, 30))
def test_whatever_happens_each_batch_is_there_once_of_one_plan(first: int) -> None:
    """Whole, in order, and nothing of anybody else's is left (§16)."""
    for seed in range(first, first + 30):
        try:
            _schedule(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.parametrize("rule", _RULES)
def test_each_broken_rule_is_found(rule: str) -> None:
    """The schedules show what each rule is for."""
    first = 839 if rule == _RUNS else 0
    with _RULES[rule]():
        for seed in range(first, first + 400):
            try:
                _schedule(seed)
            except Exception:  # noqa: BLE001 - however it shows
                return
    pytest.fail(f"nothing shows that {rule}")
