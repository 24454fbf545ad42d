"""A query's batches are committed once each, whole, whatever its tasks and drivers do (§16)."""

import pytest

from sharedlog._core.commit import Commit, Put, Refused
from sharedlog._core.entry import EntryKind, ProducerDecision, read_row
from sharedlog._core.errors import (
    CheckpointWentBack,
    Fenced,
    InvalidRequest,
    PredecessorMismatch,
    SpanGone,
)
from sharedlog._core.fences import Fence, raise_fence
from sharedlog._core.incarnation import new_log
from sharedlog._core.query.attempt import TaskAttempt
from sharedlog._core.query.closing import BatchSummary, abandon, close, forget, remove_write
from sharedlog._core.query.joining import begin_write, join
from sharedlog._core.query.state import (
    QUERIES,
    WRITE,
    PlanState,
    Ticket,
    all_queries,
    draw_plan,
    find_query,
)
from sharedlog._core.query.tasks import TASKS, grant_task, pend_task, sign
from sharedlog._core.restoring import restore
from sharedlog._core.roster import granted_producers
from sharedlog._core.spans import OPEN_SPANS, retire
from sharedlog._core.sweeping import (
    Silences,
    abandon_silent,
    left_writes,
    remove_silent,
    unfinished,
    unfinished_plans,
)
from sharedlog._core.trim import Committers, trim
from sharedlog._core.uncommitted import AllReader
from sharedlog._core.verifying import Verifier
from sharedlog._engines.driving import carry_out
from sharedlog._engines.memory import MemoryEngine, MemoryLog
from tests.sharedlog.logs import INCARNATION, TOKEN, carry_out_at, pending, texts, to_commit


@pytest.fixture
def engine():
    return MemoryEngine(MemoryLog(new_log("0" * 16)))


class Driver:
    """One run of a query's driver, and its tasks."""

    def __init__(self, engine, run="run", name="q", identity="id", **how):
        self.engine, self.run, self.name, self.identity, self.how = (
            engine,
            run,
            name,
            identity,
            how,
        )

    def plan(self, batch):
        """Plan a batch, as each of its tries is."""
        plan = carry_out(self.engine, draw_plan())
        return Ticket(self.name, self.identity, self.run, plan, batch, **self.how)

    def task(self, ticket, *batches):
        """Run a task that appends these texts, several appends; None: it was committed before."""
        joined = carry_out(self.engine, join(ticket))
        if joined.committed:
            return None
        task = carry_out(self.engine, grant_task(joined, ticket, TOKEN))
        begins = {}
        for seq, each in enumerate(batches, 1):
            begins |= self.append(task, seq, each, sorted(begins)).begins
        return ProducerDecision(task.producer.id, len(batches), begins)

    def append(self, task, seq, those, opened):
        """Append texts, each in the substream of its last digit."""
        messages = [pending(text, int(text[-1])) for text in those]
        return carry_out(self.engine, pend_task(task, seq, messages, opened))

    def commit(self, ticket, *decisions):
        """Commit what tasks told."""
        there = tuple(each for each in decisions if each is not None)
        batch = BatchSummary(there, len(there), 0, replayed=len(there) < len(decisions))
        return carry_out(self.engine, close(ticket, batch))

    def run_batch(self, batch, *tasks):
        """Plan, run and commit a batch of one task for each text."""
        ticket = self.plan(batch)
        return self.commit(ticket, *[self.task(ticket, [each]) for each in tasks])


def _left(engine):
    """What is kept of producers of tasks: nothing, once a batch is decided."""
    return [key for kept in ("producer/", "open/", OPEN_SPANS, TASKS) for key in engine.scan(kept)]


def _verified(engine):
    verifier = Verifier()
    while carry_out(engine, verifier.read()):
        pass
    return [
        each
        for each in carry_out(engine, verifier.report()).problems
        if "envelope" not in each and "stream" not in each
    ]


