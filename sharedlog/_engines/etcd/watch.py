"""A watch of etcd's, which tells that the log's head was written."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import grpc

from sharedlog._core.errors import CorruptLog
from sharedlog._engines.etcd.client import Client
from sharedlog._engines.etcd.keys import EtcdHead, Keys, after_all
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb

_PAUSE_S = 0.2
_DEAF_S = 1.0


class Watch:
    """Learns of appends by a watch of the log's head. Any thread.

    What it tells is a hint: it may miss writes while it looks for a node, and a node
    that hangs tells nothing. Its thread begins with the first wait.

    ``news``: by which revision there may be entries that were not there before.
    """

    def __init__(self, client: Client, keys: Keys) -> None:
        """``keys``: the log's."""
        self._client = client
        self._head, own = keys.head, keys.key("")
        gone = [pb.WatchCreateRequest.NOPUT]
        self._watched = [
            pb.WatchCreateRequest(key=self._head),
            pb.WatchCreateRequest(key=own, range_end=after_all(own), filters=gone),
        ]
        # Taken and given back by C: a signal's exception may leave a condition's own taken.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self.news = 0
        self._stirs = 0
        # How many of the watches have begun in the stream.
        self._begun = 0
        # Through which revision it told of the key.
        self._through = 0
        self._thread: threading.Thread | None = None
        self._stream: Any = None
        self._node = 0
        # Since when it should have told something.
        self._missed_at = math.inf

    @property
    def stirs(self) -> int | None:
        """How often something was told, None while it does not hear; see ``Stirring``.

        Of the log's own keys that they are gone, as at their terms' ends: all other changes but
        renewed terms write the head.
        """
        return self._stirs if self._begun == len(self._watched) else None

    def wait(self, revision: int, timeout_s: float) -> bool:
        """Wait for news of after a revision, or the timeout; return whether there are any."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log-etcd", daemon=True)
                self._thread.start()
            self._changed.wait_for(
                lambda: self.news > revision or self._client.closing.is_set(), timeout_s
            )
            return self.news > revision

    def check(self, revision: int) -> None:
        """Check the watch: the key was written by a revision.

        A moment late is no wonder. One that says nothing for a while is given up, and
        so is its node.
        """
        with self._lock:
            if self._through >= revision or self._stream is None:
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
                self._begun = 0
                ended.set()
            self._client.closing.wait(_PAUSE_S)

    def _listen(self, ended: threading.Event) -> None:
        node, stream = self._client.watch(self._watched, ended)
        with self._lock:
            self._node, self._stream = node, stream
        tail: int | None = None
        for response in stream:
            if response.canceled:
                stream.cancel()
                return
            before, revision = tail, response.header.revision
            if response.events:
                newest = response.events[-1].kv
                if newest.key != self._head:
                    self._stirs += 1
                    continue
                revision, tail = newest.mod_revision, _tail_of(newest.value)
            with self._lock:
                self._stirs += 1
                self._begun += response.created
                self._through = max(revision, self._through)
                self._missed_at = math.inf
                if response.events and tail == before:
                    # Of a commit without entries.
                    continue
                # Also that it begins is news: what was written before is not told.
                self.news = max(revision, self.news)
                self._changed.notify_all()


def _tail_of(head: bytes) -> int:
    try:
        return EtcdHead.read(head).tail
    except CorruptLog:
        # Those who wait find out.
        return -1
