"""Storages of leases: what is kept by one server, or by many; and one that forgets."""

from __future__ import annotations

import enum
import math
import secrets as randomness
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import NamedTuple, Protocol, runtime_checkable

from _rifl_ground.forks import refuse_in_children
from lease_server._errors import StorageUnavailable
from lease_server._forked import leases_forked
from lease_server._holders import LeaseBounds, Room
from lease_server._sessions import SessionPolicy, SessionRow, standing_row
from lease_server._tokens import SECRET_BYTES, Secret, rotated

# Of the 63 bits that ids have: the other 37 count grants, which is enough for a thousand a
# second for four years, and for a thousand restores (``GRANTS_PER_RESTORE``).
RANDOM_BITS = 26
# Left out when a store was restored, or lost something: more than it can have granted since.
GRANTS_PER_RESTORE = 1 << 27

# How the bits of an id in memory are shared out: an incarnation's, and a counter within it.
_COUNTER_BITS = 39
_INCARNATION_BITS = 24


def short_store_id(name: str) -> int:
    """Return what grants and headers call a store of that unique name: 64 bits, never 0."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) or 1


class Acknowledgements(NamedTuple):
    """The answers that a client no longer wants: of seqs below one, and in ranges above it.

    Both ends of a range are in it. A client that says less than before moves nothing back.
    """

    first_incomplete: int = 1
    completed: Sequence[tuple[int, int]] = ()


NOTHING = Acknowledgements()


class LeaseStorage(Protocol):
    """Id blocks, secrets, sessions, and which clients left something durable.

    Methods may block and are called from several threads at once. A write is
    durable before its method returns. Trouble with the medium is
    StorageUnavailable; the write may then stand or not, and is asked for again.
    Several servers may share a storage.

    ``random_bits``: how many low bits of each client id are drawn when it is granted, so
    that two servers which would grant the same number, a copy of the storage and the
    original, grant two ids. A block is then of so many times as many ids.
    """

    random_bits: int

    def store_id(self) -> int:
        """Which records these are: 1 to 2^64 - 1, the same for as long as they are kept.

        Every server over them says the same number, and no other store says it.
        """

    def reserve_ids(self, count: int) -> tuple[int, int]:
        """Reserve ``count`` ids, first and last inclusive, from 1 to 2^63 - 1.

        Each block lies above every block reserved before it, by anyone, and above
        every id of ``known_clients``. A block whose reply was lost is lost.
        """

    def secrets(self) -> list[Secret]:
        """The secrets tokens may be signed with, newest first.

        The first caller ever makes one; of two at once, both get the same.
        """

    def rotate_secret(self) -> list[Secret]:
        """Add a new secret under the next key id and forget all but the newest two."""

    def load_sessions(self) -> list[SessionRow]:
        """Every session row that was put and not forgotten, in any order."""

    def put_session(self, row: SessionRow) -> SessionRow:
        """Insert a session, or update the one with its client id; the row that stands.

        If another client id holds the same (peer, name), nothing is written and
        that id's row is returned: of two servers opening one name, one wins. A row
        that is not OPEN never becomes OPEN again.
        """

    def forget_session(self, client_id: int) -> None:
        """Delete a session's row; its name may be opened anew. Unknown ids are fine."""

    def known_clients(self) -> list[int]:
        """Ids with a durable row: clients that were granted, sessions that were used.

        They get a full new term at start (DESIGN §5). An id leaves when its row and
        its records are removed.
        """

    def is_foreign(self, client_id: int) -> bool:
        """Whether the id belongs to an incarnation of this storage that is gone.

        Then its token cannot be checked any more, and it is told that its lease
        expired. False for a storage that outlives its process. Never blocks.
        """