def test_one_marker_commits_what_all_tasks_of_a_batch_appended(engine):
    """In all substreams at one moment, and nothing of the tasks' producers stays (§16)."""
    driver = Driver(engine)
    ticket = driver.plan(0)
    tasks = [driver.task(ticket, ["a0", "b1"], ["c0"]), driver.task(ticket, ["d1"])]
    assert (texts(engine, 0), texts(engine, 1)) == ([], [])
    closed = driver.commit(ticket, *tasks)
    assert (texts(engine, 0), texts(engine, 1)) == (["a0", "c0"], ["b1", "d1"])
    assert (closed.again, closed.query.closed, closed.query.lsn) == (False, 0, engine.tail())
    assert _left(engine) == []
    assert _verified(engine) == []


def test_a_commit_that_is_called_again_finds_that_it_did(engine):
    """Its reply was lost, or its driver died behind it (§16)."""
    driver = Driver(engine)
    ticket = driver.plan(0)
    task = driver.task(ticket, ["a0"])
    driver.commit(ticket, task)
    tail = engine.tail()
    assert driver.commit(ticket, task).again
    # Another run plans the batch again: its tasks are told, and discard their rows.
    later = Driver(engine, run="later")
    again = later.plan(0)
    assert later.task(again, ["a0"]) is None
    assert later.commit(again, None).again
    assert engine.tail() == tail
    assert texts(engine) == ["a0"]
    later.run_batch(1, "b0")
    assert texts(engine) == ["a0", "b0"]


def test_what_the_marker_does_not_name_is_rolled_back(engine):
    """A task that failed, a slow twin of one: nobody reads what they appended (§16)."""
    driver = Driver(engine)
    ticket = driver.plan(0)
    driver.task(ticket, ["a0"])
    done = driver.task(ticket, ["a0"])
    twin = carry_out(engine, grant_task(carry_out(engine, join(ticket)), ticket, TOKEN))
    driver.append(twin, 1, ["a0"], [])
    driver.commit(ticket, done)
    with pytest.raises(Fenced, match="over"):
        driver.append(twin, 2, ["b0"], ["s/0"])
    assert texts(engine) == ["a0"]
    assert _left(engine) == []
    reader = AllReader({"s/0": 1}, INCARNATION)
    states = [each.state.value for each in carry_out(engine, reader.read())]
    assert sorted(states) == ["committed", "rolled back", "rolled back"]
    assert _verified(engine) == []


def test_an_empty_batch_writes_no_entry_and_is_closed(engine):
    """The next one follows it, and it is not committed later with rows (§16)."""
    driver = Driver(engine)
    ticket = driver.plan(0)
    carry_out(engine, join(ticket))
    assert driver.commit(ticket).query.closed == 0
    assert engine.tail() == 0
    assert driver.task(driver.plan(0), ["late0"]) is None
    driver.run_batch(1, "a0")
    assert texts(engine) == ["a0"]


@pytest.mark.parametrize("when", ["before the tasks", "while they append", "before the commit"])
def test_a_driver_that_is_planned_again_ends_the_older_plan(engine, when):
    """Its tasks are refused, and so is its commit: the batch is committed once (§16)."""
    old, new = Driver(engine, run="old"), Driver(engine, run="new")
    ticket = old.plan(0)
    task = carry_out(engine, grant_task(carry_out(engine, join(ticket)), ticket, TOKEN))
    found = ProducerDecision(task.producer.id, 1, {"s/0": 1})
    if when != "before the tasks":
        old.append(task, 1, ["old0"], [])
    again = new.plan(0)
    mine = new.task(again, ["new0"])
    if when != "before the commit":
        with pytest.raises(Fenced, match="took over"):
            old.append(task, 2 if when == "while they append" else 1, ["more0"], ["s/0"])
    with pytest.raises(Fenced, match="took over"):
        old.commit(ticket, found)
    new.commit(again, mine)
    with pytest.raises(Fenced):
        old.commit(ticket, found)
    assert texts(engine) == ["new0"]
    assert _left(engine) == []
    # The run that another one followed is never in again, however new its plans are.
    with pytest.raises(Fenced, match="took over"):
        old.task(old.plan(1), ["zombie0"])
    new.run_batch(1, "next0")
    assert texts(engine) == ["new0", "next0"]


