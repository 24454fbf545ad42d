"""The table of sessions: the same name, the same client id, until closed (DESIGN §5). Pure."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace

from _rifl_ground.refusals import BadHeader, SessionClosed
from lease_server._errors import TooManySessions
from lease_server._series import SUPERSEDED_S, SeriesBook
from lease_server._session_secret import require_owner
from lease_server._sessions import SessionPolicy, SessionRow, SessionState

MAX_NAME_CHARS = 256
_HEAP_SLACK = 1024


class SessionTable:
    """All sessions of one server. No I/O, no clock, not thread-safe.

    ``now`` is seconds on the caller's monotonic clock. A session that no call was made in
    is kept for ``unused_s`` from its last opening or renewal, and then forgotten, name and
    all: nothing was recorded under it. Else retention counts from the
    last opening or renewal, and in full again from a server restart (late is
    safe, early is not). A closed or expired name is refused for ``refuse_for_s``
    after that, across restarts, by the wall clock: it is the one time persisted,
    since names refused anew from every restart would pile up without end. A wall
    clock set forward by days while the server is down forgets that much early.

    A name ``series#number`` is a numbered session: closing it closes every lower
    number of the series, and no number up to the highest closed is ever opened
    again while the series is in use, that is, while one of its sessions is open, and
    ``refuse_for_s`` beyond. Rows below are therefore forgotten soon, so a stream may
    open and close one a second for years.

    Invariants:

    1. At most one row for each (peer, name); its id never changes.
    2. A row that is not OPEN never becomes OPEN again.
    3. Every id held has an entry in the heap not later than its deadline was when
       the entry was made (the heap may hold others too).
    4. A numbered session at or below the highest ended one of its series is not alive.
    """

    def __init__(self, policy: SessionPolicy, unused_s: float = math.inf) -> None:
        """An empty table; give it what the storage holds with ``load``."""
        self._policy = policy
        self._unused_s = unused_s
        self._unused: set[int] = set()
        self._rows: dict[int, SessionRow] = {}
        self._ids: dict[tuple[bytes, str], int] = {}
        self._deadline: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []
        self._open_of: Counter[bytes] = Counter()
        self._names_of: Counter[bytes] = Counter()
        self._open_from: Counter[str] = Counter()
        self._names_from: Counter[str] = Counter()
        self._series = SeriesBook()

    def __len__(self) -> int:
        """Names held, open and refused."""
        return len(self._rows)

    @staticmethod
    def check_name(name: str) -> None:
        """Raise BadHeader unless the name has 1 to 256 characters, none of them NUL."""
        if not 1 <= len(name) <= MAX_NAME_CHARS or "\0" in name:
            raise BadHeader(f"a session name has 1 to {MAX_NAME_CHARS} characters, and no NUL")

    def load(
        self,
        rows: Iterable[SessionRow],
        now: float,
        unix_s: float,
        used: Container[int] | None = None,
    ) -> None:
        """Take over what the storage holds, at start; open sessions get full retention.

        But for those that are not ``used`` (None: all are).
        """
        for row in rows:
            gone_s = max(0.0, unix_s - row.changed_at_unix_s)
            self.put(
                row,
                now if row.state is SessionState.OPEN else now - gone_s,
                used=used is None or row.client_id in used,
            )

    def require_owner(
        self, peer: bytes, name: str, secret: bytes, older: Sequence[bytes] = ()
    ) -> list[int]:
        """Raise NotYours unless a secret that is shown opens the name, and the series it is in.

        See ``session_secret.require_owner``. A name that was never seen has no owner. Return the
        sessions, open or ended, that an older one opened: they are to be rekeyed to ``secret``.
        """
        row = self.get(peer, name)
        if row is not None:
            require_owner(row.secret, secret, older)
        owner = self._series.owner(peer, name)
        if owner is not None:
            require_owner(owner, secret, older)
        if not older:
            return []
        held = self._series.held(peer, name) or ([] if row is None else [row.client_id])
        return [client_id for client_id in held if self._rows[client_id].secret != secret]

    def rekey(self, client_ids: Iterable[int], secret: bytes) -> None:
        """Have sessions open by another secret, which is durable."""
        for client_id in client_ids:
            row = self._rows[client_id] = replace(self._rows[client_id], secret=secret)
            self._series.put(client_id, row.peer, row.name, secret)

    def find(self, peer: bytes, name: str, now: float) -> SessionRow | None:
        """The open session of that name, its retention renewed; None if never seen.

        Raises SessionClosed for a name that is closed or past its retention.
        """
        row = self.get(peer, name)
        ended = self._series.closed(peer, name) is not None
        if ended or (row is not None and not self.renew(row.client_id, now, used=False)):
            raise SessionClosed(f"session {name!r} is closed or past its retention")
        return row

    def get(self, peer: bytes, name: str) -> SessionRow | None:
        """The row of that name, in whatever state; None if never seen."""
        client_id = self._ids.get((peer, name))
        return None if client_id is None else self._rows[client_id]

    def row(self, client_id: int) -> SessionRow | None:
        """The row of an id, in whatever state; None if it is no session's."""
        return self._rows.get(client_id)

    def writer(self, client_id: int) -> bytes:
        """Whose calls the session takes, empty if all."""
        row = self._rows.get(client_id)
        return b"" if row is None else row.writer

    def ended_by(self, peer: bytes, name: str) -> int | None:
        """The id of the session whose end ended this numbered one too, if one did."""
        return self._series.closed(peer, name)

    def open_below(self, peer: bytes, name: str) -> list[SessionRow]:
        """The open sessions of lower numbers, lowest first: to be closed before it."""
        rows = (self._rows[client_id] for client_id in self._series.below(peer, name))
        return [row for row in rows if row.state is SessionState.OPEN]

    def require_room(self, peer: bytes, source: str = "") -> None:
        """Raise TooManySessions if this peer, its address, or anyone may not open another name."""
        policy = self._policy
        if source and (
            self._open_from[source] >= policy.open_from
            or self._names_from[source] >= policy.names_from
        ):
            raise TooManySessions("too many named sessions of this address; close some")
        if (
            self._open_of[peer] >= policy.max_open_per_peer
            or self._open_of.total() >= policy.max_open
            or self._names_of[peer] >= policy.max_names_per_peer
            or len(self._rows) >= policy.max_names
        ):
            raise TooManySessions("too many named sessions; close some")

    def put(self, row: SessionRow, now: float, *, used: bool = True) -> None:
        """Install a row that is durable, new or changed; its time starts at ``now``.

        ``used``: whether a call was made in it, as far as a new row is concerned. A row that
        would reopen a session is ignored (invariant 2).
        """
        standing = self._rows.get(row.client_id)
        if standing is None:
            holder = self._ids.get((row.peer, row.name))
            if holder is not None:
                # Another server forgot the name and opened it anew.
                self._forget(self._rows[holder])
            self._ids[(row.peer, row.name)] = row.client_id
            self._names_of[row.peer] += 1
            self._names_from[row.source] += 1
            self._series.put(row.client_id, row.peer, row.name, row.secret)
            if not used:
                self._unused.add(row.client_id)
        elif standing.state is not SessionState.OPEN:
            return
        else:
            self._open_of[row.peer] -= 1
            self._open_from[standing.source] -= 1
        self._rows[row.client_id] = row
        if row.state is SessionState.OPEN:
            self._open_of[row.peer] += 1
            self._open_from[row.source] += 1
            deadline = now + self._length_s(row)
        else:
            self._unused.discard(row.client_id)
            deadline = now + self._policy.refuse_for_s
        self._deadline[row.client_id] = deadline
        if standing is None:
            heapq.heappush(self._heap, (deadline, row.client_id))
        if row.state is not SessionState.OPEN:
            for client_id in self._series.end(row.client_id):
                self._hasten(client_id, now + SUPERSEDED_S)

    def renew(self, client_id: int, now: float, *, used: bool = True) -> bool:
        """Restart an open session's retention; False if it is not open any more.

        ``used``: by a call, and not by an opening or a heartbeat.
        """
        if not self.alive(client_id, now):
            return False
        if used and self._unused:
            self._unused.discard(client_id)
        deadline = now + self._length_s(self._rows[client_id])
        self._deadline[client_id] = max(deadline, self._deadline[client_id])
        return True

    def extend(self, now: float) -> None:
        """Restart the retention of every session that did not end, used or not."""
        for client_id, row in self._rows.items():
            if row.state is SessionState.OPEN:
                deadline = now + self._length_s(row)
                self._deadline[client_id] = max(deadline, self._deadline[client_id])

    def alive(self, client_id: int, now: float) -> bool:
        """Whether the id is that of an open session within its retention."""
        row = self._rows.get(client_id)
        if row is None or row.state is not SessionState.OPEN:
            return False
        # An open row below a closed number is what a crash left of closing both.
        return now < self._deadline[client_id] and not self._series.ended(client_id)

    def holds(self, client_id: int) -> bool:
        """Whether the id is that of a session, open or refused."""
        return client_id in self._rows

    def expire(self, now: float, unix_s: float) -> tuple[list[SessionRow], list[int]]:
        """The sessions whose retention ended, now EXPIRED; and the ids of names forgotten.

        Those of sessions that were never used are among the forgotten. Each is returned
        once. An EXPIRED row must be made durable before anything recorded under its id is
        dropped: else, after a crash in between, the name would be open again and its calls
        would look new.
        """
        expired: list[SessionRow] = []
        forgotten: list[int] = []
        while self._heap and self._heap[0][0] <= now:
            _, client_id = heapq.heappop(self._heap)
            row = self._rows.get(client_id)
            if row is None:
                continue
            if self._deadline[client_id] <= now:
                if client_id in self._unused:
                    self._forget(row)
                    forgotten.append(client_id)
                    continue
                if row.state is SessionState.OPEN:
                    row = replace(row, state=SessionState.EXPIRED, changed_at_unix_s=unix_s)
                    self.put(row, now)
                    expired.append(row)
                elif self._series.needed(client_id, self._is_open):
                    self._deadline[client_id] = now + self._policy.refuse_for_s
                else:
                    self._forget(row)
                    forgotten.append(client_id)
                    continue
            heapq.heappush(self._heap, (self._deadline[client_id], client_id))
        return expired, forgotten

    def _length_s(self, row: SessionRow) -> float:
        unused = row.client_id in self._unused
        return min(row.retention_s, self._unused_s) if unused else row.retention_s

    def _is_open(self, client_id: int) -> bool:
        return self._rows[client_id].state is SessionState.OPEN

    def _hasten(self, client_id: int, deadline: float) -> None:
        if self._is_open(client_id) or self._deadline[client_id] <= deadline:
            return
        self._deadline[client_id] = deadline
        if len(self._heap) > 2 * len(self._rows) + _HEAP_SLACK:
            # Stale entries pile up: rebuild the heap, one entry a row.
            self._heap = [(due, held) for held, due in self._deadline.items()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (deadline, client_id))

    def _forget(self, row: SessionRow) -> None:
        self._series.forget(row.client_id)
        self._unused.discard(row.client_id)
        del self._rows[row.client_id]
        del self._deadline[row.client_id]
        del self._ids[(row.peer, row.name)]
        self._names_of[row.peer] -= 1
        self._names_from[row.source] -= 1
        if row.state is SessionState.OPEN:
            self._open_of[row.peer] -= 1
            self._open_from[row.source] -= 1
        # Counters keep zeros: drop them, or every peer ever seen stays.
        for counter in (self._names_of, self._open_of):
            if counter[row.peer] == 0:
                del counter[row.peer]
        for addresses in (self._names_from, self._open_from):
            if addresses[row.source] == 0:
                del addresses[row.source]
