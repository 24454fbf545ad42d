"""The holders of leases: how many there may be, in all and of one caller. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from hashlib import blake2b

from _rifl_ground.numbers import check_count
from _rifl_ground.portions import MAX_CLIENTS, portion
from lease_server._errors import TooManyClients

# What no address begins with.
_PEER = b"\0"
_PEER_BYTES = 16
_SOURCE_BYTES = 64


def holder_of(peer: bytes, source: str) -> bytes:
    """Return whom a lease counts for: its peer, or the address of a caller without one.

    At most 64 bytes, whatever a certificate has. Empty if neither is known: then the lease
    counts for no caller.
    """
    if peer:
        return _PEER + blake2b(peer, digest_size=_PEER_BYTES).digest()
    return source.encode()[:_SOURCE_BYTES]


def name_of(holder: bytes) -> str:
    """Return how a refusal names whom a lease counts for."""
    if holder.startswith(_PEER):
        return "this certificate"
    return holder.decode(errors="replace") or "an unknown address"


class Room(enum.Enum):
    """What a storage found: room for a lease, none at all, or none for this caller."""

    FREE = "free"
    FULL = "full"
    TAKEN = "taken"


@dataclass(frozen=True, slots=True)
class LeaseBounds:
    """How many leases may be held: of all callers, and of one; 0: of one as many as of all."""

    of_all: int = MAX_CLIENTS
    of_one: int = portion(MAX_CLIENTS)

    @classmethod
    def of(cls, max_clients: int, max_clients_per_caller: int | None) -> LeaseBounds:
        """Return the bounds by their names, None for a quarter; raises ``ValueError``."""
        check_count("max_clients", max_clients, 1)
        check_count("max_clients_per_caller", max_clients_per_caller, 0, optional=True)
        return cls(max_clients, portion(max_clients, max_clients_per_caller))

    def room(self, held: int, held_by_one: int) -> Room:
        """Say whether there is room, by how many leases there are, and of one caller."""
        if held >= self.of_all:
            return Room.FULL
        return Room.TAKEN if self.of_one and held_by_one >= self.of_one else Room.FREE

    def require(self, room: Room, source: str) -> None:
        """Raise ``TooManyClients`` unless there was room. ``source``: where the caller is."""
        if room is Room.FULL:
            raise TooManyClients(
                "no client id was granted: there are as many leases as may be "
                f"({self.of_all}, max_clients). Try again later, or raise it"
            )
        if room is Room.TAKEN:
            raise TooManyClients(
                f"no client id was granted: {source or 'this certificate'} holds as many leases "
                f"as one caller may ({self.of_one}, max_clients_per_caller). Close clients that "
                "are not needed, or raise it"
            )