def test_a_task_that_comes_between_freeze_and_marker_is_refused(engine):
    """From the freeze on nobody appends, so that what was validated is what is committed (§18)."""
    driver = Driver(engine)
    ticket = driver.plan(0)
    joined = carry_out(engine, join(ticket))
    task = carry_out(engine, grant_task(joined, ticket, TOKEN))
    begins = driver.append(task, 1, ["a0"], []).begins
    rule = close(
        ticket, BatchSummary((ProducerDecision(task.producer.id, 1, begins),), 1), at_once=0
    )
    freeze = to_commit(engine, rule)
    lsns = engine.commit(freeze)
    with pytest.raises(Fenced, match="committed"):
        driver.append(task, 2, ["b0"], ["s/0"])
    with pytest.raises(Fenced, match="committed"):
        driver.task(ticket, ["c0"])
    with pytest.raises(Fenced, match="committed"):
        carry_out(engine, grant_task(joined, ticket, TOKEN))
    marker = to_commit(engine, rule, lsns)
    engine.commit(marker)
    assert texts(engine) == ["a0"]
    # Who died here has left the producers; whoever comes next removes them.
    assert _verified(engine) == []
    assert driver.commit(ticket, ProducerDecision(task.producer.id, 1, begins)).again
    assert _left(engine) == []
    assert texts(engine) == ["a0"]


def test_few_tasks_are_committed_in_one_step(engine):
    """Validated, decided and removed: of a disk it is one wait (§18)."""
    driver = Driver(engine)
    ticket = driver.plan(0)
    tasks = [driver.task(ticket, ["a0", "b1"]), driver.task(ticket, ["c1"])]
    loser = driver.task(ticket, ["z0"])
    rule = close(ticket, BatchSummary(tuple(tasks), 3))
    engine.commit(to_commit(engine, rule))
    assert (texts(engine, 0), texts(engine, 1)) == (["a0"], ["b1", "c1"])
    # Whoever dies here leaves what the marker does not name; the next batch rolls it back.
    assert {key.split("/")[1] for key in engine.scan("producer/")} == {str(loser.producer)}
    driver.run_batch(1, "d0")
    assert texts(engine, 0) == ["a0", "d0"]
    assert _left(engine) == []
    assert _verified(engine) == []


def test_a_micro_batch_of_two_tasks_is_five_steps_of_the_log(engine, monkeypatch):
    """Its plan, who joins first, each task's append, the marker: waits for a disk (§16)."""
    steps = []
    original = engine.commit
    monkeypatch.setattr(engine, "commit", lambda step: (steps.append(step), original(step))[1])
    driver = Driver(engine)
    for batch in range(3):
        steps.clear()
        ticket = driver.plan(batch)
        attempts = [TaskAttempt(ticket, TOKEN), TaskAttempt(ticket, TOKEN)]
        for number, attempt in enumerate(attempts):
            carry_out(engine, attempt.join())
            carry_out(engine, attempt.append([pending(f"{batch}{number}", number)]))
        driver.commit(ticket, *[each.result(1, 0).decision for each in attempts])
        assert len(steps) == 5
    assert (texts(engine, 0), texts(engine, 1)) == (["00", "10", "20"], ["01", "11", "21"])
    assert _left(engine) == []


