"""The one thread of a leadership that writes to its log."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from curp.core.leader import Batch
from curp.log.engine import LogEngine, NewEntry
from curp.log.errors import EngineStopped, EngineUnavailable
from curp.replica.group_store import GroupStore
from lease_server.log import get_logger

__all__ = ["Appender"]

_log = get_logger("curp.replica")
_T = TypeVar("_T")
_RETRY_S = 0.05


class Appender:
    """Appends a leadership's entries, batch by batch, until it is stopped or refused.

    An append whose reply was lost is asked again under the same name, until it is
    known: nothing is placed behind it meanwhile. ``refused`` is called, in this
    thread and once, with whatever ended it (``Deposed``, ``TailMismatch``...).
    """

    def __init__(
        self,
        engine: LogEngine,
        store: GroupStore,
        refused: Callable[[Exception], None],
        fault: Callable[[str], None] | None = None,
    ) -> None:
        self._engine = engine
        self._store = store
        self._refused = refused
        self._fault = fault
        self._stopping = False
        self._jobs: list[tuple[Callable[[], Any], Future[Any]]] = []
        self._thread = threading.Thread(target=self._run, name="curp-appender", daemon=True)
        # Why appends do not succeed now, empty if they do.
        self.trouble = ""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def between(self, job: Callable[[], _T]) -> Future[_T]:
        """Have ``job`` run while no append is under way: for a new configuration number."""
        future: Future[_T] = Future()
        with self._store.work:
            if self._stopping:
                future.set_exception(RuntimeError("the leadership is over"))
                return future
            self._jobs.append((job, future))
            self._store.work.notify_all()
        return future

    def stop(self) -> None:
        """End, after the append under way; what waits is not appended."""
        with self._store.work:
            self._stopping = True
            self._store.work.notify_all()
        if threading.current_thread() is not self._thread and self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                batch = self._next()
                if batch is None:
                    break
                tail = self._append(batch)
                if tail is None:
                    break
                if self._fault is not None:
                    self._fault("appended")
                self._store.committed_batch(batch, tail)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing more is appended
            self._refused(error)
        with self._store.work:
            self._stopping = True
            jobs, self._jobs = self._jobs, []
        for _, future in jobs:
            future.set_exception(RuntimeError("the leadership is over"))

    def _next(self) -> Batch | None:
        """Wait for a batch that is due; None when stopped."""
        store = self._store
        with store.work:
            while True:
                leader = store.leader
                if self._stopping or leader is None:
                    return None
                if self._jobs:
                    job, future = self._jobs.pop(0)
                    store.work.release()
                    try:
                        _do(job, future)
                    finally:
                        store.work.acquire()
                    continue
                due_in_s = leader.due_in(store.now())
                if due_in_s == 0.0:
                    return leader.take()
                store.wait_for_work(due_in_s)

    def _append(self, batch: Batch) -> int | None:
        entries = [NewEntry(placed.what.body) for placed in batch.placed]
        append_id = os.urandom(16)
        leader = self._store.leader
        if leader is None:
            return None
        configuration = leader.configuration
        observer = self._store.observer
        while True:
            began = time.perf_counter()
            try:
                tail = self._engine.append(
                    entries,
                    configuration=configuration,
                    expected_tail=batch.expected_tail,
                    append_id=append_id,
                )
            except EngineStopped:
                raise
            except EngineUnavailable as error:
                if not self.trouble:
                    _log.warning("engine_unavailable", error=str(error))
                self.trouble = str(error)
                if observer is not None:
                    observer.committed(len(entries), time.perf_counter() - began, error)
                with self._store.work:
                    if self._stopping:
                        return None
                    self._store.work.wait(_RETRY_S)
            else:
                if observer is not None:
                    observer.committed(len(entries), time.perf_counter() - began, None)
                if self.trouble:
                    _log.info("engine_back")
                    self.trouble = ""
                return tail


def _do(job: Callable[[], Any], future: Future[Any]) -> None:
    try:
        result = job()
    except Exception as error:  # noqa: BLE001 - for who waits
        future.set_exception(error)
    else:
        future.set_result(result)
