"""Rules of groups, each broken on purpose (DESIGN §7)."""

from __future__ import annotations

import unittest.mock
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from chaos.sim.group_client import GroupPath
from curp._core import (
    handover,
    read_lease,
    recovery,
    steps,
)
from curp._core.group_call import AttemptStep, GroupCall
from curp._core.leader import Leader, LeaderBounds, Speed
from curp._core.poison import Case, Ledger
from curp._core.read_lease import ReadLease
from curp._core.state import GroupState, Witnessed
from curp._core.steps import Sync
from curp._core.witness_table import WitnessMode, WitnessTable, WitnessVerdict
from curp._replica import (
    group_engine,
    group_store,
    leading,
    lease_keeper,
    recovery_steps,
)
from curp._replica.follower import EntryApplier
from curp._replica.group_store import GroupStore
from curp._replica.proposals import Proposals
from curp._replica.survival import Survival
from curp._wire.entries import entry_to_bytes
from curp.client._messages import with_number
from rifl._stores.pending import Pending
from rifl.core._shared.errors import Deposed
from tests.chaos import call_mutations as calls
from tests.chaos.broken import replaced

__all__ = [
    "collected_before_synced",
    "conflicts_ignored_by_witnesses",
    "deaths_not_counted",
    "final_without_witnesses",
    "groups_by_name",
    "late_start_believed",
    "lease_ended_before_reads",
    "newer_leader_saves",
    "nothing_replayed",
    "older_version_goes_on",
    "other_leader_syncs",
    "read_lease_for_ever",
    "read_lease_from_the_reply",
    "read_lease_without_margin",
    "recovered_in_one_append",
    "refusal_not_logged",
    "refused_by_a_group_means_will_not",
    "replay_not_filtered",
    "restarted_witness_believed",
    "skipped_under_a_number",
    "speed_without",
    "stepped_down_has_died",
    "suspects_set_aside",
    "unlogged_read",
    "versions_not_logged",
    "waiting_answers_kept",
    "witness_not_frozen",
]


def final_without_witnesses() -> AbstractContextManager[Any]:
    return unittest.mock.patch.object(GroupCall, "_judge", return_value=AttemptStep.FINAL)


def conflicts_ignored_by_witnesses() -> AbstractContextManager[Any]:
    original = WitnessTable._judge

    def judge(self: WitnessTable, *arguments: Any) -> WitnessVerdict:
        verdict = original(self, *arguments)
        return WitnessVerdict.ACCEPTED if verdict is WitnessVerdict.CONFLICT else verdict

    return unittest.mock.patch.object(WitnessTable, "_judge", judge)


def witness_not_frozen() -> AbstractContextManager[Any]:
    original = WitnessTable._judge

    def judge(self: WitnessTable, *arguments: Any) -> WitnessVerdict:
        verdict = original(self, *arguments)
        return WitnessVerdict.ACCEPTED if verdict is WitnessVerdict.FROZEN else verdict

    return unittest.mock.patch.object(WitnessTable, "_judge", judge)


def restarted_witness_believed() -> AbstractContextManager[Any]:
    def may_freeze(self: WitnessTable, group: str, configuration: int) -> WitnessVerdict:
        if self.mode is WitnessMode.UNLISTED:
            # It says that it holds nothing.
            self.group, self.configuration = group, configuration
            self.mode = WitnessMode.FROZEN
        return WitnessVerdict.ACCEPTED

    return unittest.mock.patch.object(WitnessTable, "may_freeze", may_freeze)


def groups_by_name() -> AbstractContextManager[Any]:
    def by_name(judge: Callable[..., WitnessVerdict]) -> Callable[..., WitnessVerdict]:
        def judged(self: WitnessTable, group: str, *arguments: Any, **more: Any) -> WitnessVerdict:
            same = group.partition("@")[0] == self.group.partition("@")[0]
            return judge(self, self.group if same else group, *arguments, **more)

        return judged

    judges = {name: by_name(getattr(WitnessTable, name)) for name in ("may_start", "may_freeze")}
    return unittest.mock.patch.multiple(WitnessTable, **judges)


def late_start_believed() -> AbstractContextManager[Any]:
    def may_freeze(self: WitnessTable, group: str, configuration: int) -> WitnessVerdict:
        if self.mode is WitnessMode.UNLISTED or configuration < self.configuration:
            return WitnessVerdict.OTHER_CONFIGURATION
        # It was started under a lower number, in this life: it says that it holds nothing.
        self.configuration = configuration
        return WitnessVerdict.ACCEPTED

    return unittest.mock.patch.object(WitnessTable, "may_freeze", may_freeze)


def speed_without(*ignored: Speed) -> Callable[[], AbstractContextManager[Any]]:
    original = Leader._speed

    def speed(self: Leader, keys: Any, wish: Any) -> Speed:
        found = original(self, keys, wish)
        return Speed.FAST if found in ignored else found

    return replaced(Leader, "_speed", speed)


def skipped_under_a_number() -> AbstractContextManager[Any]:
    def unrecorded(self: GroupPath, header: tuple[str, bytes]) -> tuple[str, bytes]:
        view = self.knowledge.view
        return header if view is None else (header[0], with_number(header[1], view.number_field))

    return unittest.mock.patch.object(GroupPath, "unrecorded", unrecorded)


def nothing_replayed() -> AbstractContextManager[Any]:
    original = recovery._freeze_one

    def freeze_one(*arguments: Any) -> Any:
        found = yield from original(*arguments)
        return found and (found[0], [])

    return unittest.mock.patch.object(recovery, "_freeze_one", freeze_one)