class SoleLeaseStorage(LeaseStorage, Protocol):
    """A storage of one server at a time, which keeps the leases itself."""

    def register(self, client_id: int, holder: bytes = b"") -> None:
        """Make a client known, before its id is told: after a crash it is one still.

        ``holder``: whom its lease counts for (see ``holder_of``), kept with it. The caller
        drops its row as those of other clients, also after StorageUnavailable.
        """

    def acknowledge(self, client_id: int, acknowledged: Acknowledgements) -> None:
        """Forget what a client acknowledged with a renewal; ignored of a session, or unknown id.

        Never waits. Records go in one commit with their acknowledgement, maybe later.
        """

    def rekey_sessions(self, client_ids: Sequence[int], secret: bytes) -> None:
        """Have sessions, open or ended, open by another secret: all of them, or none.

        ``secret`` is its verifier. Unknown ids are fine.
        """

    def holders(self) -> dict[int, bytes]:
        """Whom the leases of known clients count for; sessions have none."""


class Standing(enum.Enum):
    """What an id is, as its row in the storage says."""

    ALIVE = "alive"
    SESSION = "session"
    CLOSED = "closed"
    UNKNOWN = "unknown"


@runtime_checkable
class SharedLeaseStorage(LeaseStorage, Protocol):
    """A storage that decides about leases and sessions itself, for many servers.

    The row of a client is its lease. Every method is one or few atomic steps, and
    blocks. Raises StorageUnavailable.

    ``held``: how many clients and sessions had a row when they were last counted.
    """

    held: int

    def count(self) -> None:
        """Bring ``held`` up to date; costs no more with many rows than with few."""

    def grant(
        self, client_id: int, term_s: float, bounds: LeaseBounds, holder: bytes = b""
    ) -> Room:
        """Make the id known, with a lease of ``term_s``, if there is room.

        It counts for its ``holder`` (see ``holder_of``) until its row goes: on every server.
        """

    def renew(self, client_id: int, acknowledged: Acknowledgements = NOTHING) -> Standing:
        """Give a lease, or a session's retention, its full length again.

        Of a client, ``acknowledged`` is applied in the same step, as that of a call's header is.
        """

    def release(self, client_id: int) -> None:
        """Have the lease end at the next sweep. Unknown ids are fine."""

    def open_session(
        self,
        row: SessionRow,
        policy: SessionPolicy,
        older: Sequence[bytes] = (),
        *,
        unused_s: float = math.inf,
    ) -> SessionRow:
        """Insert the session and its client row, or return the row that stands.

        Until a call is made in it, it has a lease of ``unused_s`` in place of its retention,
        and is forgotten with its name when that ends.

        A longer retention extends the standing one's. Raises TooManySessions, and NotYours if
        neither the row's secret nor one of ``older`` is that of the standing one, or of its
        series. One of ``older`` is replaced there by the row's, in one atomic step with the
        comparison, whatever else becomes of the opening.
        """

    def write_session(self, client_id: int, writer: bytes, follows: bytes) -> bytes:
        """Have a session take a writer's calls alone, if it takes those of ``follows``.

        In one atomic step; empty: of all. Return whose it takes then. Raises SessionClosed.
        """

    def close_session(
        self,
        name: str,
        peer: bytes,
        unix_s: float,
        secret: bytes = b"",
        older: Sequence[bytes] = (),
    ) -> tuple[SessionRow, bool]:
        """Close permanently; return the row, and whether it was open until now.

        ``secret`` and ``older`` are as in ``open_session``. Raises SessionClosed for a name
        never opened, NotYours.
        """

    def sweep(self, term_s: float, refuse_for_s: float, unix_s: float) -> int:
        """End what is due, drop the rows and records of what ended; how many.

        Nothing is ended before this process watched the storage for a full
        ``term_s`` without a gap. A client with a call running on a living replica
        stays until a later sweep, refused meanwhile.
        """


