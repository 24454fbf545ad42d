"""Writes a leadership's entries to its log, batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from chaos.sim.loop import Process, Timer
from curp._core.appending import AppendBatch, Appending, Job
from curp._core.notes import NoteDown
from curp._core.rest import Rest
from curp._replica.group_store import GroupStore
from curp._replica.poisoning import note_down
from curp.log._engine import LogEngine, NewEntry
from curp.log._errors import LogError

__all__ = ["Appender"]


class Appender:
    """What ``curp._replica.appender`` is a thread for, as events of one leadership."""

    def __init__(
        self,
        process: Process,
        random: Random,
        log: LogEngine,
        store: GroupStore,
        refused: Callable[[Exception], None],
    ) -> None:
        self._process = process
        self._random = random
        self._log = log
        self._store = store
        self._refused = refused
        self._timer: Timer | None = None
        self._stopped = False

    def stop(self) -> None:
        """Append nothing more."""
        self._stopped = True

    def crash(self) -> None:
        """Let the append under way arrive at the engine, though nobody hears of it."""
        appending = self._appending
        if appending is not None and appending.under_way is not None:
            try:
                self._append(appending.under_way)
            except LogError:
                return

    def look(self) -> None:
        """Something may be due: the product's appender would be woken."""
        if self._appending is not None:
            self._look_in(0.0)

    def flush(self) -> None:
        """Append everything that waits, now, if the engine answers."""
        while (appending := self._appending) is not None:
            step = appending.under_way or appending.next(self._process.clock())
            if isinstance(step, NoteDown):
                self._note_down(step)
                continue
            if not isinstance(step, AppendBatch):
                self.look()
                return
            if not self._carry_on(appending, step):
                return

    @property
    def _appending(self) -> Appending | None:
        return None if self._stopped else self._store.appending

    def _look_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._process.after(seconds, self._take)

    def _take(self) -> None:
        self._timer = None
        appending = self._appending
        step = None if appending is None else appending.next(self._process.clock())
        if isinstance(step, AppendBatch):
            self._process.after(0.0003 + 0.001 * self._random.random(), self._send, step)
        elif isinstance(step, NoteDown):
            self._process.after(0.0003, self._note_down, step)
        elif appending is not None and isinstance(step, Job):
            step.what()
            appending.done()
            self.look()
        elif isinstance(step, Rest) and step.seconds is not None:
            self._look_in(step.seconds)

    def _note_down(self, step: NoteDown) -> None:
        appending = self._appending
        if appending is None:
            return
        try:
            note_down(self._log, step)
        except LogError as error:
            if not appending.failed(error, self._process.clock()):
                self._refused(error)
        else:
            self._store.noted()
        self.look()

    def _send(self, step: AppendBatch) -> None:
        appending = self._appending
        # It may be in the log already, by a flush.
        if appending is not None and appending.under_way is step:
            self._carry_on(appending, step)
            self.look()

    def _carry_on(self, appending: Appending, step: AppendBatch) -> bool:
        """Try the append under way; whether it is in the log."""
        try:
            tail = self._append(step)
        except LogError as error:
            if appending.failed(error, self._process.clock()):
                self.look()
            else:
                self._refused(error)
            return False
        self._store.committed_batch(step.batch, tail)
        return True

    def _append(self, step: AppendBatch) -> int:
        return self._log.append(
            [NewEntry(placed.what.body) for placed in step.batch.placed],
            configuration=step.configuration,
            expected_tail=step.batch.expected_tail,
            append_id=step.append_id,
        )
