"""Writes a leadership's entries to its log, batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from chaos.sim.loop import Process, Timer
from curp.core.leader import Batch
from curp.log.engine import LogEngine, NewEntry
from curp.log.errors import EngineUnavailable, LogError
from curp.replica.group_store import GroupStore

__all__ = ["Appender"]

_RETRY_S = 0.05


class Appender:
    """What ``curp.replica.appender`` is a thread for, as events of one leadership."""

    def __init__(
        self,
        process: Process,
        random: Random,
        log: LogEngine,
        store: GroupStore,
        configuration: int,
        refused: Callable[[Exception], None],
    ) -> None:
        self._process = process
        self._random = random
        self._log = log
        self._store = store
        self._refused = refused
        self.configuration = configuration
        self._appending: tuple[Batch, bytes] | None = None
        self._timer: Timer | None = None
        self._stopped = False

    def stop(self) -> None:
        """Append nothing more."""
        self._stopped = True
        self._appending = None

    def crash(self) -> None:
        """Let the append under way arrive at the engine, though nobody hears of it."""
        if self._appending is not None:
            try:
                self._append(*self._appending)
            except LogError:
                return

    def look(self) -> None:
        """Something may be due: the product's appender would be woken."""
        leader = self._store.leader
        if leader is None or self._stopped or self._appending is not None:
            return
        due_in_s = leader.due_in(self._process.clock())
        self._store.appender_rests(due_in_s)
        if due_in_s is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._process.after(due_in_s, self._take)

    def flush(self) -> None:
        """Append everything that waits, now, if the engine answers."""
        while not self._stopped and (leader := self._store.leader) is not None:
            if self._appending is None:
                if leader.due_in(self._process.clock()) is None:
                    self.look()
                    return
                self._appending = leader.take(), self._random.randbytes(16)
            if not self._carry_on(*self._appending):
                return

    def _take(self) -> None:
        self._timer = None
        leader = self._store.leader
        if self._stopped or leader is None or self._appending is not None:
            return
        if leader.due_in(self._process.clock()) is None:
            self.look()
            return
        self._appending = leader.take(), self._random.randbytes(16)
        self._store.appender_looks()
        self._process.after(0.0003 + 0.001 * self._random.random(), self._send)

    def _send(self) -> None:
        if not self._stopped and self._appending is not None and self._carry_on(*self._appending):
            self.look()

    def _carry_on(self, batch: Batch, append_id: bytes) -> bool:
        """Try the append under way; whether it is in the log."""
        try:
            tail = self._append(batch, append_id)
        except EngineUnavailable:
            self._process.after(_RETRY_S, self._send)
            return False
        except LogError as error:
            self._refused(error)
            return False
        self._appending = None
        self._store.committed_batch(batch, tail)
        return True

    def _append(self, batch: Batch, append_id: bytes) -> int:
        return self._log.append(
            [NewEntry(placed.what.body) for placed in batch.placed],
            configuration=self.configuration,
            expected_tail=batch.expected_tail,
            append_id=append_id,
        )