def test_a_marker_of_few_tasks_is_refused_once_one_appends_or_the_row_moves(engine):
    """What was validated is what it commits, though nobody was frozen (§18)."""
    driver = Driver(engine)
    ticket = driver.plan(0)
    task = carry_out(engine, grant_task(carry_out(engine, join(ticket)), ticket, TOKEN))
    begins = driver.append(task, 1, ["a0"], []).begins
    told = BatchSummary((ProducerDecision(task.producer.id, 1, begins),), 1)
    marker = to_commit(engine, close(ticket, told))
    driver.append(task, 2, ["b0"], ["s/0"])
    with pytest.raises(Refused):
        engine.commit(marker)
    with pytest.raises(SpanGone):
        carry_out(engine, close(ticket, told))
    through = BatchSummary((ProducerDecision(task.producer.id, 2, begins),), 1)
    marker = to_commit(engine, close(ticket, through))
    assert carry_out(engine, abandon("q", ticket.plan))
    with pytest.raises(Refused):
        engine.commit(marker)
    with pytest.raises(Fenced, match="abandoned"):
        carry_out(engine, close(ticket, through))
    assert texts(engine) == []
    assert _left(engine) == []


def test_a_task_has_its_producer_with_its_first_append(engine):
    """A second one after a lost reply: what the first has is rolled back with the batch (§16)."""
    driver = Driver(engine)
    ticket = driver.plan(0)
    attempt = TaskAttempt(ticket, TOKEN)
    carry_out(engine, attempt.join())
    lost = to_commit(engine, attempt.append([pending("a0", 0), pending("b1", 1)]))
    engine.commit(lost)
    with pytest.raises(Refused):
        # A late copy of it.
        engine.commit(lost)
    carry_out(engine, attempt.append([pending("a0", 0), pending("b1", 1)]))
    carry_out(engine, attempt.append([pending("c1", 1)]))
    carry_out(engine, attempt.sign())
    result = attempt.result(3, 0)
    assert (result.decision.through, sorted(result.decision.begins)) == (2, ["s/0", "s/1"])
    driver.commit(ticket, result.decision)
    assert (texts(engine, 0), texts(engine, 1)) == (["a0"], ["b1", "c1"])
    assert _left(engine) == []
    assert _verified(engine) == []


def test_a_task_whose_batch_another_plan_took_over_has_no_producer(engine):
    """Its first append is refused as any, and nothing of it is in the log (§16)."""
    driver = Driver(engine)
    late = TaskAttempt(driver.plan(0), TOKEN)
    carry_out(engine, late.join())
    driver.run_batch(0, "a0")
    tail = engine.tail()
    with pytest.raises(Fenced, match="took over"):
        carry_out(engine, late.append([pending("b0", 0)]))
    assert (engine.tail(), _left(engine)) == (tail, [])


def test_the_producers_of_a_batch_are_removed_before_the_next_one_is_open(engine):
    """While it is known which the marker names: none of them is rolled back after it (§16)."""
    driver = Driver(engine, gaps=True)
    ticket = driver.plan(0)
    task = driver.task(ticket, ["a0"])
    rule = close(ticket, BatchSummary((task,), 1), at_once=0)
    lsns = engine.commit(to_commit(engine, rule))
    engine.commit(to_commit(engine, rule, lsns))
    driver.run_batch(5, "b0")
    assert [read_row(row).kind for row in engine.read(0, 100).rows].count(EntryKind.ROLLBACK) == 0
    assert texts(engine) == ["a0", "b0"]
    assert _left(engine) == []


def test_a_query_that_was_stopped_for_longer_than_the_retention_goes_on(engine):
    """Its last marker is trimmed, while producers of plans that failed are there (§16, L6)."""
    driver = Driver(engine)
    driver.run_batch(0, "a0")
    silent = driver.plan(1)
    carry_out(engine, grant_task(carry_out(engine, join(silent)), silent, TOKEN))
    Driver(engine, name="other", identity="other").run_batch(0, "z1")
    carry_out_at(engine, trim(Committers(), 10**17, 0), 10**17)
    assert engine.first() > carry_out(engine, find_query("q")).lsn
    carry_out(engine, join(driver.plan(1)))
    driver.run_batch(1, "b0")
    assert carry_out(engine, find_query("q")).closed == 1
    assert _left(engine) == []


