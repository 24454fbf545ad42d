"""The order of a leadership's writes to its log: DESIGN §7, invariants 1, 4 and 11."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from chaos.sim.group.log import LogStore, Moment
from curp._core.appending import AppendBatch, Appending, Job, Settle, append_all
from curp._core.leader import Leader, LeaderBounds, SpeedWish
from curp._core.steps import Rest
from curp.log._errors import LeadershipOver, LogError, LogStopped, LogUnavailable, TailMismatch
from curp.log._values import NewLogEntry

FINE = SpeedWish(7, True)
DELAY_S = 1.0


def _begin(**bounds: float) -> tuple[Leader, Appending]:
    drawn = count()
    given = LeaderBounds(**{"batch_delay_s": DELAY_S, **bounds})  # type: ignore[arg-type]
    leader = Leader(7, 10, witnessed=True, bounds=given)
    return leader, Appending(leader, lambda: b"%016d" % next(drawn))


def _place(leader: Leader, at: float = 0.0) -> int:
    return leader.place_event("entry", 1, at)


def test_a_batch_is_given_when_it_is_due_and_not_before() -> None:
    """Entries wait for one another so long, or until somebody waits for them (DESIGN §7)."""
    leader, appending = _begin()
    assert appending.next(0.0) == Rest(None)
    _place(leader, 0.0)
    _place(leader, 0.5)
    assert appending.next(0.5) == Rest(0.5)
    step = appending.next(1.0)
    assert isinstance(step, AppendBatch)
    assert step.configuration == 7
    assert len(step.batch.placed) == 2
    # One at a time: what is placed meanwhile waits.
    leader.demand(_place(leader, 1.0))
    assert appending.next(1.0) == Rest(None)
    appending.appended(12)
    following = appending.next(1.0)
    assert isinstance(following, AppendBatch)
    assert following.batch.expected_tail == 12
    assert following.append_id != step.append_id


def test_an_append_that_may_have_happened_is_asked_again_as_it_was() -> None:
    """The same batch, number and name, after a while, until it is known (Appending, 2)."""
    leader, appending = _begin()
    leader.demand(_place(leader))
    step = appending.next(0.0)
    leader.demand(_place(leader))
    assert appending.failed(LogUnavailable("timed out"), 1.0)
    assert appending.trouble == "timed out"
    rest = appending.next(1.0)
    assert isinstance(rest, Rest)
    assert rest.seconds
    # A job waits, too: the number must not change under it.
    assert appending.between("job")
    assert isinstance(appending.next(1.0), Rest)
    assert appending.next(1.0 + rest.seconds) is step
    appending.appended(11)
    assert appending.trouble == ""
    assert appending.next(2.0) == Job("job")


@pytest.mark.parametrize(
    "error",
    [
        LeadershipOver("8"),
        TailMismatch("moved", 11),
        LogStopped("fsync"),
        ValueError("a mistake"),
    ],
)
def test_what_the_engine_refused_is_the_end(error: Exception) -> None:
    """Nothing is given out any more (invariant 4); an engine that stopped is not asked again."""
    leader, appending = _begin()
    leader.demand(_place(leader))
    appending.next(0.0)
    assert not appending.failed(error, 0.0)
    assert appending.next(9.0) is None
    assert not appending.between("job")


def test_the_number_changes_between_two_appends() -> None:
    """A job waits for the append under way, and the next append for the job (invariant 11)."""
    leader, appending = _begin()
    leader.demand(_place(leader))
    assert isinstance(appending.next(0.0), AppendBatch)
    assert appending.between("take a number")
    leader.demand(_place(leader))
    assert appending.next(0.0) == Rest(None)
    appending.appended(11)
    assert appending.next(0.0) == Job("take a number")
    assert appending.next(0.0) == Rest(None)
    leader.end_change(8, witnessed=True)
    appending.done()
    step = appending.next(0.0)
    assert isinstance(step, AppendBatch)
    assert step.configuration == 8


def test_jobs_that_are_not_done_when_it_is_over_are_told() -> None:
    """Who waits for one learns that it never will be; once."""
    _, appending = _begin()
    appending.between("a")
    appending.stop()
    assert appending.next(0.0) is None
    assert appending.undone() == ["a"]
    assert appending.undone() == []


def test_the_shell_is_woken_only_for_what_is_due_before_it_looks() -> None:
    """A wake-up for nothing costs two switches of threads: there are none."""
    leader, appending = _begin(batch_entries=3)
    assert appending.next(0.0) == Rest(None)
    _place(leader, 0.0)
    assert appending.wakes(0.0)
    assert appending.next(0.0) == Rest(DELAY_S)
    _place(leader, 0.5)
    assert not appending.wakes(0.5)
    _place(leader, 0.6)
    assert appending.wakes(0.6)
    assert isinstance(appending.next(0.6), AppendBatch)
    leader.demand(_place(leader, 0.7))
    # It looks when the append is over.
    assert not appending.wakes(0.7)


def test_a_batch_is_settled_once_the_engine_has_it_and_a_refusal_ends_all() -> None:
    """The loop asks again for what may have happened, and raises what is final (invariant 4)."""
    leader, appending = _begin()
    leader.demand(_place(leader))
    now = 0.0
    rule = append_all(appending, lambda: now)
    step = rule.send(None)
    assert isinstance(step, AppendBatch)
    rest = rule.throw(LogUnavailable("timed out"))
    assert isinstance(rest, Rest)
    assert rest.seconds
    now += rest.seconds
    assert rule.send(None) is step
    assert rule.send(11) == Settle(step.batch, 11)
    appending.appended(11)
    assert rule.send(None) == Rest(None)
    leader.demand(_place(leader))
    assert isinstance(rule.send(None), AppendBatch)
    with pytest.raises(LeadershipOver):
        rule.throw(LeadershipOver("8"))
    assert appending.over


class AppendingMachine(RuleBasedStateMachine):
    """Against an engine in memory that loses requests and replies, and another leader."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.log = LogStore(clock=lambda: self.now)
        self.moment: Moment | None = None
        self.engine = self.log.engine(self._strike)
        self.number = self.engine.take_leadership("one", "a:1", term_s=1.0)
        drawn = count()
        self.leader = Leader(
            self.number, 0, witnessed=True, bounds=LeaderBounds(batch_delay_s=0.1, batch_bytes=3)
        )
        self.appending = Appending(self.leader, lambda: b"%016d" % next(drawn))
        self.placed: list[bytes] = []
        self.synced = 0
        self.deposed = self.ended = False

    def _strike(self, name: str, moment: Moment) -> None:
        if name == "append" and moment is self.moment:
            self.moment = None
            raise LogUnavailable(moment.value)

    @rule()
    def place(self) -> None:
        """An entry has its place."""
        body = b"%d" % len(self.placed)
        self.leader.place_event(body, 1, self.now)
        self.placed.append(body)

    @precondition(lambda self: self.placed)
    @rule()
    def demand(self) -> None:
        """Somebody waits for everything."""
        self.leader.demand(len(self.placed))

    @rule(moment=st.sampled_from(Moment))
    def lose(self, moment: Moment) -> None:
        """The next append's request, or its reply, will be lost."""
        self.moment = moment

    @rule(seconds=st.sampled_from([0.01, 0.05, 0.2]))
    def pass_time(self, seconds: float) -> None:
        """Some time passes."""
        self.now += seconds

    @rule()
    def depose(self) -> None:
        """Another replica takes over when the lease is over."""
        self.now += 2.0
        self.log.engine().take_leadership("two", "b:1", term_s=1.0)
        self.deposed = True

    @rule()
    def look(self) -> None:
        """The shell looks, and does what it is told."""
        step = self.appending.next(self.now)
        if not isinstance(step, AppendBatch):
            return
        try:
            tail = self.engine.append(
                [NewLogEntry(placed.what) for placed in step.batch.placed],
                configuration=step.configuration,
                expected_tail=step.batch.expected_tail,
                append_id=step.append_id,
            )
        except LogError as error:
            if not self.appending.failed(error, self.now):
                self.ended = True
        else:
            self.appending.appended(tail)
            self.synced = tail

    @invariant()
    def the_log_is_what_was_placed(self) -> None:
        """No entry is there twice, out of its place or left out, whatever was lost."""
        bodies = [entry.body for entry in self.log.engine().read(0)]
        assert bodies == self.placed[: len(bodies)]
        assert self.synced <= len(bodies)

    def teardown(self) -> None:
        """Left alone, everything that was placed is in the log, unless another leads."""
        self.moment = None
        for _ in range(3 * len(self.placed) + 3):
            self.now += 1.0
            self.look()
        assert self.deposed or not self.ended
        if not self.deposed:
            assert self.log.tail == len(self.placed)
            assert self.leader.unsynced == 0


def test_no_append_is_lost_or_repeated() -> None:
    """Whatever is lost on the way, the log is what was placed, in its order (invariant 1)."""
    run_state_machine_as_test(
        AppendingMachine, settings=settings(max_examples=60, stateful_step_count=30)
    )
