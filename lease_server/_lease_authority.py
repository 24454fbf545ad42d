"""The lease authority of one server: leases in its memory, the rest in its storage (§5)."""

from __future__ import annotations

from collections.abc import Sequence

from lease_server._authority import Grant
from lease_server._errors import StorageUnavailable
from lease_server._holders import Room, holder_of
from lease_server._sessionbook import SessionBook
from lease_server._sessions import SessionRow
from lease_server._storage import NOTHING, Acknowledgements, SoleLeaseStorage, Standing
from lease_server._storage_authority import StorageAuthority
from lease_server._tokens import writer_of


class LeaseAuthority(StorageAuthority[SoleLeaseStorage]):
    """``Authority`` of one server: who is alive is in its memory.

    ``check``, ``renew``, ``alive``, ``is_session`` and ``release`` never wait for
    the storage: the lock they take is never held during I/O. ``grant``, sessions and
    ``expire`` wait for it. What a crash leaves: reserved ids that are never granted, the
    secrets, the sessions, and the clients that were granted: each gets a full new term.

    Invariants:

    1. No id outside a durably reserved block is granted, and none twice.
    2. A renewal that returned True keeps its id out of ``expire`` for a term.
    3. Every id is returned by ``expire`` at most once in a lifetime of the object,
       and a session's only after its end is durable.
    4. No id is told before its client is durably known.
    """

    # Heartbeats and releases never wait for the storage.
    blocks = False

    def _begin(self) -> None:
        self._drops: list[int] = []
        self._book = SessionBook(
            self._storage,
            self._policy,
            lock=self._lock,
            clock=self._clock,
            wall_clock=self._wall_clock,
            new_id=lambda: self._blocks.take(self._table.take_id),
            unused_s=self.term_s,
            events=self._events,
        )
        self.recover()

    def __len__(self) -> int:
        """Leases held, without sessions."""
        return len(self._table)

    def recover(self) -> None:
        """Load the sessions, and give every known client a full term.

        The constructor has done this; calling again before anyone is served is
        harmless. Sessions are not clients: they keep their own retention, and the
        ids of ended ones that still have a row come out of the next ``expire``, so
        a crash between closing and dropping leaves nothing behind.
        """
        # Negative ids are the server's own (namespaces of keys): they have no lease.
        known = {client_id for client_id in self._storage.known_clients() if client_id > 0}
        holders = self._storage.holders()
        ended = self._book.load(known)
        with self._lock:
            now = self._clock()
            self._drops = sorted(known & ended)
            clients = {client_id for client_id in known if not self._book.holds(client_id)}
            self._table.recover(clients, now, holders)
        self._events.info("recovered", clients=len(clients), sessions=len(self._book))

    def extend(self) -> None:
        """Give every lease and session that ``expire`` has not returned a full new term.

        After a time in which no client could be served or renew: late is
        safe. Never waits for the storage.
        """
        with self._lock:
            now = self._clock()
            self._table.extend(now)
            self._book.extend(now)

    def grant(self, peer: bytes = b"", *, source: str = "") -> Grant:
        """A new client, which a crash forgets no more; waits for the storage."""
        holder = holder_of(peer, source)
        client_id = self._blocks.take(lambda: self._grant_id(holder, source))
        try:
            self._storage.register(client_id, holder)
        except StorageUnavailable:
            # No client was told of it. Its row may exist, or come yet.
            self._release(client_id)
            raise
        return self._granted(client_id, peer)

    def renew(self, client_id: int, now: float | None = None) -> bool:
        """Extend a lease by a term, or restart a session's retention; True if alive.

        To be asked for every accepted call, in place of ``alive``: an ``alive``
        that was true may be followed by an ``expire`` at once.
        """
        lock = self._lock
        # Not ``with``, which costs more than the lock: this is asked for every call.
        lock.acquire()
        try:
            at = self._clock() if now is None else now
            return self._table.renew(client_id, at) or self._book.renew(client_id, at)
        finally:
            lock.release()

    def alive(self, client_id: int, now: float | None = None) -> bool:
        """Whether the id's lease runs, or it is an open session."""
        with self._lock:
            at = self._clock() if now is None else now
            return self._table.alive(client_id, at) or self._book.alive(client_id, at)

    def is_session(self, client_id: int) -> bool:
        """Whether the id is a named session's: keyed identities only. Also if it ended."""
        return self._book.holds(client_id)

    def writes(self, client_id: int, token: bytes) -> bool:
        """Whether a session takes calls by this token: of its writer, if it has one."""
        return writer_of(token) == self._book.writer(client_id)

    def close_session(
        self, name: str, peer: bytes = b"", secret: bytes = b"", *, older: Sequence[bytes] = ()
    ) -> int:
        """Close permanently and durably; return the id, as the next ``expire`` does."""
        client_id, ended_now = self._book.close(name, peer, secret, older)
        with self._lock:
            self._drops += ended_now
        return client_id

    def expire(self, now: float | None = None) -> list[int]:
        """The ids whose records must be dropped now, ascending, each once; see ``Authority``.

        Expired and released clients, and sessions whose end is durable. It writes the ends of
        sessions and looks for a rotated secret.
        """
        at = self._clock() if now is None else now
        try:
            self._signer.refresh(at)
            self._book.sweep(at)
        except StorageUnavailable as error:
            self._events.warning("storage_unavailable", error=str(error))
        with self._lock:
            ids = self._drops + self._book.take_ended() + self._table.expire(at)
            self._drops = []
        return sorted(ids)

    def _beat(self, client_id: int, acknowledged: Acknowledgements) -> Standing:
        return self._beats(((client_id, acknowledged),))[0]

    def _beats(self, beats: Sequence[tuple[int, Acknowledgements]]) -> list[Standing]:
        # In one turn of the lock, which every call takes.
        with self._lock:
            now = self._clock()
            # It keeps a session that no call was made in for one more term, and no longer.
            alive = [
                self._table.renew(client_id, now) or self._book.renew(client_id, now, used=False)
                for client_id, _ in beats
            ]
        # Not under the lock, which the store's own is held around.
        for (client_id, acknowledged), lives in zip(beats, alive, strict=True):
            if lives and acknowledged != NOTHING:
                self._storage.acknowledge(client_id, acknowledged)
        return [
            Standing.ALIVE if lives else self._ended(client_id)
            for (client_id, _), lives in zip(beats, alive, strict=True)
        ]

    def _ended(self, client_id: int) -> Standing:
        return Standing.CLOSED if self.is_session(client_id) else Standing.UNKNOWN

    def _release(self, client_id: int) -> None:
        with self._lock:
            if self._table.remove(client_id):
                self._drops.append(client_id)

    def _open(
        self,
        name: str,
        peer: bytes,
        retention_s: float,
        secret: bytes,
        older: Sequence[bytes],
        source: str,
    ) -> tuple[SessionRow, bool]:
        return self._book.open(name, peer, retention_s, secret, older, source)

    def _write(self, client_id: int, writer: bytes, follows: bytes) -> bytes:
        return self._book.write(client_id, writer, follows)

    def _grant_id(self, holder: bytes, source: str) -> int:
        """One grant, under the lock."""
        now = self._clock()
        if self._room(holder) is not Room.FREE:
            # The last sweep may be long ago: do not count the dead.
            self._drops += self._table.expire(now)
            self._bounds.require(self._room(holder), source)
        return self._table.grant(now, holder)

    def _room(self, holder: bytes) -> Room:
        return self._bounds.room(len(self._table), self._table.held_by(holder))