def test_a_task_is_not_committed_with_less_or_more_than_it_told(engine):
    """What is pending is exactly what was told (C1)."""
    driver = Driver(engine)
    for wrong in (
        lambda each: each._replace(through=2),
        lambda each: each._replace(begins={"s/0": each.begins["s/0"] + 1}),
        lambda each: each._replace(begins=each.begins | {"s/1": 1}),
        lambda each: each._replace(producer=each.producer + 1),
    ):
        ticket = driver.plan(0)
        task = driver.task(ticket, ["a0"])
        with pytest.raises(SpanGone):
            driver.commit(ticket, wrong(task))
    ticket = driver.plan(0)
    task = driver.task(ticket, ["b0"])
    with pytest.raises(InvalidRequest):
        driver.commit(ticket, task, task)
    driver.run_batch(0, "c0")
    assert texts(engine) == ["c0"]
    assert _left(engine) == []


def test_a_checkpoint_that_is_older_is_refused(engine):
    """A batch below the highest is never a silent success (§16)."""
    driver = Driver(engine)
    for batch in range(3):
        driver.run_batch(batch, f"{batch}0")
    with pytest.raises(CheckpointWentBack, match="older copy"):
        driver.task(driver.plan(1), ["x0"])
    with pytest.raises(CheckpointWentBack):
        driver.commit(driver.plan(1))
    with pytest.raises(PredecessorMismatch) as error:
        driver.task(driver.plan(4), ["x0"])
    assert error.value.found == 2
    assert texts(engine) == ["00", "10", "20"]


def test_a_copy_takes_no_batch_of_another_checkpoint_for_its_own(engine):
    """Copies plan batches of one number and other rows; which commits goes on alone (§16)."""
    first = Driver(engine, checkpoint="/first")
    first.run_batch(0, "a0")
    copy = Driver(engine, run="copied", checkpoint="/copy")
    with pytest.raises(CheckpointWentBack, match=r"/first.*/copy"):
        copy.task(copy.plan(0), ["b0"])
    with pytest.raises(CheckpointWentBack):
        copy.commit(copy.plan(0))
    # It was not in, and nothing of who was is over.
    first.run_batch(1, "c0")
    again = Driver(engine, run="again", checkpoint="/first")
    assert again.task(again.plan(1), ["c0"]) is None
    moved = Driver(engine, run="moved", checkpoint="/copy", adopt=True)
    assert moved.task(moved.plan(1), ["c0"]) is None
    # Who says nothing of its checkpoint is taken at its word.
    silent = Driver(engine, run="silent")
    assert silent.task(silent.plan(1), ["c0"]) is None
    assert texts(engine) == ["a0", "c0"]


def test_a_checkpoint_that_was_deleted_is_refused_under_a_name(engine):
    """It has another id, and would commit everything again; an operator adopts it (§16)."""
    Driver(engine).run_batch(0, "a0")
    fresh = Driver(engine, identity="other")
    with pytest.raises(CheckpointWentBack, match="another query"):
        fresh.task(fresh.plan(0), ["a0"])
    adopting = Driver(engine, identity="other", adopt=True)
    adopting.run_batch(0, "b0")
    # Adopted once, it is as any.
    assert adopting.task(adopting.plan(0), ["b0"]) is None
    assert texts(engine) == ["a0", "b0"]


def test_a_write_whose_row_is_gone_takes_nothing_of_late_tasks(engine):
    """It is made by its planner, and removed once it is committed (§16)."""
    plan = carry_out(engine, begin_write("write-1"))
    ticket = Ticket("write-1", WRITE, "", plan, 0)
    made = Driver(engine)
    made.commit(ticket, made.task(ticket, ["a0"]))
    assert carry_out(engine, remove_write("write-1")).closed == 0
    assert carry_out(engine, remove_write("write-1")) is None
    assert list(engine.scan(QUERIES)) == []
    with pytest.raises(Fenced, match="late"):
        made.task(ticket, ["b0"])
    with pytest.raises(Fenced, match="late"):
        made.commit(ticket)
    assert texts(engine) == ["a0"]


