"""The face of a lease authority: what a server asks, wherever that is decided.

It asks before it runs a call, and the gRPC service answers from it (RIFL §3.3; DESIGN §4, §5).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from _rifl_ground.refusals import RiflError
from _rifl_ground.texts import hides
from lease_server._keyring import KeyRing
from lease_server._sessionbook import OpenedSession
from lease_server._storage import NOTHING, Acknowledgements

# The length of a lease.
TERM_S = 60.0


@hides("token")
class Grant(NamedTuple):
    """A client id, its capability, and the length of its lease in seconds."""

    client_id: int
    token: bytes
    term_s: float


@hides("token")
class Beat(NamedTuple):
    """A lease to be renewed: its id, the token that is shown, and whose id it is said to be.

    ``acknowledged``: what its client no longer wants.
    """

    client_id: int
    token: bytes
    store: int = 0
    acknowledged: Acknowledgements = NOTHING


class Authority(Protocol):
    """Who is known and alive: what a server asks, wherever that is decided. Any thread.

    Its length is the number of leases held. ``blocks``: heartbeats and releases may wait,
    for a storage or a log: not for an event loop's thread.
    """

    blocks: bool

    def __len__(self) -> int:
        """Leases held."""

    @property
    def term_s(self) -> float:
        """Length of every lease, seconds."""

    @property
    def store(self) -> int:
        """Which records its ids belong to (see ``LeaseStorage.store_id``)."""

    @property
    def key_ring(self) -> KeyRing | None:
        """The secrets that tokens are checked with; None where these may change any time."""

    def now(self) -> float:
        """The authority's clock, seconds."""

    def grant(self, peer: bytes = b"", *, source: str = "") -> Grant:
        """A new client, bound to the peer's identity unless that is empty.

        ``source``: where the caller is; the lease counts for it if there is no peer. Raises
        TooManyClients; StorageUnavailable if a new id block was needed.
        """

    def check(self, client_id: int, token: bytes, peer: bytes = b"") -> None:
        """Raise NotYours unless the token is genuine for this id and peer.

        For a storage that forgets, the id of an incarnation that is gone raises
        LeaseExpired. Says nothing about the lease. Never blocks, takes no lock, and costs
        one HMAC; ``peer`` is used only if ``peer_bound(token)``.
        """

    def check_store(self, client_id: int, store: int) -> None:
        """Raise StoreMismatch for an id of another store; ``store`` is 0 if not known.

        Records in memory go with their process: an id of another one is LeaseExpired.
        """

    def still_signed(self, token: bytes) -> bool:
        """Whether a token that was genuine once names a secret that is still valid.

        For callers that remember what they checked. No lock, no HMAC.
        """

    def renew(self, client_id: int, now: float | None = None) -> bool:
        """Extend a lease by a term, or restart a session's retention; True if alive.

        To be asked for every accepted call, in place of ``alive``: an ``alive``
        that was true may be followed by an ``expire`` at once.
        """

    def alive(self, client_id: int, now: float | None = None) -> bool:
        """Whether the id's lease runs, or it is an open session; asking may renew it."""

    def is_session(self, client_id: int) -> bool:
        """Whether the id is a named session's: keyed identities only. Also if it ended."""

    def writes(self, client_id: int, token: bytes) -> bool:
        """Whether a session takes calls by this token; where a storage decides, it says so itself.

        Not if it has a writer, and the token is another's, or of no writer.
        """

    def holder(self, client_id: int) -> bytes:
        """Whom a lease counts for (see ``holder_of``); empty if for none, or a storage knows it."""

    def heartbeat(
        self,
        client_id: int,
        token: bytes,
        peer: bytes = b"",
        acknowledged: Acknowledgements = NOTHING,
    ) -> bytes:
        """Check and renew; the token to use from now on if the secret was rotated, or b"".

        It keeps a session that no call was made in for one more term, and no longer. Of a client
        that is alive, the records of what it acknowledged go.
        Raises NotYours, LeaseExpired or SessionClosed.
        """

    def heartbeats(self, beats: Sequence[Beat], peer: bytes = b"") -> list[bytes | RiflError]:
        """Do what ``check_store`` and ``heartbeat`` do, for each: its token, or its refusal.

        Each is judged by itself, all of them for one peer. What concerns no single one of them
        (StorageUnavailable) is raised, unless some were renewed: then the list ends there.
        """

    def release(self, client_id: int, token: bytes, peer: bytes = b"") -> None:
        """End a lease now; a later ``expire`` drops its rows. Twice is the same as once.

        Raises NotYours or LeaseExpired as ``check`` does, BadHeader for a session.
        """

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
        """The session of that name and peer, made durable if it is new.

        ``retention_s`` 0 asks for the default; an opener that asks for more than
        the session has extends it. ``secret`` is the verifier (see ``session_secret``) of
        what the caller shows, and has to be the session's. Whether a caller may do without is
        asked before. Any of ``older`` opens the session, too, whether it is open or ended: then
        ``secret`` is durably the only one, of all sessions of its series, before this returns or
        raises SessionClosed. ``source``: where an unauthenticated caller is.

        ``writer``: 32 bytes; from now on the session takes the calls of this writer alone, if
        those that it takes are of ``follows`` (empty: of all), or of this one: one durable
        compare-and-set. If not, whose they are is returned, and no token. Raises BadHeader,
        NotYours, SessionClosed, TooManySessions, StorageUnavailable.
        """

    def close_session(
        self, name: str, peer: bytes = b"", secret: bytes = b"", *, older: Sequence[bytes] = ()
    ) -> int:
        """Close permanently and durably; return the id, whose rows a later ``expire`` drops.

        A numbered session (see ``SessionTable``) closes with all below it. Closing an
        ended session again returns its id. ``secret`` and ``older`` as in
        ``open_session``. Raises BadHeader, NotYours, SessionClosed for a name never
        opened, StorageUnavailable.
        """

    def end_session(self, name: str) -> list[int]:
        """Close all open sessions of a name: their ids.

        For an operator. As ``close_session`` with each one's own peer and secret; raises as it
        does.
        """

    def rotate_secret(self) -> None:
        """Make a new secret, durably. It signs after half a term.

        Tokens of the old one stay valid for at least a term after that, and every
        heartbeat answers with a new one. Rotate at most once in three terms. Raises
        StorageUnavailable.
        """

    def expire(self, now: float | None = None) -> list[int]:
        """The ids whose records must be dropped now, ascending, each once.

        To be called every few seconds, from one thread at a time, not from a call's.
        Trouble with the storage is logged and tried again next time. The caller drops each
        id after its running calls, and repeats that until it succeeds; a crash before then
        is safe, since the id is known and gets a new term.
        """
