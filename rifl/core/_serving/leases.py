"""Leases, as the rules ask about them: who is known and alive (DESIGN §5)."""

from __future__ import annotations

from typing import Protocol


class Leases(Protocol):
    """Who is known and alive: the lease server, as the rules see it."""

    def renew(self, client_id: int, now: float) -> bool:
        """Renew a live client or session; False for one that is unknown or over."""

    def is_session(self, client_id: int) -> bool:
        """Tell whether the id is, or was, a named session's."""

    def writes(self, client_id: int, token: bytes) -> bool:
        """Tell whether a session takes calls by this token: of its writer, if it has one."""

    def holder(self, client_id: int) -> bytes:
        """Return whom a lease counts for; empty if for no caller."""
