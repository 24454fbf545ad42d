"""Named sessions kept durable: the session table joined to its storage."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from _rifl_ground.log import UNHEARD, Events
from _rifl_ground.refusals import SessionClosed
from _rifl_ground.texts import hides
from lease_server._session_secret import require_owner
from lease_server._session_table import SessionTable
from lease_server._sessions import SessionPolicy, SessionRow, SessionState
from lease_server._storage import SoleLeaseStorage


@hides("token")
class OpenedSession(NamedTuple):
    """An open session; ``created`` is False if the name was open already.

    ``term_s``: within which it must be renewed, or used. ``writer``: whose calls it takes, empty
    if all; if that is not who was to write, there is no token.
    """

    client_id: int
    token: bytes
    retention_s: float
    created: bool
    term_s: float
    writer: bytes = b""


class SessionBook:
    """Opens, closes and expires sessions, durable before visible (DESIGN §5).

    ``open``, ``close``, ``sweep`` and ``load`` take their own lock and block on
    the storage. ``alive``, ``renew`` and ``take_ended`` are called with the lock
    given at construction held, which is never held during I/O. Any thread.
    """

    def __init__(
        self,
        storage: SoleLeaseStorage,
        policy: SessionPolicy,
        *,
        lock: threading.Lock,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        new_id: Callable[[], int],
        unused_s: float = math.inf,
        events: Events = UNHEARD,
    ) -> None:
        """An empty book. ``new_id`` gives ids never granted; it may block.

        ``unused_s``: how long a session is kept that no call was made in.
        """
        self._storage = storage
        self._events = events
        self._policy = policy
        self._lock = lock
        self._clock = clock
        self._wall_clock = wall_clock
        self._new_id = new_id
        self._table = SessionTable(policy, unused_s)
        # One writer at a time: two openers of a name must not both insert it.
        self._writing = threading.Lock()
        self._unwritten: list[SessionRow] = []
        self._unforgotten: list[int] = []
        self._ended: list[int] = []

    def __len__(self) -> int:
        """Names held, open and refused."""
        return len(self._table)

    def load(self, used: Container[int] | None = None) -> set[int]:
        """Take over the storage's sessions; the ids of those that ended.

        ``used``: the ids in which calls were made, None for all.
        """
        rows = self._storage.load_sessions()
        with self._lock:
            self._table.load(rows, self._clock(), self._wall_clock(), used)
        return {row.client_id for row in rows if row.state is not SessionState.OPEN}

    def holds(self, client_id: int) -> bool:
        """Whether the id is a session's, open or ended. Needs no lock."""
        return self._table.holds(client_id)

    def alive(self, client_id: int, now: float) -> bool:
        """Whether the session is open and within its retention."""
        return self._table.alive(client_id, now)

    def renew(self, client_id: int, now: float, *, used: bool = True) -> bool:
        """Restart a session's retention; False if it is not alive."""
        return self._table.renew(client_id, now, used=used)

    def extend(self, now: float) -> None:
        """Restart the retention of every open session; under the lock."""
        self._table.extend(now)

    def open(
        self,
        name: str,
        peer: bytes,
        retention_s: float,
        secret: bytes,
        older: Sequence[bytes] = (),
        source: str = "",
    ) -> tuple[SessionRow, bool]:
        """The open session of that name, and whether this call created it."""
        self._table.check_name(name)
        granted_s = self._policy.retention_s(retention_s)
        with self._writing:
            self._require_owner(name, peer, secret, older)
            with self._lock:
                row = self._table.find(peer, name, self._clock())
                if row is None:
                    self._table.require_room(peer, source)
            fresh = row is None
            if row is None:
                wanted = SessionRow(
                    self._new_id(),
                    name,
                    peer,
                    SessionState.OPEN,
                    granted_s,
                    self._wall_clock(),
                    secret,
                    source,
                )
            else:
                wanted = replace(row, retention_s=max(granted_s, row.retention_s))
            if wanted != row:
                row = self._install(wanted, used=not fresh)
        return opened_row(row, wanted if fresh else None, secret, older, self._events)

    def writer(self, client_id: int) -> bytes:
        """Whose calls the session takes, empty if all. Needs no lock."""
        return self._table.writer(client_id)

    def write(self, client_id: int, writer: bytes, follows: bytes) -> bytes:
        """Have a session take a writer's calls alone, if it takes those of ``follows``.

        Return whose it takes then; raises SessionClosed.
        """
        with self._writing:
            with self._lock:
                row = self._table.row(client_id)
            if row is None or row.state is not SessionState.OPEN:
                raise SessionClosed("the session is closed or past its retention")
            if row.writer == follows != writer:
                row = self._install(replace(row, writer=writer))
        return row.writer

    def close(
        self, name: str, peer: bytes, secret: bytes, older: Sequence[bytes] = ()
    ) -> tuple[int, list[int]]:
        """Close permanently, a numbered session with all below it; return the ids ended now.

        The first is the session's own, or that of the one which ended it before.
        """
        self._table.check_name(name)
        ended: list[SessionRow] = []
        with self._telling("session_closed", ended), self._writing:
            self._require_owner(name, peer, secret, older)
            with self._lock:
                row = self._table.get(peer, name)
                ended_by = self._table.ended_by(peer, name)
                lower = self._table.open_below(peer, name)
            if row is None or row.state is not SessionState.OPEN:
                if row is None and ended_by is None:
                    raise SessionClosed(f"no session {name!r} is known here")
                return (ended_by or 0) if row is None else row.client_id, []
            # The lowest first: a crash in between leaves the rest to be closed again.
            for each in (*lower, row):
                ended.append(self._end(each))
        return ended[-1].client_id, [each.client_id for each in ended]

    def _require_owner(self, name: str, peer: bytes, secret: bytes, older: Sequence[bytes]) -> None:
        """Raise NotYours unless a secret opens the name, which opens by ``secret`` from now on."""
        with self._lock:
            rekeyed = self._table.require_owner(peer, name, secret, older)
        if not rekeyed:
            return
        # Durable first: a failed write leaves the older one, to be shown again.
        self._storage.rekey_sessions(rekeyed, secret)
        with self._lock:
            self._table.rekey(rekeyed, secret)
        self._unwritten = [
            replace(row, secret=secret) if row.client_id in rekeyed else row
            for row in self._unwritten
        ]

    def _end(self, row: SessionRow) -> SessionRow:
        # Durable first: a failed write leaves the session open, to be closed again.
        # And again if another server forgot the name and opened it anew.
        while row.state is SessionState.OPEN:
            row = self._install(
                replace(row, state=SessionState.CLOSED, changed_at_unix_s=self._wall_clock())
            )
        return row

    @contextmanager
    def _telling(self, event: str, rows: list[SessionRow]) -> Iterator[None]:
        """Tell what was done, also before an error: without a lock, as who hears may ask."""
        try:
            yield
        finally:
            for row in rows:
                self._events.info(event, client_id=row.client_id, name=row.name)

    def sweep(self, now: float) -> None:
        """End sessions past their retention and forget names refused long enough.

        A session ends in memory first, then in the storage, and only then is it
        handed to ``take_ended``. Raises StorageUnavailable; what is left is done by
        the next sweep.
        """
        ended: list[SessionRow] = []
        with self._telling("session_expired", ended), self._writing:
            with self._lock:
                expired, forgotten = self._table.expire(now, self._wall_clock())
            self._unwritten += expired
            self._unforgotten += forgotten
            while self._unwritten:
                row = self._unwritten[-1]
                # What stands may be another id's row: that one is not over.
                self._storage.put_session(row)
                self._unwritten.pop()
                with self._lock:
                    self._ended.append(row.client_id)
                ended.append(row)
            while self._unforgotten:
                self._storage.forget_session(self._unforgotten[-1])
                self._unforgotten.pop()

    def take_ended(self) -> list[int]:
        """The sessions whose end became durable since the last time."""
        ended, self._ended = self._ended, []
        return ended

    def _install(self, row: SessionRow, *, used: bool = True) -> SessionRow:
        standing = self._storage.put_session(row)
        with self._lock:
            self._table.put(standing, self._clock(), used=used)
        return standing


def opened_row(
    row: SessionRow,
    wanted: SessionRow | None,
    secret: bytes,
    older: Sequence[bytes],
    events: Events,
) -> tuple[SessionRow, bool]:
    """Return a session's row that stands, and whether it is the new one that was wanted.

    Where another server opened the name first, it is that one's. Raises NotYours, or
    SessionClosed.
    """
    require_owner(row.secret, secret, older)
    if row.state is not SessionState.OPEN:
        raise SessionClosed(f"session {row.name!r} is closed or past its retention")
    created = wanted is not None and row.client_id == wanted.client_id
    if created:
        events.info("session_opened", client_id=row.client_id, name=row.name)
    return row, created
