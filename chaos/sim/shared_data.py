"""A shared store's data and atomic steps: the contract of ``shared.requests``, in memory.

This stands for Redis's scripts and PostgreSQL's statements. Acknowledgements are
``rifl.core``'s own tracker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rifl.core.call import Call
from rifl.core.completed_set import CompletedSet
from rifl.core.policy import Kind
from rifl.stores.shared.requests import (
    Abandon,
    Beat,
    Beats,
    Claim,
    Claimed,
    Ending,
    Finish,
    Finished,
    Found,
    Look,
    TakeBack,
)

__all__ = ["Attempted", "Client", "SharedData"]


class Attempted:
    """A call that runs on some replica."""

    __slots__ = ("fingerprint", "kind", "owner", "token", "waiting")

    def __init__(self, claim: Claim) -> None:
        self.token = claim.token
        self.owner = claim.owner
        self.kind = claim.kind
        self.fingerprint = claim.call.fingerprint or b""
        self.waiting: list[str] = []


class Client:
    """A client's row, with its calls. ``state``: client, session, closed or over."""

    __slots__ = ("acknowledged", "bytes_kept", "done", "due", "length_s", "running", "state")

    def __init__(self, length_s: float, due: float, state: str = "client") -> None:
        self.length_s = length_s
        self.due = due
        self.state = state
        self.acknowledged = CompletedSet(max_ranges=1024)
        self.running: dict[int | bytes, Attempted] = {}
        # Fingerprint and record.
        self.done: dict[int | bytes, tuple[bytes, bytes]] = {}
        self.bytes_kept = 0

    @property
    def alive(self) -> bool:
        """Whether its lease, or its session, has not ended."""
        return self.state in ("client", "session")

    def known(self) -> int:
        """How many calls are in progress or recorded."""
        return len(self.running) + len(self.done)


class SharedData:
    """What a store keeps. ``wake(owner, token)`` publishes that an attempt ended."""

    def __init__(self, clock: Callable[[], float], wake: Callable[[str, bytes], None]) -> None:
        self._clock = clock
        self._wake = wake
        self.clients: dict[int, Client] = {}
        self.beats: dict[str, int] = {}

    def carry_out(self, request: Any) -> Any:
        """Carry a request out, in one atomic step."""
        if isinstance(request, Claim):
            return self._claim(request)
        if isinstance(request, Beat):
            return self._beat(request)
        if isinstance(request, TakeBack):
            self._end(Abandon(request.call, request.token))
            return self._clock()
        return self._end(request)

    def renew(self, client: Client) -> None:
        """Give a lease its full length again."""
        client.due = self._clock() + client.length_s

    def ended(self, client: Client, identity: int | bytes) -> Attempted:
        """Take an attempt out and wake who waits for it."""
        attempt = client.running.pop(identity)
        for owner in attempt.waiting:
            self._wake(owner, attempt.token)
        return attempt

    def _claim(self, claim: Claim) -> Claimed:
        call = claim.call
        identity = call.identity
        if claim.until_s is not None and self._clock() > claim.until_s:
            return Claimed(Found.LATE)
        client = self.clients.get(call.client_id)
        if client is None:
            return Claimed(Found.UNKNOWN_CLIENT)
        attempt = client.running.get(identity)
        if attempt is not None:
            return self._running(claim, client, attempt)
        kept = client.done.get(identity)
        if kept is not None:
            if _differs(call, kept[0]):
                return Claimed(Found.MISMATCH)
            self._seen(client, call)
            return Claimed(Found.COMPLETED, record=kept[1], verified=bool(kept[0]))
        if client.state == "closed":
            return Claimed(Found.CLOSED)
        if client.state == "over":
            return Claimed(Found.UNKNOWN_CLIENT)
        if call.key is not None:
            self.renew(client)
            if claim.refusing:
                return Claimed(Found.REFUSING)
            if client.known() >= claim.max_keys or client.bytes_kept >= claim.max_key_bytes:
                return Claimed(Found.WINDOW)
            client.bytes_kept += len(call.key)
            return self._begin(claim, client)
        if client.state == "session":
            return Claimed(Found.NEEDS_KEY)
        if _within(identity, client.acknowledged):
            return Claimed(Found.STALE)
        self._seen(client, call)
        if claim.refusing:
            return Claimed(Found.REFUSING)
        if client.known() >= claim.window:
            return Claimed(Found.WINDOW)
        return self._begin(claim, client)

    def _running(self, claim: Claim, client: Client, attempt: Attempted) -> Claimed:
        call = claim.call
        if _differs(call, attempt.fingerprint):
            return Claimed(Found.MISMATCH)
        self._seen(client, call)
        if attempt.token == claim.token:
            return Claimed(Found.NEW)
        if attempt.token == claim.take_over:
            self.ended(client, call.identity)
            if not claim.lost:
                return self._begin(claim, client)
            self._complete(client, call.identity, attempt.fingerprint, claim.lost)
            return Claimed(Found.COMPLETED, record=claim.lost, verified=bool(attempt.fingerprint))
        if attempt.owner != claim.owner and claim.owner not in attempt.waiting:
            attempt.waiting.append(claim.owner)
        return Claimed(Found.RUNNING, attempt.token, attempt.owner, attempt.kind)

    @staticmethod
    def _begin(claim: Claim, client: Client) -> Claimed:
        client.running[claim.call.identity] = Attempted(claim)
        return Claimed(Found.NEW)

    def _seen(self, client: Client, call: Call) -> None:
        """Renew the lease of a client that is alive, and apply its acknowledgements."""
        if not client.alive:
            return
        self.renew(client)
        if call.key is not None:
            return
        acknowledged = client.acknowledged
        acknowledged.advance_to(call.first_incomplete)
        for first, last in call.completed:
            acknowledged.add(first, last)
        for seq in [each for each in client.done if _within(each, acknowledged)]:
            del client.done[seq]
        for seq in [each for each in client.running if _within(each, acknowledged)]:
            self.ended(client, seq)

    @staticmethod
    def _complete(client: Client, identity: int | bytes, fingerprint: bytes, record: bytes) -> None:
        client.done[identity] = fingerprint, record
        if isinstance(identity, bytes):
            client.bytes_kept += len(record)

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
                self._complete(client, identity, fingerprint, request.record)
            elif isinstance(identity, bytes):
                client.bytes_kept -= len(identity)
            if not client.alive and not client.running:
                client.done.clear()
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
        if client is None or not client.alive:
            return Finished(Ending.GONE)
        if _within(identity, client.acknowledged):
            return Finished(Ending.ACKNOWLEDGED)
        return Finished(Ending.FENCED)

    def _beat(self, beat: Beat) -> Beats:
        if beat.leaving:
            self.beats.pop(beat.owner, None)
        else:
            self.beats[beat.owner] = self.beats.get(beat.owner, 0) + 1
        for owner, count in beat.dead:
            if self.beats.get(owner) == count:
                del self.beats[owner]
        return Beats(dict(self.beats), self._clock())

    def is_current(self, call: Call, token: bytes, kind: Kind) -> bool:
        """Whether an attempt may still commit: what an atomic transaction is fenced by."""
        client = self.clients.get(call.client_id)
        attempt = None if client is None else client.running.get(call.identity)
        return attempt is not None and attempt.token == token and attempt.kind is kind


def _within(identity: int | bytes, acknowledged: CompletedSet) -> bool:
    return isinstance(identity, int) and identity in acknowledged


def _differs(call: Call, known: bytes) -> bool:
    return bool(call.fingerprint) and bool(known) and call.fingerprint != known
