"""Batches on threads, the caller's own or the background's: the shell around ``BatchRun``."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc

from _rifl_ground.owned_lock import OwnedLock
from rifl._client.answers import CLOSED
from rifl._client.batch import BatchItem, BatchResult, BatchRun, Send
from rifl._client.errors import reentrant
from rifl._client.sync_client import SyncClient

_IN_BACKGROUND = 16


class Batches:
    """Runs a channel's batches. Any thread."""

    def __init__(self, client: SyncClient) -> None:
        self._client = client
        self._callables: dict[str, Any] = {}
        self._lock = OwnedLock(reentrant)
        self._pool: ThreadPoolExecutor | None = None

    def run(
        self, method: str, items: Iterable[BatchItem], timeout: float | None, metadata: Any
    ) -> list[BatchResult]:
        """Run a batch to its end in this thread."""
        begun, woken = self._begin(method, items, timeout, metadata)
        return self._drive(method, begun, woken)

    def submit(
        self, method: str, items: Iterable[BatchItem], timeout: float | None, metadata: Any
    ) -> Future[list[BatchResult]]:
        """Run a batch in a thread of the pool."""
        begun, woken = self._begin(method, items, timeout, metadata)
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_IN_BACKGROUND, "rifl-batch")
            return self._pool.submit(self._drive, method, begun, woken)

    def close(self) -> None:
        """Let the threads go; batches under way end, since the channel is closed."""
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=False)

    def _begin(
        self, method: str, items: Iterable[BatchItem], timeout: float | None, metadata: Any
    ) -> tuple[BatchRun, threading.Event]:
        client, woken = self._client, threading.Event()
        run = BatchRun(client, method, items, timeout, metadata, woken.set)
        return run, woken

    def _drive(self, method: str, run: BatchRun, woken: threading.Event) -> list[BatchResult]:
        try:
            while (step := run.next()) is not None:
                if isinstance(step, Send):
                    self._send(method, run, step)
                    continue
                woken.wait(None if step.until is None else step.until - self._client.now())
                woken.clear()
        except BaseException:
            # Such as KeyboardInterrupt: what was sent may run.
            run.interrupted()
            raise
        return run.results()

    def _send(self, method: str, run: BatchRun, step: Send) -> None:
        inner = self._callables.get(method)
        if inner is None:
            inner = self._callables[method] = self._client.channel.unary_unary(method)
        with contextlib.nullcontext() if step.route is None else step.route:
            try:
                reply = inner(step.body, step.timeout_s, step.metadata)
            except grpc.RpcError as error:
                run.failed(error)  # type: ignore[arg-type]  # gRPC's are calls, too
            except ValueError:
                # What gRPC raises on a closed channel.
                run.failed(CLOSED)
            else:
                run.replied(reply)
