"""Model of the world: a shared store's data, held against Redis and PostgreSQL by a test.

This stands for Redis's scripts and PostgreSQL's statements, and a test has all three
answer the same requests. Acknowledgements are ``rifl.core``'s own tracker.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from lease_server._storage import Acknowledgements
from lease_server._tokens import writer_of
from rifl._stores.shared.requests import (
    MOST_LIVED_S,
    Abandon,
    Beats,
    Claim,
    Claimed,
    CountBeat,
    Ending,
    Finish,
    Finished,
    FinishUnclaimed,
    Found,
    Look,
    LookAtClient,
    RecordUnclaimed,
    SeenClient,
    TakeBack,
)
from rifl.core._serving.namespace import is_namespace
from rifl.core._serving.policy import Kind
from rifl.core._shared.call import Call
from rifl.core._shared.completed_set import CompletedSet

__all__ = ["Attempted", "Client", "SharedData"]

# How old a call of a namespace has to be to be taken for lost with its replica.
_LATE_S = 60.0


class Attempted:
    """A call that runs on some replica."""

    __slots__ = ("claimed_at", "fingerprint", "kind", "owner", "retention_s", "token", "waiting")

    def __init__(self, claim: Claim, retention_s: float | None, now: float) -> None:
        self.token = claim.token
        self.owner = claim.owner
        self.kind = claim.kind
        self.fingerprint = claim.call.fingerprint or b""
        self.retention_s = retention_s
        self.claimed_at = now
        self.waiting: list[str] = []


class Client:
    """A client's row, with its calls. ``state``: client, session, namespace, closed or over."""

    __slots__ = (
        "acknowledged",
        "bytes_kept",
        "done",
        "due",
        "ends",
        "full_s",
        "keys",
        "length_s",
        "running",
        "state",
        "writer",
    )

    def __init__(self, length_s: float, due: float, state: str = "client") -> None:
        self.length_s = length_s
        self.due = due
        self.state = state
        self.writer = b""
        # A session's retention until a call is made in it, then 0.
        self.full_s = 0.0
        self.acknowledged = CompletedSet(max_ranges=1024)
        self.running: dict[int | bytes, Attempted] = {}
        # Fingerprint and record.
        self.done: dict[int | bytes, tuple[bytes, bytes]] = {}
        # Keys that run or are recorded, and their bytes and their records'.
        self.keys = 0
        self.bytes_kept = 0
        # When the records of keyed calls may be let go.
        self.ends: dict[bytes, float] = {}

    @property
    def alive(self) -> bool:
        """Whether its lease, or its session, has not ended; a namespace has neither."""
        return self.state in ("client", "session", "namespace")

    def sequenced(self) -> int:
        """How many sequenced calls are in progress or recorded."""
        return len(self.running) + len(self.done) - self.keys

    def forget(self) -> None:
        """Drop all records."""
        self.done.clear()
        self.ends.clear()


