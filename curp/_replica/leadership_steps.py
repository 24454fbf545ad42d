"""The steps of a leadership: taken, recovered into, served, handed over, ended (DESIGN §7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from _rifl_ground.log import get_logger
from curp._core.handover import EndLease
from curp._core.leader import Leader, LeaderBounds
from curp._core.read_lease import LeaseLength, ReadLease
from curp._core.recovery import Recovered
from curp._core.role import (
    AwaitEnd,
    EndLeadership,
    GiveUp,
    HandOver,
    Recover,
    Role,
    TakeCalls,
    TakeLeadership,
)
from curp._core.steps import VisibleWait
from curp._core.succession import Succession
from curp._replica.driver import Bounded, Nested, Once, Rule
from curp._replica.errors import ReplicaStopped
from curp._replica.follower import EntryApplier
from curp._replica.leading import LeaderLoops
from curp._replica.lease_keeper import LeadershipKeeper
from curp._replica.parts import Parts, Tenure
from curp._replica.recovery_steps import RecoverySteps
from curp._replica.survival import Survival
from curp.log._errors import Deposed, LogError
from curp.observer import TakeOver
from rifl.core._shared.errors import RiflError

_log = get_logger("curp.replica")


class LeadershipSteps:
    """The part of ``Runner`` that does what a leadership asks for, and what it says of itself."""

    def __init__(
        self,
        parts: Parts,
        leading: Callable[[Parts, Tenure], LeaderLoops],
        role_changed: Callable[[str], None],
    ) -> None:
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

    @property
    def role(self) -> str:
        """What the replica does now, a ``Role``."""
        return self._role

    @role.setter
    def role(self, role: str) -> None:
        if role != self._role:
            self._role = role
            self._role_changed(role)

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
            raise Deposed("the replica is closed")
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

    def leader_bounds(self) -> LeaderBounds:
        """Return the bounds of what a leadership appends."""
        return self._parts.settings.bounds.within(self._parts.engine.limits)

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
            except Deposed:
                # Others lead already, with everything that was answered here.
                return
            except (LogError, RiflError) as error:
                # What was answered first may be on the witnesses alone.
                self.not_handed_over = error

        return Nested(handing_over(), leading.step)

    def _give_up(self, step: GiveUp) -> None:
        """Cut off from the witnesses: whoever reaches one may lead."""
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