def recovered_in_one_append() -> AbstractContextManager[Any]:
    def unbounded(*arguments: Any, **keywords: Any) -> Any:
        return recovery.recover(*arguments, **{**keywords, "bounds": LeaderBounds()})

    return unittest.mock.patch.object(recovery_steps, "recover", unbounded)


def replay_not_filtered() -> AbstractContextManager[Any]:
    original = GroupState.witnessed

    def witnessed(self: GroupState, call: Any) -> Witnessed:
        found = original(self, call)
        return Witnessed.FRESH if found is Witnessed.KNOWN else found

    return unittest.mock.patch.object(GroupState, "witnessed", witnessed)


def other_leader_syncs() -> AbstractContextManager[Any]:
    return unittest.mock.patch.object(GroupCall, "sync_answered", return_value=AttemptStep.FINAL)


def waiting_answers_kept() -> AbstractContextManager[Any]:
    original = Pending.fail

    def fail(self: Pending, error: Exception) -> None:
        if isinstance(error, Deposed):
            self.succeed()
        else:
            original(self, error)

    return unittest.mock.patch.object(Pending, "fail", fail)


def deaths_not_counted() -> AbstractContextManager[Any]:
    return unittest.mock.patch.object(Ledger, "died", lambda self, *arguments, **more: self)


def stepped_down_has_died() -> AbstractContextManager[Any]:
    return unittest.mock.patch.object(Survival, "stepped_down")


@contextmanager
def suspects_set_aside() -> Iterator[None]:
    """What ran when a leader died has no answer, whether all witnesses held it or not."""

    def never(*arguments: Any) -> Iterator[Any]:
        return False
        yield

    with (
        unittest.mock.patch.object(recovery, "_may_be_final", never),
        unittest.mock.patch.object(Case, "condemned", return_value=True),
    ):
        yield


def versions_not_logged() -> AbstractContextManager[Any]:
    original = GroupStore._write

    def write(self: GroupStore, *arguments: Any) -> Any:
        write = original(self, *arguments)
        entry = write.entry._replace(application_version=0)
        return write._replace(entry=entry, body=entry_to_bytes(entry))

    return unittest.mock.patch.object(GroupStore, "_write", write)


def newer_leader_saves() -> AbstractContextManager[Any]:
    return unittest.mock.patch.object(GroupState, "may_save", return_value=True)


def older_version_goes_on() -> AbstractContextManager[Any]:
    return unittest.mock.patch.object(EntryApplier, "_require")


def read_lease_for_ever() -> AbstractContextManager[Any]:
    return unittest.mock.patch.multiple(
        ReadLease, valid=lambda self, now: True, over=lambda self, now: False
    )


def read_lease_without_margin() -> AbstractContextManager[Any]:
    original = ReadLease.__init__

    def init(self: ReadLease, term_s: float, *, drift: float = 0.05) -> None:
        original(self, term_s, drift=1e-9)

    return unittest.mock.patch.object(ReadLease, "__init__", init)


def read_lease_from_the_reply() -> AbstractContextManager[Any]:
    original = read_lease.keep_lease

    def keep_lease(lease: ReadLease, length: Any, clock: Any, over: Any) -> Any:
        class FromTheReply:
            end, over = lease.end, lease.over

            def renewed(self, sent_at: float, asked_s: float) -> None:
                lease.renewed(clock(), asked_s)

        return original(FromTheReply(), length, clock, over)  # type: ignore[arg-type]

    return unittest.mock.patch.object(lease_keeper, "keep_lease", keep_lease)


def lease_ended_before_reads() -> AbstractContextManager[Any]:
    def hand_over(clock: Any) -> Any:
        yield handover.EndLease()
        yield steps.VisibleWait("whoever reads here", 0.5)
        yield handover.RefuseCalls()
        yield Sync()
        yield handover.StepDown()

    def stop(self: lease_keeper.LeadershipKeeper) -> Any:
        # What is read by the lease goes on until the leadership has ended.
        self._over.end()
        return self._loop.ended()

    stack = ExitStack()
    stack.enter_context(unittest.mock.patch.object(leading, "hand_over", hand_over))
    stack.enter_context(unittest.mock.patch.object(lease_keeper.LeadershipKeeper, "stop", stop))
    return stack


def unlogged_read() -> AbstractContextManager[Any]:
    return unittest.mock.patch.object(Leader, "conflict", return_value=0)


def collected_before_synced() -> AbstractContextManager[Any]:
    original = WitnessTable.record

    def record(self: WitnessTable, *arguments: Any) -> WitnessVerdict:
        verdict = original(self, *arguments)
        held, self._calls, self._keys = self._calls, {}, set()
        self._keyless = self._bytes = 0
        del held
        return verdict

    return unittest.mock.patch.object(WitnessTable, "record", record)


def refusal_not_logged() -> AbstractContextManager[Any]:
    # Kept on both sides: the leader does not say it, neither of a call that it refuses nor of a
    # client whose removal is not in the log, and the client does not believe it.
    original = GroupCall.leader_answered

    def leader_answered(self: GroupCall, answer: Any) -> AttemptStep:
        step = original(self, answer)
        return AttemptStep.FINAL if step in (AttemptStep.UNKNOWN, AttemptStep.AGAIN) else step

    stack = ExitStack()
    for owner, name, value in (
        (GroupCall, "leader_answered", leader_answered),
        (group_store, "not_by_log", lambda error, call: error),
        (group_engine, "not_by_log", lambda error, call: error),
        (Proposals, "known", lambda self, client_id: False),
    ):
        stack.enter_context(unittest.mock.patch.object(owner, name, value))
    return stack


@contextmanager
def refused_by_a_group_means_will_not() -> Iterator[None]:
    # What a leader refuses for the moment, the client takes for unknown by another rule, too.
    with refusal_not_logged(), calls.refused_means_will_not():
        yield