class SharedData:
    """What a store keeps. ``wake(owner, token)`` publishes that an attempt ended."""

    def __init__(self, clock: Callable[[], float], wake: Callable[[str, bytes], None]) -> None:
        self._clock = clock
        self._wake = wake
        self.clients: dict[int, Client] = {}
        self.beats: dict[str, int] = {}
        # The time that was lived through, and whose clock moves it.
        self.lived_s = 0.0
        self._sweeper = ""
        self._reading_s = 0.0

    def carry_out(self, request: Any) -> Any:
        """Carry a request out, in one atomic step."""
        if isinstance(request, Claim):
            return self._claim(request)
        if isinstance(request, CountBeat):
            return self._beat(request)
        if isinstance(request, LookAtClient):
            client = self.clients.get(request.client_id)
            if client is None:
                return None
            known = client.acknowledged
            return SeenClient(b"", known.first_incomplete, known.ranges())
        if isinstance(request, TakeBack):
            self._end(Abandon(request.call, request.token))
            return self._clock()
        if isinstance(request, RecordUnclaimed):
            return self._record_unclaimed(request)
        if isinstance(request, FinishUnclaimed):
            return self._finish_unclaimed(request)
        return self._end(request)

    def renew(self, client: Client) -> None:
        """Give a lease its full length again; a namespace has none."""
        if client.state != "namespace":
            client.due = self._clock() + client.length_s

    def ended(self, client: Client, identity: int | bytes) -> Attempted:
        """Take an attempt out and wake who waits for it."""
        attempt = client.running.pop(identity)
        for owner in attempt.waiting:
            self._wake(owner, attempt.token)
        return attempt

    def expire_keys(self, lost: bytes, limit: int) -> int:
        """Drop keyed calls whose retention is over; see ``Backend``."""
        now, gone = self._clock(), 0
        for client_id, client in list(self.clients.items()):
            ends = client.ends.items()
            over = [key for key, end in ends if end <= self.lived_s][: limit - gone]
            for key in over:
                del client.ends[key]
                self._freed(client, key, client.done.pop(key)[1])
            gone += len(over)
            if client.state == "namespace":
                self._end_lost(client, lost, now)
                if not client.running and not client.done:
                    del self.clients[client_id]
        return gone

    def drop(self, client_id: int) -> None:
        """Remove a client's row and records, even while a call of it runs."""
        client = self.clients.pop(client_id, None)
        if client is not None:
            for identity in list(client.running):
                self.ended(client, identity)

    def _end_lost(self, client: Client, lost: bytes, now: float) -> None:
        """End the calls of a namespace whose replicas are gone: no lease of it does."""
        for key, attempt in list(client.running.items()):
            if attempt.owner in self.beats or attempt.claimed_at >= now - _LATE_S:
                continue
            self.ended(client, key)
            if attempt.kind is Kind.PLAIN:
                self._complete(client, key, attempt, attempt.fingerprint, lost)
            else:
                self._freed(client, key)

    def _claim(self, claim: Claim) -> Claimed:
        call = claim.call
        identity = call.identity
        if claim.until_s is not None and self._clock() > claim.until_s:
            return Claimed(Found.LATE)
        client = self.clients.get(call.client_id)
        if client is None:
            if not is_namespace(call.client_id):
                return Claimed(Found.UNKNOWN_CLIENT)
            client = Client(0.0, math.inf, "namespace")
        attempt = client.running.get(identity)
        if attempt is not None:
            return self._running(claim, client, attempt)
        kept = client.done.get(identity)
        if kept is not None:
            if _differs(call, kept[0]):
                return Claimed(Found.MISMATCH)
            self._seen(client, call)
            return Claimed(Found.COMPLETED, record=kept[1], verified=bool(kept[0]))
        if not client.alive or _another_writes(client, call):
            return Claimed(_refused(client))
        if call.key is not None:
            if client.full_s:
                # The first call made in a session: kept for its retention from now on.
                client.length_s, client.full_s = client.full_s, 0.0
            self.renew(client)
            if claim.refusing:
                return Claimed(Found.REFUSING)
            if client.keys >= claim.max_keys or client.bytes_kept >= claim.max_key_bytes:
                return Claimed(Found.WINDOW)
            self.clients[call.client_id] = client
            client.keys += 1
            client.bytes_kept += len(call.key)
            return self._begin(claim, client)
        if client.state == "session":
            return Claimed(Found.NEEDS_KEY)
        if _within(identity, client.acknowledged):
            return Claimed(Found.STALE)
        self._seen(client, call)
        if claim.refusing:
            return Claimed(Found.REFUSING)
        if client.sequenced() >= claim.window:
            return Claimed(Found.WINDOW)
        return self._begin(claim, client)

    def _record_unclaimed(self, request: RecordUnclaimed) -> Finished:
        call, identity = request.call, request.call.identity
        client = self.clients.get(call.client_id)
        if client is None or client.state != "client":
            return Finished(Ending.GONE)
        if identity in client.running or identity in client.done:
            return Finished(Ending.FENCED)
        if self._was_acknowledged(client, identity):
            return Finished(Ending.FENCED)
        known = (*client.running, *client.done)
        kept = [each for each in known if isinstance(each, int) and not _acknowledges(call, each)]
        if len(kept) >= request.window:
            return Finished(Ending.FENCED)
        self._seen(client, call)
        client.done[identity] = call.fingerprint or b"", request.record
        return Finished(Ending.DONE)

    def _finish_unclaimed(self, request: FinishUnclaimed) -> Finished:
        call, identity = request.call, request.call.identity
        client = self.clients.get(call.client_id)
        kept = None if client is None else client.done.get(identity)
        if kept is not None and not _differs(call, kept[0]):
            same = kept[1] == request.record
            return Finished(Ending.DONE) if same else Finished(Ending.STANDS, kept[1])
        if client is not None and (kept is not None or identity in client.running):
            return Finished(Ending.FENCED)
        if client is None or client.state != "client":
            return Finished(Ending.GONE)
        if self._was_acknowledged(client, identity):
            return Finished(Ending.ACKNOWLEDGED)
        self._seen(client, call)
        if client.sequenced() >= request.window:
            return Finished(Ending.FENCED)
        client.done[identity] = call.fingerprint or b"", request.record
        return Finished(Ending.DONE)

    def _was_acknowledged(self, client: Client, identity: int | bytes) -> bool:
        return _within(identity, client.acknowledged)

    def _running(self, claim: Claim, client: Client, attempt: Attempted) -> Claimed:
        call = claim.call
        if _differs(call, attempt.fingerprint):
            return Claimed(Found.MISMATCH)
        self._seen(client, call)
        if attempt.token == claim.token:
            return Claimed(Found.NEW)
        if attempt.token == claim.take_over:
            if not claim.lost:
                if not client.alive or _another_writes(client, call):
                    return Claimed(_refused(client))
                if claim.refusing:
                    return Claimed(Found.REFUSING)
                self.ended(client, call.identity)
                return self._begin(claim, client)
            self.ended(client, call.identity)
            self._complete(client, call.identity, attempt, attempt.fingerprint, claim.lost)
            return Claimed(Found.COMPLETED, record=claim.lost, verified=bool(attempt.fingerprint))
        if attempt.owner != claim.owner and claim.owner not in attempt.waiting:
            attempt.waiting.append(claim.owner)
        return Claimed(Found.RUNNING, attempt.token, attempt.owner, attempt.kind)

    def _begin(self, claim: Claim, client: Client) -> Claimed:
        # What a session keeps, it keeps as long as it lives.
        retention_s = None if client.state == "session" else claim.retention_s
        client.running[claim.call.identity] = Attempted(claim, retention_s, self._clock())
        return Claimed(Found.NEW)

    def _seen(self, client: Client, call: Call) -> None:
        """Renew the lease of a client that is alive, and apply its acknowledgements."""
        if not client.alive:
            return
        self.renew(client)
        if call.key is None:
            self.acknowledge(client, call)

    def acknowledge(self, client: Client, told: Call | Acknowledgements) -> None:
        """Apply what a call's header, or a renewal, acknowledges."""
        acknowledged = client.acknowledged
        acknowledged.advance_to(told.first_incomplete)
        for first, last in told.completed:
            acknowledged.add(first, last)
        for seq in [each for each in client.done if _within(each, acknowledged)]:
            del client.done[seq]
        for seq in [each for each in client.running if _within(each, acknowledged)]:
            self.ended(client, seq)

    def _complete(
        self,
        client: Client,
        identity: int | bytes,
        attempt: Attempted,
        fingerprint: bytes,
        record: bytes,
    ) -> None:
        client.done[identity] = fingerprint, record
        if isinstance(identity, bytes):
            client.bytes_kept += len(record)
            if attempt.retention_s is not None:
                client.ends[identity] = self.lived_s + MOST_LIVED_S + attempt.retention_s

    @staticmethod
    def _freed(client: Client, identity: int | bytes, record: bytes = b"") -> None:
        if isinstance(identity, bytes):
            client.keys -= 1
            client.bytes_kept -= len(identity) + len(record)

    def _end(self, request: Finish | Abandon | Look) -> Finished:
        call = request.call
        identity = call.identity
        client = self.clients.get(call.client_id)
        attempt = None if client is None else client.running.get(identity)
        if client is not None and attempt is not None:
            if attempt.token != request.token:
                return Finished(Ending.FENCED)
            if isinstance(request, Look):
                return Finished(Ending.DONE)
            self.ended(client, identity)
            if isinstance(request, Finish):
                fingerprint = call.fingerprint or attempt.fingerprint
                self._complete(client, identity, attempt, fingerprint, request.record)
            else:
                self._freed(client, identity)
            if not client.alive and not client.running:
                client.forget()
                if client.state == "over":
                    del self.clients[call.client_id]
            return Finished(Ending.DONE)
        kept = None if client is None else client.done.get(identity)
        if kept is not None:
            if isinstance(request, Finish) and kept[1] == request.record:
                return Finished(Ending.DONE)
            return Finished(Ending.STANDS, kept[1])
        if not isinstance(request, Finish):
            return Finished(Ending.DONE)
        if is_namespace(call.client_id):
            return Finished(Ending.FENCED)
        if client is None or not client.alive:
            return Finished(Ending.GONE)
        if _within(identity, client.acknowledged):
            return Finished(Ending.ACKNOWLEDGED)
        return Finished(Ending.FENCED)

    def _beat(self, beat: CountBeat) -> Beats:
        if beat.leaving:
            self.beats.pop(beat.owner, None)
        else:
            self.beats[beat.owner] = self.beats.get(beat.owner, 0) + 1
        for owner, count in beat.dead:
            if self.beats.get(owner) == count:
                del self.beats[owner]
        if not beat.leaving:
            self._live(beat)
        return Beats(dict(self.beats), self._clock())

    def _live(self, beat: CountBeat) -> None:
        if self._sweeper == beat.owner:
            self.lived_s += max(0.0, min(MOST_LIVED_S, beat.reading_s - self._reading_s))
        elif self._sweeper in self.beats:
            return
        self._sweeper, self._reading_s = beat.owner, beat.reading_s

    def is_current(self, call: Call, token: bytes, kind: Kind) -> bool:
        """Whether an attempt may still commit: what an atomic transaction is fenced by."""
        client = self.clients.get(call.client_id)
        attempt = None if client is None else client.running.get(call.identity)
        return attempt is not None and attempt.token == token and attempt.kind is kind


def _within(identity: int | bytes, acknowledged: CompletedSet) -> bool:
    return isinstance(identity, int) and identity in acknowledged


def _acknowledges(call: Call, seq: int) -> bool:
    return seq < call.first_incomplete or any(
        first <= seq <= last for first, last in call.completed
    )


def _differs(call: Call, known: bytes) -> bool:
    return bool(call.fingerprint) and bool(known) and call.fingerprint != known


def _another_writes(client: Client, call: Call) -> bool:
    """Whether a session takes another writer's calls alone."""
    return client.state == "session" and client.writer != writer_of(call.token)


def _refused(client: Client) -> Found:
    """Why a client gets no new call: it is not alive, or a session that another writes."""
    return Found.CLOSED if client.state in ("closed", "session") else Found.UNKNOWN_CLIENT
