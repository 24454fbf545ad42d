"""Notes what a replica replays, and keeps it from what killed others (invariant 12)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from _rifl_ground.log import get_logger
from curp._core.entries import Operation
from curp._core.poison import LOGGED, Case, Ledger
from curp._core.replay_notes import ReplayNote, ReplayNotes, Stretch
from curp._core.role import BeginOver, CannotApply
from curp._replica.poisoning import await_decision, read_ledger, update_ledger
from curp._wire.entries import entry_from_bytes
from curp._wire.metadata import replays_from_bytes, replays_to_bytes
from curp.log._commits import GroupLog
from curp.log._errors import ConditionFailed, LeadershipOver, LogError
from curp.log._values import MetadataCondition
from rifl.core._shared.identity import RpcId

_log = get_logger("curp.replica")
_REPLAYS_KEY = "curp-replaying"
_TRIES = 20


class ReplayGuard:
    """Of one process of a replica; in the replica's thread.

    ``before`` is asked in front of each entry while the replica catches up, and after that
    only where an entry is condemned; else following costs nothing.
    """

    def __init__(
        self,
        engine: GroupLog,
        replica: str,
        process: str,
        bound: int,
        saw: Callable[[Ledger], None] = lambda ledger: None,
    ) -> None:
        """``process``: no other one's. ``bound``: so many deaths, and it is not replayed."""
        self._engine = engine
        self._replica = replica
        self._process = process
        self._bound = bound
        self._saw = saw
        self._condemned: dict[int, Case] = {}
        self._replays = ReplayNotes()
        self._target = self._through = 0
        # The snapshot that it began with, and what was left out since.
        self._base = 0
        self.skipped: set[int] = set()
        # Whether later entries ran on top of one that was left out.
        self._without: set[int] = set()
        self._noted = False
        self.active = False

    def begin(self, applied: int) -> None:
        """Begin to replay behind an entry. Raises ``LogError``."""
        self._base = applied
        self.skipped, self._without = set(), set()
        self._target = self._engine.tail()
        stretch: Stretch | None = None

        def begun(replays: ReplayNotes) -> ReplayNotes:
            nonlocal stretch
            after, stretch = replays.died(self._replica, self._process)
            return after

        if self._target > applied or self._read().notes:
            self._update(begun)
            if stretch is not None:
                self._count(stretch)
        self.look()
        self._through = applied
        self.active = self._target > applied or bool(self._condemned)

    def look(self) -> None:
        """Read which entries are condemned. Raises ``LogError``."""
        ledger = read_ledger(self._engine)
        self._saw(ledger)
        self._condemned = {
            case.lsn: case
            for case in ledger.cases
            if case.lsn > self._base and case.condemned(self._bound)
        }

    def before(self, lsn: int, entry: object) -> bool:
        """Note, if need be, that an entry is about to be applied; False to leave it out.

        Raises ``CannotApply`` in front of one that killed others, ``BeginOver``, ``LogError``.
        """
        case = self._condemned.get(lsn)
        if case is not None and isinstance(entry, Operation):
            if not case.who:
                self._wait(lsn, case)
                case = self._condemned[lsn]
            self.skipped.add(lsn)
            self._without.add(lsn)
            _log.warning("entry_left_out", lsn=lsn, call=str(case.rpc_id), who=case.who)
            return False
        if lsn > self._through and lsn <= self._target:
            self._note(lsn - 1)
        elif lsn > self._target and self._noted:
            self.end(lsn - 1)
        return True

    def strict(self) -> bool:
        """Whether answers are compared: not if the log ran on top of what was left out."""
        return not self._without

    def set_aside(self, lsn: int) -> None:
        """Take the entry that says of an earlier one that it is left out.

        Raises ``BeginOver`` if this replica has its effect.
        """
        if lsn > self._base and lsn not in self.skipped:
            raise BeginOver(f"LSN {lsn} was set aside, and this replica has its effect")
        self._without.discard(lsn)

    def require(self, ledger: Ledger, applied: int) -> None:
        """Raise ``BeginOver`` if this replica has an effect that an operator gave up."""
        for case in ledger.cases:
            given_up = bool(case.who) and self._base < case.lsn <= applied
            if given_up and case.lsn not in self.skipped:
                raise BeginOver(f"LSN {case.lsn} was set aside, and this replica has its effect")

    def end(self, applied: int) -> None:
        """Note that the replica has caught up. Raises ``LogError``."""
        if self._noted:
            self._update(lambda replays: replays.caught_up(self._replica, applied))
            self._noted = False
        self.active = bool(self._condemned)

    def close(self) -> None:
        """Leave no note: this process does not die in what it replays."""
        if self._noted:
            with contextlib.suppress(LogError):
                self._update(lambda replays: replays.without(self._replica))
            self._noted = False

    def _wait(self, lsn: int, case: Case) -> None:
        """Raise ``CannotApply`` unless an operator has spoken, or a snapshot has the entry."""
        self.close()
        self._through = lsn - 1
        self.look()
        case = self._condemned.get(lsn, case)
        if case.who:
            return
        snapshot = self._engine.load_snapshot()
        if snapshot is not None and snapshot.lsn >= lsn:
            raise BeginOver(f"a snapshot at {snapshot.lsn} has the effect of LSN {lsn}")
        if not case.awaited:
            self._saw(await_decision(self._engine, self._number(), case.rpc_id))
        raise CannotApply(
            f"an operator, or a snapshot: {case.deaths} processes died replaying LSN {lsn}, "
            f"{case.rpc_id} ({case.method}), which was answered; see curp poison"
        )

    def _note(self, applied: int) -> None:
        self._replays = self._read()
        self._through = self._replays.stop(applied, self._target)
        note = ReplayNote(self._replica, self._process, applied, self._through)
        self._update(lambda replays: replays.noted(note))
        self._noted = True

    def _count(self, stretch: Stretch) -> None:
        """Count a death: of an entry, where nothing else can have been it."""
        _log.warning(
            "died_replaying", replica=self._replica, after=stretch.after, through=stretch.through
        )
        if not stretch.single:
            return
        (found,) = self._engine.read(stretch.after, limit=1)
        entry = entry_from_bytes(found.lsn, found.body)
        if not isinstance(entry, Operation):
            return
        case = Case(
            RpcId(entry.client_id, entry.seq, entry.key), entry.method, LOGGED, lsn=found.lsn
        )
        now_us = time.time_ns() // 1000
        update_ledger(
            self._engine,
            self._number(),
            lambda ledger: ledger.died([case], now_us, at_least=stretch.deaths),
        )

    def _read(self) -> ReplayNotes:
        return replays_from_bytes(self._engine.metadata(_REPLAYS_KEY))

    def _update(self, change: Callable[[ReplayNotes], ReplayNotes]) -> None:
        for _ in range(_TRIES):
            before = self._engine.metadata(_REPLAYS_KEY)
            found = replays_from_bytes(before)
            replays = self._replays = change(found)
            if replays == found:
                return
            after = replays_to_bytes(replays) if replays != ReplayNotes() else None
            try:
                # Not the leader's own: under whatever number there is.
                self._engine.put_metadata(
                    {_REPLAYS_KEY: after},
                    configuration=self._number(),
                    condition=MetadataCondition(_REPLAYS_KEY, before),
                )
            except (ConditionFailed, LeadershipOver):
                continue
            return
        raise LeadershipOver("the group's configuration changes all the time")

    def _number(self) -> int:
        leadership = self._engine.leadership()
        return 0 if leadership is None else leadership.configuration
