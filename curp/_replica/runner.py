"""The runner of a replica: makes it follow, take over, lead and step down (DESIGN §7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from _rifl_ground.log import get_logger
from curp._core.handover import EndLease
from curp._core.housekeeping import ExpireKeys
from curp._core.leader import Leader, LeaderBounds
from curp._core.read_lease import LeaseLength, ReadLease
from curp._core.recovery import Recovered
from curp._core.role import (
    ApplyMore,
    AwaitEnd,
    AwaitEntry,
    Begin,
    BeginOver,
    CountHandlers,
    EndLeadership,
    GiveUp,
    HandOver,
    MayTakeOver,
    NameLeader,
    Rebuild,
    Recover,
    Role,
    RoleEnded,
    RoleEnding,
    TakeCalls,
    TakeLeadership,
    TellSurvival,
    follow_and_lead,
)
from curp._core.steps import VisibleWait
from curp._core.succession import FollowerStanding, Succession
from curp._replica.driver import Bounded, Nested, Once, Rule
from curp._replica.errors import ReplicaStopped
from curp._replica.follower import EntryApplier
from curp._replica.leading import LeaderLoops
from curp._replica.lease_keeper import LeadershipKeeper
from curp._replica.metadata import read_asked_for
from curp._replica.parts import Parts, Tenure
from curp._replica.recovery_steps import RecoverySteps
from curp._replica.survival import Survival
from curp.log._errors import LeadershipOver, LogError, TrimmedLog
from curp.observer import TakeOver
from rifl.core._shared.errors import RiflError

_log = get_logger("curp.replica")

_LOOK_S = 0.1
# Who is asked to stop waits so long for an engine that does not answer.
_ENGINE_S = 5.0
# Engines count in milliseconds.
_TICK_S = 0.002


class RoleRunner:
    """Carries ``follow_and_lead`` out: one loop, in which everything happens to the role.

    What the appender and the lease keeper meet is only noted, and ends the leadership here.
    """

    def __init__(
        self,
        parts: Parts,
        leading: Callable[[Parts, Tenure], LeaderLoops] = LeaderLoops,
        role_changed: Callable[[str], None] = lambda role: None,
    ) -> None:
        """``role_changed``: told of each change, by the runner's loop; not to block."""
        self._parts = parts
        self._make_leading = leading
        self._role_changed = role_changed
        settings = parts.settings
        self._succession = Succession(
            settings.name, parts.incarnation, term_s=settings.tuning.lease_term_s
        )
        self._lease_length = LeaseLength(settings.tuning.lease_term_s)
        self._closing = Once()
        self.follower = EntryApplier(
            settings.name, parts.engine, parts.store, parts.services, parts.hooks, parts.guard
        )
        self._survival = Survival(parts.engine, parts.store.executing)
        self._recovery_steps = RecoverySteps(parts, self.follower, self._survival)
        self._role = Role.STANDBY
        # What it waits for, or why it stopped; empty if neither.
        self.waiting_for = ""
        self.leading: LeaderLoops | None = None
        # What keeps the lease of the number that was taken last, and that number.
        self._keeper: LeadershipKeeper | None = None
        self._number = 0
        self._took_at = 0.0
        self._over = Once()
        self._error: Exception | None = None
        # Why the last leadership was not handed over with everything in the log; None if it was.
        self.not_handed_over: Exception | None = None
        driver = parts.driver
        rule = follow_and_lead(lambda: self._closing.done)
        self._loop = driver.loop("curp-replica", rule, self._step, driver.work(), self._ended)
        self._started = self._stopped = False
        # Once its loop is over.
        self._gone = Once()

    @property
    def role(self) -> str:
        """What the replica does now, a ``Role``."""
        return self._role

    @role.setter
    def role(self, role: str) -> None:
        if role != self._role:
            self._role = role
            self._role_changed(role)

    def start(self) -> None:
        """Begin to follow."""
        self._started = True
        self._loop.start()

    def close(self, unanswered_s: Callable[[], float] = lambda: 0.0) -> bool:
        """End the leadership, if there is one, after what is placed was synced.

        Whether it has ended: it is not waited for if the engine has answered nothing for
        five seconds since it was asked to. ``unanswered_s``: for how long it has not.
        """
        clock = self._parts.driver.clock
        self._closing.end()
        self._over.end()
        if not self._started:
            return True
        began = clock()
        while not self._gone.wait_for(_LOOK_S):
            if min(clock() - began, unanswered_s()) >= _ENGINE_S:
                return False
        self._loop.ended().wait()
        return True

    def leader_bounds(self) -> LeaderBounds:
        """Return the bounds of what a leadership appends."""
        return self._parts.settings.bounds.within(self._parts.engine.limits)

    def hand_over(self) -> None:
        """End this leadership, and do not take the next one for a while."""
        self._succession.let_others_try(self._parts.driver.clock())
        self._over.end()

    def _ended(self, error: Exception | None) -> None:
        """Handle that the replica was closed; it stopped before if it had to."""
        if error is not None:
            self._stop(error)
        elif not self._stopped:
            self.follower.close()
            self._tell_survival()
            self.role = Role.STOPPED
        self._gone.end()

    def _tell_survival(self) -> None:
        try:
            self._survival.tell()
        except LogError:
            return

    # -- steps -----------------------------------------------------------------------------

    def _step(self, step: Any) -> Any:
        do = _STEPS.get(type(step))
        if do is None:
            raise RuntimeError(f"no such step: {step!r}")
        return do(self, step)

    def _begin(self, step: Begin) -> None:
        self.role = Role.STANDBY
        self._parts.picture.begin()

    def _count_handlers(self, step: CountHandlers) -> int:
        return self._parts.store.executing()

    def _say_alive(self, step: TellSurvival) -> None:
        self._survival.tell()

    def _rebuild(self, step: Rebuild) -> None:
        self.follower.rebuild()
        self.waiting_for = ""

    def _apply_more(self, step: ApplyMore) -> bool:
        more = self.follower.apply_more()
        if more:
            self._parts.picture.look_at_tail()
        return more

    def _await_entry(self, step: AwaitEntry) -> bool:
        picture, applied = self._parts.picture, self.follower.state.applied
        left_s = picture.lease_left_s()
        wait_s = min(_LOOK_S, left_s + _TICK_S) if left_s > 0 else _LOOK_S
        tail = self._parts.engine.wait(applied, timeout_s=wait_s)
        picture.followed(tail)
        return tail > applied

    def _expire_keys(self, step: ExpireKeys) -> None:
        self._parts.store.expire_keys()

    def _may_take_over(self, step: MayTakeOver) -> bool:
        parts = self._parts
        leadership = parts.picture.look()
        now = parts.driver.clock()
        parts.store.name_leader(self._succession.leader(leadership))
        standing = self._succession.look(
            leadership, lambda: read_asked_for(parts.engine), now, behind=step.behind
        )
        if standing is FollowerStanding.LED:
            self.waiting_for = ""
        return standing is FollowerStanding.TAKE

    def _name_leader(self, step: NameLeader) -> None:
        parts = self._parts
        parts.store.name_leader(self._succession.leader(parts.picture.look()))

    def _judge(self, step: RoleEnded) -> None:
        replica, error = self._parts.settings.name, step.error
        if step.ending is RoleEnding.STOP:
            if not isinstance(error, LogError | ReplicaStopped):
                _log.error("replica_failed", replica=replica, exc_info=error)
            self._stop(error)
        elif isinstance(error, LeadershipOver):
            _log.warning("stepped_down", replica=replica, error=str(error))
        elif isinstance(error, TrimmedLog):
            _log.info("behind_the_snapshot", replica=replica)
        elif isinstance(error, BeginOver):
            _log.warning("begins_over", replica=replica, error=str(error))

    def _stop(self, error: Exception) -> None:
        self._parts.store.step_down()
        self.role = Role.STOPPED
        self.waiting_for = f"{type(error).__name__}: {error}"
        replica = self._parts.settings.name
        _log.critical("replica_stopped", replica=replica, error=self.waiting_for)
        self._stopped = True

    # -- a leadership: taken, recovered into, served, handed over, ended ----------------------

    def _wait(self, step: VisibleWait) -> Bounded:
        if step.reason != self.waiting_for:
            self.waiting_for = step.reason
            _log.warning("waiting", replica=self._parts.settings.name, reason=step.reason)
        return Bounded(self._closing, step.seconds)

    def _take_leadership(self, step: TakeLeadership) -> int:
        parts, settings = self._parts, self._parts.settings
        over = self._over = Once()
        self._error = self.not_handed_over = None
        if self._closing.done:
            over.end()
        sent_at, length = parts.boottime(), self._lease_length
        asked_s = length.asked_s
        number = parts.engine.take_leadership(parts.incarnation, settings.address, term_s=asked_s)
        length.took(parts.boottime() - sent_at)
        self.role = Role.RECOVERING
        self._number, self._took_at = number, parts.driver.clock()
        _log.info("taking_over", replica=settings.name, configuration=number)
        read_lease = ReadLease(settings.tuning.lease_term_s, drift=settings.tuning.drift)
        read_lease.renewed(sent_at, asked_s)
        self._keeper = LeadershipKeeper(
            parts.engine,
            number,
            read_lease,
            length=length,
            clock=parts.boottime,
            refused=lambda error: self._end(over, error),
            driver=parts.driver,
        )
        self._keeper.start()
        return number

    def _recover(self, step: Recover) -> Nested:
        return Nested(self._recovery(step.number), self._recovery_step)

    def _recovery(self, number: int) -> Rule:
        return (yield from self._recovery_steps.rule(number))

    def _recovery_step(self, step: Any) -> Any:
        """Do a step of the recovery; raises what ended the leadership meanwhile."""
        if self._error is not None:
            raise self._error
        if self._closing.done:
            raise LeadershipOver("the replica is closed")
        return (
            self._wait(step) if isinstance(step, VisibleWait) else self._recovery_steps.step(step)
        )

    def _serve(self, step: TakeCalls) -> None:
        over, keeper = self._over, self._keeper
        leading = self.leading = self._make_leading(
            self._parts,
            self._tenure(step.found, keeper),  # type: ignore[arg-type]  # it is taken
        )
        leading.start(lambda error: self._end(over, error))
        self._began(step.number, step.found)

    def _tenure(self, found: Recovered, keeper: LeadershipKeeper) -> Tenure:
        leader = Leader(
            found.witnesses.configuration,
            found.tail,
            witnessed=bool(found.witnesses.witnesses),
            bounds=self.leader_bounds(),
        )
        return Tenure(self.follower.state, leader, keeper, found.witnesses, found.watch)

    def _began(self, number: int, found: Recovered) -> None:
        """Tell that a leadership serves."""
        replica = self._parts.settings.name
        seconds = self._parts.driver.clock() - self._took_at
        self.role = Role.LEADER
        self.waiting_for = ""
        _log.info(
            "leading",
            replica=replica,
            configuration=number,
            tail=found.tail,
            frozen=found.frozen,
            held=found.held,
            replayed=found.replayed,
            dropped=found.dropped,
            witnesses=list(found.witnesses.witnesses),
            seconds=round(seconds, 3),
        )
        if self._parts.observer is not None:
            self._parts.observer.took_over(
                TakeOver(replica, number, seconds, found.held, found.replayed, found.dropped)
            )

    def _await_end(self, step: AwaitEnd) -> Nested:
        def until_over() -> Rule:
            yield self._over
            return self._error

        return Nested(until_over(), lambda waited: waited)

    def _hand_over(self, step: HandOver) -> Nested | None:
        leading = self.leading
        if leading is None:
            return None

        def handing_over() -> Rule:
            try:
                yield from leading.handing_over()
            except LeadershipOver:
                # Others lead already, with everything that was answered here.
                return
            except (LogError, RiflError) as error:
                # What was answered first may be on the witnesses alone.
                self.not_handed_over = error

        return Nested(handing_over(), leading.step)

    def _give_up(self, step: GiveUp) -> None:
        """Give up: cut off from the witnesses. A replica that reaches one may lead."""
        _log.warning(
            "recovery_given_up",
            replica=self._parts.settings.name,
            configuration=step.number,
            reason=self.waiting_for,
        )
        self._succession.let_others_try(self._parts.driver.clock())

    def _end_leadership(self, step: EndLeadership) -> Nested:
        leading, self.leading = self.leading, None
        self.role = Role.STANDBY
        if not step.knows:
            self._parts.store.step_down()

        def until_ended() -> Rule:
            yield from () if leading is None else leading.stop()
            if (keeper := self._keeper) is not None:
                yield keeper.stop()
                self._survival.stepped_down(self._number, keeper.configuration)
            return self._error

        return Nested(until_ended(), lambda waited: waited)

    def _end_lease(self, step: EndLease) -> None:
        if self._keeper is not None:
            self._parts.engine.end_leadership(self._keeper.configuration)

    def _end(self, over: Once, error: Exception) -> None:
        """Note why the leadership is over; by the appender's loop, or the keeper's."""
        if over is not self._over:
            return
        if self._error is None:
            self._error = error if isinstance(error, LogError) else _broken(error)
        # Nothing more is answered from now on (invariant 4).
        self._parts.store.step_down()
        over.end()


def _broken(error: Exception) -> Exception:
    stopped = ReplicaStopped(f"{type(error).__name__}: {error}")
    stopped.__cause__ = error
    return stopped


_STEPS: dict[type, Callable[[RoleRunner, Any], Any]] = {
    VisibleWait: RoleRunner._wait,
    Begin: RoleRunner._begin,
    CountHandlers: RoleRunner._count_handlers,
    TellSurvival: RoleRunner._say_alive,
    Rebuild: RoleRunner._rebuild,
    ApplyMore: RoleRunner._apply_more,
    AwaitEntry: RoleRunner._await_entry,
    ExpireKeys: RoleRunner._expire_keys,
    MayTakeOver: RoleRunner._may_take_over,
    NameLeader: RoleRunner._name_leader,
    RoleEnded: RoleRunner._judge,
    TakeLeadership: RoleRunner._take_leadership,
    Recover: RoleRunner._recover,
    TakeCalls: RoleRunner._serve,
    AwaitEnd: RoleRunner._await_end,
    HandOver: RoleRunner._hand_over,
    GiveUp: RoleRunner._give_up,
    EndLeadership: RoleRunner._end_leadership,
    EndLease: RoleRunner._end_lease,
}
