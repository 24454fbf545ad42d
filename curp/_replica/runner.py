"""The runner of a replica: makes it follow, take over, lead and step down (DESIGN §7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from _rifl_ground.log import get_logger
from curp._core.handover import EndLease
from curp._core.housekeeping import ExpireKeys
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
from curp._core.succession import FollowerStanding
from curp._replica.driver import Once
from curp._replica.errors import ReplicaStopped
from curp._replica.leadership_steps import LeadershipSteps
from curp._replica.leading import LeaderLoops
from curp._replica.metadata import read_asked_for
from curp._replica.parts import Parts, Tenure
from curp.log._errors import Deposed, LogError, TrimmedLog

_log = get_logger("curp.replica")

_LOOK_S = 0.1
# Who is asked to stop waits so long for an engine that does not answer.
_ENGINE_S = 5.0
# Engines count in milliseconds.
_TICK_S = 0.002


class RoleRunner(LeadershipSteps):
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
        super().__init__(parts, leading, role_changed)
        driver = parts.driver
        rule = follow_and_lead(lambda: self._closing.done)
        self._loop = driver.loop("curp-replica", rule, self._step, driver.work(), self._ended)
        self._started = self._stopped = False
        # Once its loop is over.
        self._gone = Once()

    def start(self) -> None:
        """Begin to follow."""
        self._started = True
        self._loop.start()

    def close(self, unanswered_s: Callable[[], float] = lambda: 0.0) -> bool:
        """End the leadership, if there is one, after what is placed was synced.

        Whether it has ended: it is not waited for where the engine has answered nothing for
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

    def hand_over(self) -> None:
        """End this leadership, and do not take the next one for a while."""
        self._succession.let_others_try(self._parts.driver.clock())
        self._over.end()

    def _ended(self, error: Exception | None) -> None:
        """Take that the replica was closed; it stopped before if it had to."""
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
        elif isinstance(error, Deposed):
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
