"""The one thread of a leadership that writes to its log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from curp._core.appending import AppendBatch, Appending, Job
from curp._core.notes import NoteDown
from curp._core.rest import Rest
from curp._replica.group_store import GroupStore
from curp._replica.poisoning import note_down
from curp.log._engine import LogEngine, NewEntry
from rifl._log import get_logger

_log = get_logger("curp.replica")
_T = TypeVar("_T")


class Appender:
    """Carries out what ``Appending`` decides, until that is over.

    ``refused`` is called, in this thread and once, with whatever ended it
    (``Deposed``, ``TailMismatch``...).
    """

    def __init__(
        self,
        engine: LogEngine,
        store: GroupStore,
        appending: Appending,
        refused: Callable[[Exception], None],
        fault: Callable[[str], None] | None = None,
    ) -> None:
        """``appending``: the store's, of this leadership."""
        self._engine = engine
        self._store = store
        self._appending = appending
        self._refused = refused
        self._fault = fault
        self._thread = threading.Thread(target=self._run, name="curp-appender", daemon=True)

    @property
    def trouble(self) -> str:
        """Why appends do not succeed now, empty if they do."""
        return self._appending.trouble

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def between(self, job: Callable[[], _T]) -> Future[_T]:
        """Have ``job`` run while no append is under way: for a new configuration number."""
        future: Future[_T] = Future()
        with self._store.work:
            if not self._appending.between((job, future)):
                future.set_exception(RuntimeError("the leadership is over"))
            self._store.work.notify_all()
        return future

    def stop(self) -> None:
        """End, after the append under way; what waits is not appended."""
        with self._store.work:
            self._appending.stop()
            self._store.work.notify_all()
        if threading.current_thread() is not self._thread and self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while (step := self._next()) is not None:
                if isinstance(step, AppendBatch):
                    self._append(step)
                elif isinstance(step, NoteDown):
                    self._note_down(step)
                else:
                    _do(*step.what)
                    with self._store.work:
                        self._appending.done()
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing more is appended
            self._refused(error)
        with self._store.work:
            self._appending.stop()
            jobs = self._appending.undone()
        for _, future in jobs:
            future.set_exception(RuntimeError("the leadership is over"))

    def _next(self) -> AppendBatch | Job | NoteDown | None:
        """Wait until there is something to do; None when it is over."""
        store = self._store
        with store.work:
            while isinstance(step := self._appending.next(store.now()), Rest):
                store.work.wait(step.seconds)
        return step

    def _note_down(self, step: NoteDown) -> None:
        try:
            ledger = note_down(self._engine, step)
        except Exception as error:
            with self._store.work:
                if not self._appending.failed(error, self._store.now()):
                    raise
            return
        if ledger is not None:
            self._store.ledger = ledger
        self._store.noted()

    def _append(self, step: AppendBatch) -> None:
        """Ask the engine once; raises what ends the leadership."""
        store, batch = self._store, step.batch
        observer = store.observer
        trouble = self.trouble
        began = time.perf_counter()
        try:
            tail = self._engine.append(
                [NewEntry(placed.what.body) for placed in batch.placed],
                configuration=step.configuration,
                expected_tail=batch.expected_tail,
                append_id=step.append_id,
            )
        except Exception as error:
            with store.work:
                if not self._appending.failed(error, store.now()):
                    raise
            if not trouble:
                _log.warning("engine_unavailable", error=str(error))
            if observer is not None:
                observer.committed(len(batch.placed), time.perf_counter() - began, error)
            return
        if observer is not None:
            observer.committed(len(batch.placed), time.perf_counter() - began, None)
        if trouble:
            _log.info("engine_back")
        if self._fault is not None:
            self._fault("appended")
        store.committed_batch(batch, tail)


def _do(job: Callable[[], Any], future: Future[Any]) -> None:
    try:
        result = job()
    except Exception as error:  # noqa: BLE001 - for who waits
        future.set_exception(error)
    else:
        future.set_result(result)