def test_a_late_copy_of_what_began_a_write_begins_nothing(engine):
    """Its plan was drawn by then: a row that nobody would remove is not there again (§16)."""
    step = to_commit(engine, begin_write("write-1"))
    engine.commit(step)
    # Not answered in time it was run again, with a number of its own.
    plan = carry_out(engine, begin_write("write-1"))
    assert carry_out(engine, find_query("write-1")).plan == plan
    assert carry_out(engine, draw_plan()) == plan + 1
    assert carry_out(engine, remove_write("write-1")).plan == plan
    with pytest.raises(Refused):
        engine.commit(step)
    assert list(engine.scan(QUERIES)) == []


def test_a_forgotten_query_is_begun_anew_by_nobody_who_is_late(engine):
    """Neither by a plan that was drawn before, nor by a run that was in (§16)."""
    old = Driver(engine)
    first = old.plan(0)
    begins = to_commit(engine, join(first))
    old.run_batch(0, "a0")
    drawn = old.plan(0)
    assert carry_out(engine, forget("q")).closed == 0
    for ticket in (first, drawn, old.plan(0)):
        with pytest.raises(Fenced, match="forgotten"):
            old.task(ticket, ["b0"])
        with pytest.raises(Fenced, match="forgotten"):
            old.commit(ticket)
    with pytest.raises(Refused):
        engine.commit(begins)
    assert carry_out(engine, find_query("q")) is None
    assert carry_out(engine, all_queries()) == []
    assert carry_out(engine, forget("q")) is None
    fresh = Driver(engine, run="fresh", identity="another")
    fresh.run_batch(0, "c0")
    back = Driver(engine, identity="another")
    with pytest.raises(Fenced):
        back.task(back.plan(1), ["d0"])
    assert texts(engine) == ["a0", "c0"]
    assert _left(engine) == []


def test_a_forgotten_job_is_begun_anew_by_a_plan_that_was_drawn_since(engine):
    """A job has no runs; an older one's late tasks are late (§16)."""
    job = Driver(engine, run="", identity="job")
    job.run_batch(0, "a0")
    late = job.plan(0)
    carry_out(engine, forget("q"))
    with pytest.raises(Fenced, match="forgotten"):
        job.task(late, ["b0"])
    job.run_batch(0, "c0")
    with pytest.raises(Fenced):
        job.task(late, ["d0"])
    assert texts(engine) == ["a0", "c0"]


def test_producers_of_one_batch_are_swept_together_by_the_newest_sign_of_any(engine):
    """A task that has finished waits for those that still run (C2)."""
    driver = Driver(engine)
    ticket = driver.plan(0)
    finished = driver.task(ticket, ["a0"])
    running = carry_out(engine, grant_task(carry_out(engine, join(ticket)), ticket, TOKEN))
    fence = Fence("sweeper", carry_out(engine, raise_fence("sweeper")))
    silences = Silences(10.0)
    for second in range(0, 40, 4):
        carry_out(engine, sign(running, second + 1))
        assert silences.look(carry_out(engine, unfinished_plans()), second) == {}
    assert carry_out(engine, unfinished()) == {}
    for second in range(40, 60, 4):
        silent = silences.look(carry_out(engine, unfinished_plans()), second)
    assert list(silent) == [("q", ticket.plan)]
    assert carry_out(engine, abandon_silent(("q", ticket.plan), fence))
    with pytest.raises(Fenced, match="abandoned"):
        driver.commit(ticket, finished)
    with pytest.raises(Fenced):
        carry_out(engine, sign(running, 99))
    assert _left(engine) == []
    driver.run_batch(0, "b0")
    assert texts(engine) == ["b0"]
    assert _verified(engine) == []


def test_a_sweeper_that_was_replaced_abandons_nothing(engine):
    """Its number is no longer the fence's (C2)."""
    driver = Driver(engine)
    ticket = driver.plan(0)
    task = driver.task(ticket, ["a0"])
    old = Fence("sweeper", carry_out(engine, raise_fence("sweeper")))
    carry_out(engine, raise_fence("sweeper"))
    assert not carry_out(engine, abandon_silent(("q", ticket.plan), old))
    driver.commit(ticket, task)
    assert texts(engine) == ["a0"]


