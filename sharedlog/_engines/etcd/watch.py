"""A watch of etcd's, which tells that a key was written."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import grpc

from sharedlog._core.errors import CorruptLog
from sharedlog._engines.etcd.client import Client
from sharedlog._engines.etcd.keys import EtcdHead

_PAUSE_S = 0.2
_DEAF_S = 1.0


class Watch:
    """Counts the appends that a watch of the log's head tells of. Any thread.

    What it tells is a hint: it may miss writes while it looks for a node, and a node
    that hangs tells nothing. Its thread begins with the first wait.
    """

    def __init__(self, client: Client, head: bytes) -> None:
        """``head``: the key."""
        self._client = client
        self._key = head
        # Taken and given back by C: a signal's exception may leave a condition's own taken.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._count = 0
        self._thread: threading.Thread | None = None
        self._stream: Any = None
        self._node = 0
        # Since when it should have told something.
        self._missed_at = math.inf

    @property
    def count(self) -> int:
        """How often something was told so far."""
        return self._count

    def wait(self, count: int, timeout_s: float) -> bool:
        """Wait until more than ``count`` was told, or the timeout passes; return whether it was."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log-etcd", daemon=True)
                self._thread.start()
            self._changed.wait_for(
                lambda: self._count > count or self._client.closing.is_set(), timeout_s
            )
            return self._count > count

    def missed(self, count: int) -> None:
        """Check the watch: the key was written, and ``count`` was told by then.

        A moment late is no wonder. One that says nothing for a while is given up, and
        so is its node.
        """
        with self._lock:
            if self._count > count or self._stream is None:
                self._missed_at = math.inf
                return
            now = time.monotonic()
            self._missed_at = min(self._missed_at, now)
            if now < self._missed_at + _DEAF_S:
                return
            self._missed_at = math.inf
            stream, node = self._stream, self._node
        self._client.leave(node)
        stream.cancel()

    def close(self) -> None:
        """End all waits, once the client is closing; idempotent."""
        with self._lock:
            self._changed.notify_all()

    def _run(self) -> None:
        while not self._client.closing.is_set():
            ended = threading.Event()
            try:
                self._listen(ended)
            except (grpc.RpcError, ValueError):
                # Of a node that crashed, or of a channel that is being closed.
                self._client.leave(self._node)
            except self._client.owner.errors:
                self._client.leave(self._node)
            finally:
                ended.set()
            self._client.closing.wait(_PAUSE_S)

    def _listen(self, ended: threading.Event) -> None:
        node, stream = self._client.watch(self._key, ended)
        with self._lock:
            self._node, self._stream = node, stream
        tail = -1
        for response in stream:
            if response.canceled:
                stream.cancel()
                return
            if response.events:
                before, tail = tail, _tail_of(response.events[-1].kv.value)
                if tail == before:
                    # Of a commit without entries.
                    continue
            # Also that it begins is told: what was written before is not.
            with self._lock:
                self._count += 1
                self._missed_at = math.inf
                self._changed.notify_all()


def _tail_of(head: bytes) -> int:
    try:
        return EtcdHead.read(head).tail
    except CorruptLog:
        # Those who wait find out.
        return -1
