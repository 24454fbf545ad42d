"""The lease server as it moves with the leadership (DESIGN §5, §7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lease_server._authority import Beat, Grant
from lease_server._lease_authority import LeaseAuthority
from lease_server._sessionbook import OpenedSession
from lease_server._storage import NOTHING, Acknowledgements
from rifl.core._shared.errors import NotLeader, RiflError


class GroupAuthority:
    """``Authority`` of the leadership, while this replica leads; else it refuses. Any thread.

    Each leadership has an authority of its own, recovered from the log: every client
    that the log knows gets a full term (late is safe, early is not).
    """

    # A heartbeat may find a leader that has just begun to read its log.
    blocks = True
    # Tokens are checked here each time: whose secrets count changes with the leader.
    key_ring = None

    def __init__(
        self,
        term_s: float,
        takes_calls: Callable[[], bool] = lambda: True,
        leader: Callable[[], str] = lambda: "",
    ) -> None:
        """``takes_calls``: whether the leader still does; else it is no place to stay at.

        ``leader``: the address of the one that leads elsewhere, empty if it is not known.
        """
        self.term_s = term_s
        self._leader = leader
        self._takes_calls = takes_calls
        self._leading: LeaseAuthority | None = None

    def lead(self, authority: LeaseAuthority | None) -> None:
        """Answer from this authority from now on; None: refuse."""
        self._leading = authority

    @property
    def current(self) -> LeaseAuthority:
        """The leadership's authority; raises ``NotLeader``."""
        leading = self._leading
        if leading is None:
            raise NotLeader("another replica leads, or none does yet", self._leader())
        return leading

    def __len__(self) -> int:
        """Leases held."""
        return 0 if self._leading is None else len(self._leading)

    def now(self) -> float:
        """See ``Authority``."""
        return self.current.now()

    def grant(self, peer: bytes = b"", *, source: str = "") -> Grant:
        """See ``Authority``."""
        if not self._takes_calls():
            raise NotLeader("another replica may lead by now", self._leader())
        return self.current.grant(peer, source=source)

    @property
    def store(self) -> int:
        """See ``Authority``."""
        return self.current.store

    def check_store(self, client_id: int, store: int) -> None:
        """See ``Authority``."""
        self.current.check_store(client_id, store)

    def check(self, client_id: int, token: bytes, peer: bytes = b"") -> None:
        """See ``Authority``."""
        self.current.check(client_id, token, peer)

    def still_signed(self, token: bytes) -> bool:
        """See ``Authority``."""
        return self.current.still_signed(token)

    def renew(self, client_id: int, now: float | None = None) -> bool:
        """See ``Authority``."""
        return self.current.renew(client_id, now)

    def alive(self, client_id: int, now: float | None = None) -> bool:
        """See ``Authority``."""
        return self.current.alive(client_id, now)

    def is_session(self, client_id: int) -> bool:
        """See ``Authority``."""
        return self.current.is_session(client_id)

    def writes(self, client_id: int, token: bytes) -> bool:
        """See ``Authority``."""
        return self.current.writes(client_id, token)

    def holder(self, client_id: int) -> bytes:
        """See ``Authority``."""
        return self.current.holder(client_id)

    def heartbeat(
        self,
        client_id: int,
        token: bytes,
        peer: bytes = b"",
        acknowledged: Acknowledgements = NOTHING,
    ) -> bytes:
        """See ``Authority``."""
        if not self._takes_calls():
            raise NotLeader("another replica may lead by now", self._leader())
        return self.current.heartbeat(client_id, token, peer, acknowledged)

    def heartbeats(self, beats: Sequence[Beat], peer: bytes = b"") -> list[bytes | RiflError]:
        """See ``Authority``."""
        if not self._takes_calls():
            raise NotLeader("another replica may lead by now", self._leader())
        return self.current.heartbeats(beats, peer)

    def release(self, client_id: int, token: bytes, peer: bytes = b"") -> None:
        """See ``Authority``."""
        self.current.release(client_id, token, peer)

    def open_session(
        self,
        name: str,
        peer: bytes = b"",
        retention_s: float = 0.0,
        secret: bytes = b"",
        *,
        older: Sequence[bytes] = (),
        source: str = "",
        writer: bytes = b"",
        follows: bytes = b"",
    ) -> OpenedSession:
        """See ``Authority``."""
        return self.current.open_session(
            name,
            peer,
            retention_s,
            secret,
            older=older,
            source=source,
            writer=writer,
            follows=follows,
        )

    def close_session(
        self, name: str, peer: bytes = b"", secret: bytes = b"", *, older: Sequence[bytes] = ()
    ) -> int:
        """See ``Authority``."""
        return self.current.close_session(name, peer, secret, older=older)

    def end_session(self, name: str) -> list[int]:
        """See ``Authority``."""
        return self.current.end_session(name)

    def rotate_secret(self) -> None:
        """See ``Authority``."""
        self.current.rotate_secret()

    def extend(self) -> None:
        """See ``LeaseAuthority``: before the leader, whose lease was over, takes calls again."""
        leading = self._leading
        if leading is not None:
            leading.extend()

    def expire(self, now: float | None = None) -> list[int]:
        """See ``Authority``; empty while no calls are taken: heartbeats are not taken then."""
        leading: Any = self._leading
        if leading is None or not self._takes_calls():
            return []
        return list(leading.expire(now))
