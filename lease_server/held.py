"""Clients of another lease server, as a server that keeps their records sees them (DESIGN §5)."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Doubt", "HeldClients"]

_REPORTS_PER_TERM = 4


class Doubt(NamedTuple):
    """A client to ask about; ``token`` is empty where nobody showed one yet."""

    client_id: int
    token: bytes
    peer: bytes


class _Held:
    __slots__ = ("active", "expires_at", "over", "peer", "report_at", "session", "token")

    def __init__(self, expires_at: float) -> None:
        self.token = b""
        self.peer = b""
        self.session = False
        self.expires_at = expires_at
        self.report_at = expires_at
        # Accepted a call since the lease server was told.
        self.active = False
        self.over = False


class HeldClients:
    """Who was met, with which token, and about whom the lease server is to be asked.

    Invariants:

    1. A token counts as verified only while it is the last one that the lease server
       found good for its client.
    2. No client leaves but by ``forget``, which follows the lease server's word that it
       is over, or this server's own that nothing is kept of it.

    No I/O and no clock; each method is one step, safe in any thread as long as
    ``meet`` and ``forget`` of one client are serialised by the caller.
    """

    def __init__(self, term_s: float) -> None:
        self.term_s = term_s
        self._held: dict[int, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def recover(self, client_ids: Iterable[int], sessions: Iterable[int], now: float) -> None:
        """Hold what a store knew at start: asked about after a full term."""
        open_sessions = set(sessions)
        for client_id in client_ids:
            held = self._held[client_id] = _Held(now + self.term_s)
            held.session = client_id in open_sessions

    def meet(self, client_id: int, token: bytes, peer: bytes, *, session: bool, now: float) -> None:
        """Take that the lease server renewed a client under this token."""
        held = self._held.get(client_id) or _Held(now)
        held.peer, held.session, held.over = peer, session, False
        held.token = token
        held.expires_at = now + self.term_s
        held.report_at = now + self.term_s / _REPORTS_PER_TERM
        held.active = False
        self._held[client_id] = held

    def verified(self, client_id: int, token: bytes, peer: bytes) -> bool:
        """Whether this token was found good, for this peer."""
        held = self._held.get(client_id)
        return (
            held is not None
            and not held.over
            and bool(held.token)
            and hmac.compare_digest(held.token, token)
            and held.peer == peer
        )

    def renew(self, client_id: int, now: float) -> bool:
        """Note an accepted call; False for a client that is not held, or over."""
        held = self._held.get(client_id)
        if held is None or held.over:
            return False
        held.expires_at = now + self.term_s
        held.active = True
        return True

    def is_session(self, client_id: int) -> bool:
        """Whether the client is a named session."""
        held = self._held.get(client_id)
        return held is not None and held.session

    def active(self, now: float) -> list[Doubt]:
        """Whom the lease server is to be told of, so that it renews them."""
        return [
            Doubt(client_id, held.token, held.peer)
            for client_id, held in list(self._held.items())
            if held.active and held.token and now >= held.report_at
        ]

    def silent(self, now: float) -> list[Doubt]:
        """Whom to ask about: nothing was heard of them for a term, or they are over."""
        return [
            Doubt(client_id, held.token, held.peer)
            for client_id, held in list(self._held.items())
            if held.over or (now >= held.expires_at and not held.active)
        ]

    def alive(self, client_id: int, now: float) -> None:
        """Take that a silent client lives: it is asked about again after a term."""
        held = self._held.get(client_id)
        if held is not None:
            held.over = False
            held.expires_at = max(held.expires_at, now + self.term_s)

    def distrust(self, client_id: int) -> None:
        """Take that a token is good no longer: the next call has to show another."""
        held = self._held.get(client_id)
        if held is not None:
            held.token = b""
            held.active = False

    def end(self, client_id: int) -> None:
        """Take that a client is over: nothing new of it is accepted, if it is held."""
        held = self._held.get(client_id)
        if held is not None:
            held.over = True

    def ending(self, client_id: int) -> bool:
        """Whether a client is over, and still held."""
        held = self._held.get(client_id)
        return held is not None and held.over

    def forget(self, client_id: int) -> None:
        """Let a client go."""
        self._held.pop(client_id, None)
