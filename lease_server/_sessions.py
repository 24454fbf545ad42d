"""Named sessions: their rows, and the bounds of how many there are and how long they live. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from _rifl_ground.portions import portion

_DAY_S = 86_400.0


class SessionState(enum.Enum):
    """Where a session is in its life; it only moves from OPEN to one of the others."""

    OPEN = "open"
    CLOSED = "closed"
    EXPIRED = "expired"


class SessionsFrom(enum.Enum):
    """Who may open sessions.

    PEERS: a caller with a certificate. SECRET: also one without, that shows the session's
    secret. ANYONE: also a caller without a secret, which opens sessions that were opened
    without one, by their names.
    """

    PEERS = "peers"
    SECRET = "secret"  # noqa: S105 - a word, and no secret
    ANYONE = "anyone"


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One session as the storage keeps it; ``(peer, name)`` is unique.

    ``changed_at_unix_s`` is the wall-clock time of the last change of state,
    seconds since the Unix epoch. ``secret`` is what ``session_secret.verifier`` made of the
    secret that opens it, empty for one that has none: a peer's, or one opened by its name.
    ``source`` is where its opener was (see ``source_of``), empty for an authenticated one.
    ``writer`` is the one whose calls it takes, empty where it takes all (DESIGN §5); where
    servers share the storage the client's row has it.
    """

    client_id: int
    name: str
    peer: bytes
    state: SessionState
    retention_s: float
    changed_at_unix_s: float
    secret: bytes = field(default=b"", repr=False)
    source: str = ""
    writer: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPolicy:
    """How long sessions and their names live, and how many there may be.

    Names are counted from opening until they are forgotten, so ``max_names``
    bounds what a peer can make the server remember. All unauthenticated callers
    are one peer, of which each address has a part: ``max_open_per_source`` and
    ``max_names_per_source``, None for a quarter of the peer's.
    """

    default_retention_s: float = _DAY_S
    max_retention_s: float = 30 * _DAY_S
    refuse_for_s: float = 7 * _DAY_S
    max_open: int = 100_000
    max_open_per_peer: int = 20_000
    max_names: int = 1_000_000
    max_names_per_peer: int = 500_000
    max_open_per_source: int | None = None
    max_names_per_source: int | None = None

    def __post_init__(self) -> None:
        """Raise ValueError if the numbers contradict each other."""
        if not 0 < self.default_retention_s <= self.max_retention_s:
            raise ValueError("need 0 < default_retention_s <= max_retention_s")
        if self.refuse_for_s <= 0:
            raise ValueError("refuse_for_s must be positive")
        if not 0 < self.max_open_per_peer <= self.max_open <= self.max_names:
            raise ValueError("need 0 < max_open_per_peer <= max_open <= max_names")
        if not self.max_open_per_peer <= self.max_names_per_peer <= self.max_names:
            raise ValueError("need max_open_per_peer <= max_names_per_peer <= max_names")
        if self.open_from < 1 or self.names_from < 1:
            raise ValueError("max_open_per_source and max_names_per_source must be positive")

    @property
    def open_from(self) -> int:
        """Return how many open sessions one address may have, if there is no peer."""
        return portion(self.max_open_per_peer, self.max_open_per_source)

    @property
    def names_from(self) -> int:
        """And how many names."""
        return portion(self.max_names_per_peer, self.max_names_per_source)

    def retention_s(self, asked_s: float) -> float:
        """What an opener gets: what it asked for up to the bound; for 0 the default."""
        return min(asked_s, self.max_retention_s) if asked_s > 0 else self.default_retention_s


def standing_row(held: Iterable[SessionRow], wanted: SessionRow) -> SessionRow | None:
    """Return the row that stands in the way of a wanted one; None where that may be put.

    ``held``: the rows with its name and peer, or with its client id.
    """
    for row in held:
        if row.client_id != wanted.client_id or row.state is not SessionState.OPEN:
            return row
    return None
