"""The interface of a log engine (DESIGN §7): conditional append, metadata, leadership."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

# The most that one read returns, unless the reader says otherwise.
READ_ENTRIES = 1000
READ_BYTES = 8 << 20


class NewEntry(NamedTuple):
    """What is appended: opaque bytes, and the tags readers may select it by."""

    body: bytes
    tags: tuple[str, ...] = ()


class Entry(NamedTuple):
    """What was appended. LSNs start at 1 and have no gaps."""

    lsn: int
    body: bytes
    tags: tuple[str, ...] = ()


class EngineLimits(NamedTuple):
    """What one append may hold: so many entries, and bytes of their bodies and tags."""

    entries: int
    append_bytes: int


class Leadership(NamedTuple):
    """Who leads, by the engine's own clock.

    ``expires_in_s`` is what is left of the lease, seconds, 0.0 or less once it is
    over. ``configuration`` stays current after that until another is taken.
    """

    configuration: int
    replica: str
    address: str
    expires_in_s: float


class MetadataCondition(NamedTuple):
    """A write happens only if ``key`` holds exactly ``value`` (None: is absent)."""

    key: str
    value: bytes | None


class Snapshot(NamedTuple):
    """State with the effects of the entries up to ``lsn``, and of no others."""

    lsn: int
    chunks: Iterator[bytes]


class NewLog(NamedTuple):
    """What a log is created with, all in one atomic step, or ``LogExists``.

    ``metadata`` has at least the log's id (``curp.log._creation``). Only the copy of
    another log begins behind 0: ``trimmed`` entries that are not in it, and the
    ``configuration`` number it goes on from, whose lease is over.
    """

    metadata: Mapping[str, bytes]
    trimmed: int = 0
    configuration: int = 0


class LogEngine(Protocol):
    """One group's log in an existing store, shared by its replicas.

    Invariants:

    1. Every write is conditional on the writer's configuration number being the
       current one, judged in the same atomic step; else ``Deposed``, and nothing is
       written, now or later.
    2. Configuration numbers only grow, and each is given to one writer.
    3. An append is atomic and durable before it returns (as far as ``durability``
       says); LSNs have no gaps, and the entries of one append are adjacent.
    4. What ``read`` has once returned for an LSN it returns for ever, until trimmed.

    An engine is made with a ``NewLog`` to create the log, and without one to open it:
    then it raises ``NoSuchLog`` where there is none, and never makes any.

    Methods block and are safe in any thread. Errors are ``LogError``s
    (``curp.log._errors``): ``Deposed``, ``TailMismatch``, ``LeaseHeld``, ``ConditionFailed``,
    ``CorruptLog``, ``TrimmedLog``, ``InvalidRequest`` and ``EngineUnavailable``, which
    alone leaves open whether a write happened (of its kind: ``EngineStopped``, this
    engine never works again, and ``EngineFull``, the store has no room left). What
    every engine refuses as an ``InvalidRequest`` is in ``curp.log._checks``.
    """

    @property
    def durability(self) -> str:
        """What the store's settings promise of an acknowledged append, in a sentence."""

    @property
    def limits(self) -> EngineLimits:
        """What one append may hold; more is refused as an ``InvalidRequest``."""

    # Leadership.

    def leadership(self) -> Leadership | None:
        """Return the newest leadership, None if there was never one."""

    def take_leadership(self, replica: str, address: str, *, term_s: float) -> int:
        """Begin a new configuration under this replica, and return its number.

        Raises ``LeaseHeld`` (with the seconds left) while the lease of another
        replica runs. A replica's own running lease does not hold it up, so a process
        that reads under its lease needs a name that its successor does not have. From
        the return on, every write under an older number is refused.
        """

    def renew_leadership(self, configuration: int, *, term_s: float) -> None:
        """Let the lease run for a term from now; ``Deposed`` if the number is not current."""

    def end_leadership(self, configuration: int) -> None:
        """Let the lease end now, so that another replica need not wait; idempotent."""

    def next_configuration(
        self, configuration: int, metadata: Mapping[str, bytes | None], *, term_s: float
    ) -> int:
        """Begin the number after ``configuration`` under the same replica (invariant 11).

        ``metadata`` is written in the same step. Raises ``Deposed``.
        """

    # The log.

    def append(
        self,
        entries: Sequence[NewEntry],
        *,
        configuration: int,
        expected_tail: int,
        append_id: bytes,
        condition: MetadataCondition | None = None,
        metadata: Mapping[str, bytes | None] | None = None,
    ) -> int:
        """Append all entries behind LSN ``expected_tail``; return the new tail.

        ``append_id`` (16 bytes, unique) names this append: asked again with the same
        one and the same ``expected_tail`` after a lost reply, it is recognised and not
        repeated, even by then under an older number, until its entries are trimmed; behind
        that it may be recognised, or ``TailMismatch``.
        ``metadata`` is written in the same step, None deleting a key. Raises
        ``Deposed``, ``TailMismatch`` (with the tail found), ``ConditionFailed``, in
        this order. A tail found below the expected one went back: the store forgot
        what it had acknowledged.
        """

    def tail(self) -> int:
        """Return the LSN of the last entry, 0 for an empty log."""

    def first(self) -> int:
        """Return the LSN of the oldest entry still there (tail + 1 if there is none)."""

    def read(
        self,
        after: int,
        *,
        limit: int = READ_ENTRIES,
        max_bytes: int = READ_BYTES,
        tag: str | None = None,
    ) -> list[Entry]:
        """Return entries with LSN above ``after``, in order, at least one if there is any.

        With ``tag``, only those that carry it. ``max_bytes`` are of their bodies.
        ``TrimmedLog`` if ``after + 1`` was trimmed, ``CorruptLog`` for a gap, a damaged
        entry (never skipped), or a log that ends before ``after``.
        """

    def wait(self, after: int, *, timeout_s: float) -> int:
        """Wait until the tail is above ``after``, or the time is over; return the tail.

        Raises ``CorruptLog`` if the log ends before ``after``.
        """

    def trim(self, through: int, *, configuration: int) -> None:
        """Remove the entries up to ``through``, which a snapshot covers (else refused)."""

    # Metadata.

    def metadata(self, key: str) -> bytes | None:
        """Return the value of a key, None if it is absent."""

    def all_metadata(self) -> dict[str, bytes]:
        """Return all keys and their values, as of one moment."""

    def put_metadata(
        self,
        metadata: Mapping[str, bytes | None],
        *,
        configuration: int,
        condition: MetadataCondition | None = None,
    ) -> None:
        """Write keys in one step; None deletes one. Raises ``Deposed``, ``ConditionFailed``."""

    # Snapshots.

    def save_snapshot(self, lsn: int, chunks: Iterable[bytes], *, configuration: int) -> None:
        """Keep a snapshot, in the place of an older one only when it is whole and durable.

        The chunks come back as they are. Raises ``Deposed``.
        """

    def load_snapshot(self) -> Snapshot | None:
        """Return the newest whole snapshot, None if there is none.

        Its chunks raise ``TrimmedLog`` when another one took its place meanwhile (load
        again), and ``CorruptLog`` for a damaged or missing one.
        """

    def close(self) -> None:
        """Let go of connections and files; idempotent."""
