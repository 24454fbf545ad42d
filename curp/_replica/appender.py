"""The appender of a leadership: the one that writes to its log."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from _rifl_ground.log import get_logger
from curp._core.appending import AppendBatch, Appending, Job, LetBegin, Settle, append_all
from curp._core.poison_notes import NoteDown
from curp._replica.driver import Driver
from curp._replica.group_store import GroupStore
from curp._replica.poisoning import note_down
from curp.log._commits import GroupLog
from curp.log._errors import may_pass
from curp.log._values import NewLogEntry
from rifl._stores.pending import Pending
from rifl.core._serving.later import Later
from rifl.core._shared.errors import Deposed

_log = get_logger("curp.replica")


class AppendLoop:
    """Carries ``append_all`` out, until that is over.

    ``refused`` is called, by the loop and once, with whatever ended it (``Deposed``,
    ``TailMismatch``...).
    """

    def __init__(
        self,
        engine: GroupLog,
        store: GroupStore,
        appending: Appending,
        refused: Callable[[Exception], None],
        driver: Driver,
    ) -> None:
        """``appending``: the store's, of this leadership."""
        self._engine = engine
        self._store = store
        self._appending = appending
        self._refused = refused
        rule = append_all(appending, store.now)
        self.loop = driver.loop("curp-appender", rule, self._step, store.work, self._ended)

    @property
    def trouble(self) -> str:
        """Why appends do not succeed now, empty if they do."""
        return self._appending.trouble

    def start(self) -> None:
        """Begin."""
        self.loop.start()

    def between(self, job: Callable[[], Any]) -> Pending:
        """Have ``job`` run while no append is in flight: for a new configuration number.

        Done when it has run, with what it returned.
        """
        pending = Pending()
        with self._store.work:
            taken = self._appending.between((job, pending))
            self._store.work.notify_all()
        if not taken:
            pending.fail(_over())
        return pending

    def stop(self) -> Later:
        """End after the append in flight; waiting entries are not appended. Done when ended."""
        with self._store.work:
            self._appending.stop()
            self._store.work.notify_all()
        return self.loop.ended()

    def append(self, step: AppendBatch) -> int:
        """Ask the engine once; the log's tail then."""
        store, placed = self._store, step.batch.placed
        observer, trouble = store.observer, self.trouble
        began = time.perf_counter()
        try:
            tail = self._engine.append(
                [NewLogEntry(each.what.body) for each in placed],
                configuration=step.configuration,
                expected_tail=step.batch.expected_tail,
                append_id=step.append_id,
            )
        except Exception as error:
            if may_pass(error):
                if not trouble:
                    _log.warning("engine_unavailable", error=str(error))
                if observer is not None:
                    observer.committed(len(placed), time.perf_counter() - began, error)
            raise
        if observer is not None:
            observer.committed(len(placed), time.perf_counter() - began, None)
        if trouble:
            _log.info("engine_back")
        if store.fault is not None:
            store.fault("appended")
        return tail

    def _ended(self, error: Exception | None) -> None:
        if error is not None:
            self._refused(error)
        with self._store.work:
            self._appending.stop()
            jobs = self._appending.undone()
        for _, pending in jobs:
            pending.fail(_over())

    def _step(self, step: Any) -> Any:
        if isinstance(step, AppendBatch):
            return self.append(step)
        if isinstance(step, Settle):
            self._store.committed_batch(step.batch, step.tail)
        elif isinstance(step, NoteDown):
            return note_down(self._engine, step)
        elif isinstance(step, LetBegin):
            if step.ledger is not None:
                self._store.ledger = step.ledger
            self._store.noted()
        elif isinstance(step, Job):
            _do(*step.what)
        else:
            raise RuntimeError(f"no such step: {step!r}")
        return None


def _over() -> Deposed:
    return Deposed("the leadership is over")


def _do(job: Callable[[], Any], pending: Pending) -> None:
    try:
        pending.result = job()
    except Exception as error:  # noqa: BLE001 - for who waits
        pending.fail(error)
    else:
        pending.succeed()
