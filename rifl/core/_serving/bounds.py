"""Bounds on what callers may take of a server, each with its default (DESIGN §9)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from _rifl_ground.numbers import check_counts
from _rifl_ground.portions import MAX_CLIENTS, portion
from rifl.core._serving.keyed_tracker import DEFAULT_MAX_KEY_BYTES, DEFAULT_MAX_KEYS
from rifl.core._shared.call import MAX_RANGES
from rifl.core._shared.identity import DEFAULT_WINDOW

# A day: longer than callers of keyed calls ask again.
DEFAULT_KEY_RETENTION_S = 86_400.0
# What the row of a key takes on a disk, beside a record that is longer than most.
_KEY_ROW_BYTES = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """Bounds on what the callers of one server may take; see ``rifl.Deduplicator``.

    ``window``: unacknowledged calls allowed to a client. ``max_waiters``: duplicates that may
    hold a pool thread while the first arrival runs; None means a quarter of the pool given to
    ``add_to_server``, none if that is unknown. ``max_aio_waiters``: the same on event loops.
    ``max_wait_s``: how long a duplicate waits at most.

    ``max_keys`` and ``max_key_bytes`` bound the keys, and the bytes of them and their records,
    that are kept for one client, session or peer. None: over SQLite half of what is free on the
    disk when the store opens, a key counted with 256 bytes; elsewhere ten million and 512 MiB. Of
    what callers without a name share, one address has a quarter at most.

    ``max_answer_bytes`` and ``max_total_answer_bytes`` bound the kept, unacknowledged answers
    to calls without a key: of one client, and of all; counted by this server, since it
    started. New calls beyond them are WINDOW_EXCEEDED, and wait.

    ``max_clients``: client ids with a lease, of all callers. ``max_clients_per_caller`` and
    ``max_answer_bytes_per_caller``: of these, and of the bytes of kept answers, what one peer
    may take, or one address of callers without a peer: the one that the lease was granted to.
    None is a quarter, 0 no bound. Servers over a shared store count its leases together, and
    each its own answers.

    ``max_batch_items`` and ``max_batch_bytes``: how many calls one batched call may carry, and
    how long its request may be (gRPC's own limit of 4 MiB counts, too); a larger one is
    refused whole, and the client splits it.

    ``max_message_s``: how long the message of a call of rifl's own services may take on a
    ``grpc.server``, six times as long if it may be above 1 MiB; then the call is cancelled.

    Raises ``ValueError`` for invalid bounds.
    """

    window: int = DEFAULT_WINDOW
    max_waiters: int | None = None
    max_aio_waiters: int = 1000
    max_wait_s: float = 30.0
    max_keys: int | None = None
    max_key_bytes: int | None = None
    max_answer_bytes: int = 64 << 20
    max_total_answer_bytes: int = 1 << 30
    max_answer_bytes_per_caller: int | None = None
    max_clients: int = MAX_CLIENTS
    max_clients_per_caller: int | None = None
    max_batch_items: int = 1000
    max_batch_bytes: int = 4 << 20
    max_message_s: float = 10.0

    def __post_init__(self) -> None:
        check_counts(
            self,
            1,
            "window",
            "max_keys",
            "max_key_bytes",
            "max_answer_bytes",
            "max_total_answer_bytes",
            "max_clients",
            "max_batch_items",
            "max_batch_bytes",
        )
        check_counts(
            self,
            0,
            "max_answer_bytes_per_caller",
            "max_clients_per_caller",
            "max_waiters",
            "max_aio_waiters",
        )
        if self.max_wait_s < 0:
            raise ValueError("max_wait_s must not be negative")
        if self.max_message_s <= 0:
            raise ValueError("max_message_s must be positive")

    @property
    def client_window(self) -> int:
        """The window that clients get: it leaves room for what their headers cannot say.

        A header tells of at most 64 ranges, so a client with its own window full may
        have that many calls more completed than the server could hear of yet.
        """
        return self.window - MAX_RANGES if self.window >= 4 * MAX_RANGES else self.window

    @property
    def source_keys(self) -> int:
        """Keys of callers without a name, of one address."""
        return portion(self.max_keys or DEFAULT_MAX_KEYS)

    @property
    def source_bytes(self) -> int:
        """Bytes of those keys and their records."""
        return portion(self.max_key_bytes or DEFAULT_MAX_KEY_BYTES)

    @property
    def caller_answer_bytes(self) -> int:
        """Bytes of kept answers of one caller; 0: it has no bound."""
        return portion(self.max_total_answer_bytes, self.max_answer_bytes_per_caller)

    def of_keys(self, retention_s: float | None) -> KeyBounds:
        """Return the bounds of keyed calls, whose records are kept for ``retention_s``."""
        return KeyBounds(
            max_keys=self.max_keys or DEFAULT_MAX_KEYS,
            max_bytes=self.max_key_bytes or DEFAULT_MAX_KEY_BYTES,
            retention_s=retention_s,
        )

    def on_disk(self, free_bytes: int | None) -> Bounds:
        """Return these for keys that are kept on a disk with so much room; None: they are not."""
        if free_bytes is None:
            return self
        room = max(_KEY_ROW_BYTES, free_bytes // 2)
        return replace(
            self,
            max_keys=self.max_keys or room // _KEY_ROW_BYTES,
            max_key_bytes=self.max_key_bytes or room,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyBounds:
    """Bounds on the keyed calls of one client, session or namespace.

    ``max_keys`` identities and ``max_bytes`` of keys and records; a new call
    beyond them is refused with WINDOW_EXCEEDED. ``retention_s``: how long a
    record is kept after its call completed, where its method says nothing; None
    means as long as the client lives.
    """

    max_keys: int = DEFAULT_MAX_KEYS
    max_bytes: int = DEFAULT_MAX_KEY_BYTES
    retention_s: float | None = DEFAULT_KEY_RETENTION_S

    def __post_init__(self) -> None:
        check_counts(self, 1, "max_keys", "max_bytes")
        if self.retention_s is not None and self.retention_s <= 0:
            raise ValueError("retention_s must be positive, or None")

    def retained_s(self, own_s: float | None) -> float | None:
        """Return how long a record is kept, by its method's own retention if it has one."""
        return self.retention_s if own_s is None else own_s
