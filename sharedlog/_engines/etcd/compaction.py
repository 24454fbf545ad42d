"""Compaction of etcd's old revisions, and a word in time where its room runs out."""

from __future__ import annotations

import threading
import time

from sharedlog._engines.etcd.calls import COMPACT, LEASE_GRANT, STATUS
from sharedlog._engines.etcd.client import Client
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb

# etcd keeps what was overwritten or deleted, until it is told to forget it. What is
# newer stays for others of the cluster's users, who may be reading at a revision.
_COMPACTED_AT = 10_000
_KEPT = 1_000
_LOOK_S = 30.0
# A member's file counts what was freed as free with its next write but one, which may never come
# where all that is written waits for that. A lease is the smallest, and goes by itself.
_WRITTEN_EVERY_S = 1.0
_LEASE_S = 2
_NEARLY_FULL = 0.8


class Space:
    """What a leader does about its cluster's room, beside its renewals. Any thread.

    It waits for nothing: the work is done in a thread of its own.
    """

    def __init__(self, client: Client, share: int) -> None:
        """``share``: entries get the quota divided by this, of what is in use."""
        self._client = client
        self._share = share
        # It may be asked for within itself, by a signal's handler: what it guards is whole by then.
        self._lock = threading.RLock()
        self._busy = False
        self._compacted = 0
        # All that was over by then.
        self._forgotten = 0
        self._wrote = 0.0
        self._looked = time.monotonic()

    def moved(self, revision: int, *, trimmed: bool = False) -> None:
        """Note that the cluster is at this revision; ``trimmed``: much was deleted."""
        with self._lock:
            # One counts from the first it hears of.
            self._compacted = self._compacted or revision
            grown = revision - self._compacted >= (_KEPT if trimmed else _COMPACTED_AT)
            compacts = self._client.address.compact and (grown or trimmed)
            looks = time.monotonic() >= self._looked + _LOOK_S
            if self._busy or not (compacts or looks):
                return
            self._busy = True
            if compacts:
                self._compacted = revision
        self._start(revision - _KEPT if compacts else 0, looks=looks)

    def make_room(self, revision: int) -> None:
        """Have all forgotten that was over by this revision: there is no room for more.

        Asked again, it has the members count what that freed.
        """
        with self._lock:
            if self._busy or not self._client.address.compact:
                return
            writes = revision <= self._forgotten
            if writes and time.monotonic() < self._wrote + _WRITTEN_EVERY_S:
                return
            self._busy = True
            self._wrote = time.monotonic()
            if not writes:
                self._compacted = self._forgotten = revision
        self._start(0 if writes else revision, looks=False, writes=writes)

    def _start(self, revision: int, *, looks: bool, writes: bool = False) -> None:
        threading.Thread(
            target=self._work, args=(revision, looks, writes), name="log-etcd-space", daemon=True
        ).start()

    def _work(self, revision: int, looks: bool, writes: bool) -> None:
        try:
            if revision > 0:
                self._client.call(COMPACT, pb.CompactionRequest(revision=revision), again=False)
            if writes:
                self._client.call(LEASE_GRANT, pb.LeaseGrantRequest(ttl=_LEASE_S), again=False)
            if looks:
                self._look()
        except self._client.owner.errors as error:
            # Such as: another client compacted further, or it is not allowed. It is asked again.
            self._forgotten = 0
            self._client.owner.events.info(
                "log_not_compacted", log=str(self._client.address), error=str(error)
            )
        finally:
            with self._lock:
                self._busy = False

    def _look(self) -> None:
        found = self._client.call(STATUS, pb.StatusRequest(), again=False)
        self._looked = time.monotonic()
        quota = self._client.address.quota_bytes
        used = max(found.db_size, self._share * found.db_size_in_use)
        if used >= _NEARLY_FULL * quota or found.errors:
            self._client.owner.events.warning(
                "log_store_nearly_full",
                log=str(self._client.address),
                bytes=found.db_size,
                bytes_in_use=found.db_size_in_use,
                quota_bytes=quota,
                errors=list(found.errors),
                cost=f"entries get {100 // self._share} % of the quota, and beyond it etcd refuses "
                "every write: trim, compact, defragment",
            )
