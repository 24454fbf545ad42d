"""Takes snapshots, and trims the log behind them (invariant 8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chaos.sim.group.steps import LATER, Drive, Shell, Steps
from curp._core.compaction import Copy, GoOn, Halt, Save, Trim, compact
from curp._core.leader import Leader
from curp._core.turns import Turn
from curp._wire import snapshot_to_chunks
from rifl._stores.pending import Pending

__all__ = ["Compacting"]

_TURN_S = 5.0


class Compacting(Steps):
    """What ``curp._replica.snapshots`` blocks for, as events of one leadership."""

    def __init__(
        self,
        replica: Shell,
        over: Callable[[], bool],
        configuration: Callable[[], int],
        *,
        every: int,
        kept_behind: int,
    ) -> None:
        super().__init__(replica, over)
        self._configuration = configuration
        self._every = every
        self._kept_behind = kept_behind
        self._leader: Leader | None = replica.store.leader
        self._newest = replica.state.applied
        self._taking = False
        self._turn: Turn | None = None
        self._copied: tuple[list[Any], bytes] = [], b""
        self.table |= {
            Halt: self._halt,
            Copy: self._copy,
            GoOn: self._go_on,
            Save: self._save,
            Trim: self._trim,
        }

    def due(self) -> bool:
        """Whether the log has grown enough for the next one."""
        return self.replica.state.applied - self._newest >= self._every

    def begin(self) -> None:
        """Take a snapshot now, unless one is being taken."""
        if not (self._taking or self.over()):
            self._taking = True
            self.carry_out(compact(self._kept_behind), self._taken, self._not_taken)

    def _taken(self, lsn: int | None) -> None:
        self._end("no snapshot now" if lsn is None else f"snapshot at {lsn}")
        if lsn is not None:
            self._newest = lsn

    def _not_taken(self, error: Exception) -> None:
        self._end(f"no snapshot: {error}")

    def _end(self, text: str) -> None:
        self._taking = False
        self._give_back()
        self.replica.world.trace(self.replica.process.name, text)

    def _give_back(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            self.replica.store.give_back(turn)

    def _halt(self, step: Halt, drive: Drive) -> Any:
        asked = self.replica.store.ask_exclusively()
        if asked is None:
            return False
        self._turn, pending = asked
        if pending is None:
            return True
        process, turn = self.replica.process, self._turn

        def over() -> None:
            if self._turn is turn and not pending.done:
                self._give_back()
                drive.go_on(False)

        def come(done: Pending) -> None:
            if self._turn is turn:
                process.after(0.0, drive.go_on, done.error is None)

        process.after(_TURN_S, over)
        pending.add_callback(come)
        return LATER

    def _copy(self, step: Copy, drive: Drive) -> int | None:
        replica = self.replica
        services = replica.machine.snapshot()
        if replica.store.leader is not self._leader:
            return None
        self._copied = list(replica.state.dump()), services
        return replica.state.applied

    def _go_on(self, step: GoOn, drive: Drive) -> None:
        self._give_back()

    def _save(self, step: Save, drive: Drive) -> None:
        self.replica.log.save_snapshot(
            step.lsn, snapshot_to_chunks(*self._copied), configuration=self._configuration()
        )
        self.pass_by("saved")

    def _trim(self, step: Trim, drive: Drive) -> None:
        self.replica.log.trim(step.through, configuration=self._configuration())
        self.pass_by("trimmed")