@pytest.mark.parametrize("until", ["planned", "abandoned", "committed"])
def test_a_write_whose_driver_is_gone_leaves_nothing(engine, until):
    """Whenever that died: its row is removed, and whoever is late is told so (C2)."""
    driver = Driver(engine, run="", name="write-1", identity=WRITE)
    ticket = Ticket("write-1", WRITE, "", carry_out(engine, begin_write("write-1")), 0)
    fence = Fence("sweeper", carry_out(engine, raise_fence("sweeper")))
    if until != "planned":
        task = driver.task(ticket, ["a0"])
        # Its tasks may show signs of life: they are looked at by themselves.
        assert carry_out(engine, left_writes()) == {}
        if until == "committed":
            driver.commit(ticket, task)
        else:
            assert carry_out(engine, abandon_silent(("write-1", ticket.plan), fence))
    # Of a query's, and of a job's, what they committed is remembered.
    Driver(engine).run_batch(0, "q0")
    Driver(engine, run="", name="job", identity="job").run_batch(0, "j0")
    there = carry_out(engine, left_writes())
    assert list(there) == ["write-1"]
    assert carry_out(engine, remove_silent(there["write-1"], fence))
    assert set(engine.scan(QUERIES)) == {QUERIES + "q", QUERIES + "job"}
    with pytest.raises(Fenced, match="late"):
        driver.task(ticket, ["b0"])
    with pytest.raises(Fenced, match="late"):
        driver.commit(ticket)
    assert texts(engine) == (["a0"] if until == "committed" else []) + ["q0", "j0"]
    assert _left(engine) == []


def test_a_write_that_goes_on_meanwhile_is_not_removed(engine):
    """Its row is another one by then, or somebody else sweeps (C2)."""
    driver = Driver(engine, run="", name="write-1", identity=WRITE)
    ticket = Ticket("write-1", WRITE, "", carry_out(engine, begin_write("write-1")), 0)
    fence = Fence("sweeper", carry_out(engine, raise_fence("sweeper")))
    (seen,) = carry_out(engine, left_writes()).values()
    driver.commit(ticket, driver.task(ticket, ["a0"]))
    assert not carry_out(engine, remove_silent(seen, fence))
    (seen,) = carry_out(engine, left_writes()).values()
    carry_out(engine, raise_fence("sweeper"))
    assert not carry_out(engine, remove_silent(seen, fence))
    assert carry_out(engine, find_query("write-1")) == seen


def test_a_task_that_begins_as_its_write_is_removed_leaves_nothing(engine):
    """It was granted a producer in time, and appends no more (C2)."""
    ticket = Ticket("write-1", WRITE, "", carry_out(engine, begin_write("write-1")), 0)
    fence = Fence("sweeper", carry_out(engine, raise_fence("sweeper")))
    (seen,) = carry_out(engine, left_writes()).values()
    task = Driver(engine, run="", name="write-1", identity=WRITE).task(ticket, ["a0"])
    assert task is not None
    assert carry_out(engine, remove_silent(seen, fence))
    (plan,) = carry_out(engine, unfinished_plans())
    assert carry_out(engine, abandon_silent(plan, fence))
    assert _left(engine) == []
    assert texts(engine) == []
    assert _verified(engine) == []


def test_a_forgotten_write_leaves_no_row(engine):
    """Nobody begins it anew (§16)."""
    carry_out(engine, begin_write("write-1"))
    assert carry_out(engine, forget("write-1")).closed == -1
    assert list(engine.scan(QUERIES)) == []


def test_a_marker_and_an_abandoning_exclude_each_other(engine):
    """Whoever comes first decides (C2)."""
    driver = Driver(engine)
    ticket = driver.plan(0)
    task = driver.task(ticket, ["a0"])
    rule = close(ticket, BatchSummary((task,), 1), at_once=0)
    marker = to_commit(engine, rule, engine.commit(to_commit(engine, rule)))
    assert carry_out(engine, abandon("q", ticket.plan))
    with pytest.raises(Refused) as refused:
        engine.commit(marker)
    with pytest.raises(Fenced, match="abandoned"):
        to_commit(engine, rule, refused.value)
    assert texts(engine) == []