class MemoryLeaseStorage:
    """A storage that lives as long as its object. Thread-safe, never blocks on I/O.

    Ids carry a random incarnation in their upper 24 bits, so those of a process
    that died are told apart (``is_foreign``): calls under them are refused, never
    run again silently. A session's name, however, is forgotten with the process,
    and opening it again gives a new id.
    """

    # A machine may be copied while it runs, with the incarnation: the copies count alike.
    random_bits = 12

    def __init__(self, token_bytes: Callable[[int], bytes] = randomness.token_bytes) -> None:
        """A new incarnation, with a secret of its own, of random ``token_bytes``."""
        self._lock = threading.Lock()
        self._token_bytes = token_bytes
        # Not 0, so that no small number is mistaken for an id of this server.
        self._incarnation: int = 1 + int.from_bytes(token_bytes(8)) % (2**_INCARNATION_BITS - 1)
        self._counter = 0
        secret = token_bytes(SECRET_BYTES)
        self._store_id = short_store_id(f"memory:{self._incarnation}:{secret.hex()}")
        self._secrets = [Secret(0, secret)]
        self._sessions: dict[int, SessionRow] = {}
        self._names: dict[tuple[bytes, str], int] = {}
        refuse_in_children(self, leases_forked)

    @property
    def incarnation(self) -> int:
        """The upper 24 bits of every id reserved here."""
        return self._incarnation

    def store_id(self) -> int:
        """This object's own: what another process keeps in memory are other records."""
        return self._store_id

    def reserve_ids(self, count: int) -> tuple[int, int]:
        """The next ids; StorageUnavailable after 2^27 grants."""
        if count < 1:
            raise ValueError("a block holds at least one id")
        with self._lock:
            if self._counter + count >= 2**_COUNTER_BITS:
                raise StorageUnavailable("this incarnation has no ids left; restart the server")
            base = (self._incarnation << _COUNTER_BITS) + self._counter
            self._counter += count
        return base + 1, base + count

    def secrets(self) -> list[Secret]:
        """The secrets, newest first."""
        with self._lock:
            return list(self._secrets)

    def rotate_secret(self) -> list[Secret]:
        """Add a secret; the newest two are kept."""
        with self._lock:
            self._secrets = rotated(self._secrets, self._token_bytes)
            return list(self._secrets)

    def load_sessions(self) -> list[SessionRow]:
        """The sessions of this object."""
        with self._lock:
            return list(self._sessions.values())

    def put_session(self, row: SessionRow) -> SessionRow:
        """Insert or update a session; the row that stands."""
        with self._lock:
            ids = (self._names.get((row.peer, row.name)), row.client_id)
            held = [self._sessions[each] for each in ids if each in self._sessions]
            if (standing := standing_row(held, row)) is not None:
                return standing
            self._sessions[row.client_id] = row
            self._names[(row.peer, row.name)] = row.client_id
            return row

    def rekey_sessions(self, client_ids: Sequence[int], secret: bytes) -> None:
        """Have sessions open by another secret."""
        with self._lock:
            for client_id in client_ids:
                if client_id in self._sessions:
                    row = self._sessions[client_id]
                    self._sessions[client_id] = replace(row, secret=secret)

    def forget_session(self, client_id: int) -> None:
        """Delete a session's row."""
        with self._lock:
            row = self._sessions.pop(client_id, None)
            if row is not None:
                del self._names[(row.peer, row.name)]

    def known_clients(self) -> list[int]:
        """None: what clients leave here ends with the process."""
        return []

    def register(self, client_id: int, holder: bytes = b"") -> None:
        """Nothing: whom it knows goes with the process."""

    def holders(self) -> dict[int, bytes]:
        """None, as of ``known_clients``."""
        return {}

    def acknowledge(self, client_id: int, acknowledged: Acknowledgements) -> None:
        """Nothing: no answers are kept here."""

    def is_foreign(self, client_id: int) -> bool:
        """Whether the id's upper bits are not this incarnation."""
        return client_id >> _COUNTER_BITS != self._incarnation