def test_a_commit_that_was_stopped_and_abandoned_meanwhile_is_told_so(engine):
    """Its tasks were cleaned between freeze and marker: it is over, nothing is damaged (§16)."""
    driver = Driver(engine)
    ticket = driver.plan(0)
    decision = driver.task(ticket, ["a0"])
    rule = close(ticket, BatchSummary((decision,), 1), at_once=0)
    lsns = engine.commit(to_commit(engine, rule))
    assert carry_out(engine, abandon("q", ticket.plan))
    with pytest.raises(Fenced, match="abandoned"):
        to_commit(engine, rule, lsns)
    assert texts(engine) == []


def test_nobody_else_decides_for_a_task(engine):
    """Its batch does, or an operator who abandons or forgets the query (C2)."""
    driver = Driver(engine)
    ticket = driver.plan(0)
    task = driver.task(ticket, ["a0"])
    with pytest.raises(InvalidRequest, match="its batch"):
        carry_out(engine, retire(task.producer))
    assert [each.id for each in carry_out(engine, granted_producers())] == []
    assert carry_out(engine, forget("q")).name == "q"
    assert carry_out(engine, find_query("q")) is None
    assert _left(engine) == []
    with pytest.raises(Fenced):
        driver.commit(ticket, task)
    assert texts(engine) == []


def test_what_nobody_reads_is_counted_once(engine):
    """Attempts that a commit, an abandoning or the next plan undoes, and never those named."""
    driver = Driver(engine)
    ticket = driver.plan(0)
    # Of the first attempt nothing is told: another one of its task was taken.
    driver.task(ticket, ["a 0"])
    closed = driver.commit(ticket, driver.task(ticket, ["a 0"]))
    assert (closed.undone, closed.query.undone, closed.query.batches) == (1, 1, 1)
    again = driver.commit(ticket, None)
    assert (again.again, again.query) == (True, closed.query)
    ticket = driver.plan(1)
    driver.task(ticket, ["b 0"])
    driver.task(ticket, ["c 1"])
    assert carry_out(engine, abandon("q", ticket.plan))
    assert carry_out(engine, find_query("q")).undone == 3
    driver.run_batch(1, "b 0", "c 1")
    found = carry_out(engine, find_query("q"))
    assert (found.undone, found.batches, found.all_rows) == (3, 2, 3)


def test_a_log_that_was_restored_goes_on_where_it_is_for_none_of_its_queries(engine):
    """What was pending is rolled back, and a checkpoint that is further is told so (§12)."""
    engine.commit(Commit(puts=tuple(Put(*each) for each in new_log("beef" * 4).items())))
    driver = Driver(engine)
    driver.run_batch(0, "a0")
    driver.task(driver.plan(1), ["lost0"])
    carry_out(engine, restore("f00d" * 4))
    assert [each.state for each in carry_out(engine, all_queries())] == [PlanState.ABANDONED]
    assert _left(engine) == []
    with pytest.raises(PredecessorMismatch):
        driver.task(driver.plan(2), ["b0"])
    assert texts(engine) == ["a0"]


def test_many_tasks_over_many_substreams_fit_small_steps(engine):
    """No step has conditions for each task and substream together (§18)."""
    driver = Driver(engine)
    ticket = driver.plan(0)
    tasks = [driver.task(ticket, [f"{task}.{each}" for each in range(8)]) for task in range(25)]
    sizes = []
    original = engine.commit

    def commit(step):
        sizes.append(len(step.conditions) + len(step.puts))
        return original(step)

    engine.commit = commit
    driver.commit(ticket, *tasks[::2])
    assert max(sizes) <= 100
    assert texts(engine, 3) == [f"{task}.3" for task in range(0, 25, 2)]
    assert _left(engine) == []
