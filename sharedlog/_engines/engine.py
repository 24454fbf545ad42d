"""The interface of a log's engine: one atomic step, and reads (DESIGN-LOG §12, §18)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol, runtime_checkable

from sharedlog._core.commit import Commit
from sharedlog._core.steps import Lsns, Rows
from sharedlog._core.within import Within


class Limits(NamedTuple):
    """What one commit may hold; more is ``InvalidRequest``, and nothing is written.

    ``entries``: how many; ``append_bytes``: of their bodies and tags together;
    ``operations``: conditions and puts together. ``whole_terms``: seconds of a key's term are
    rounded up.
    """

    entries: int
    append_bytes: int
    operations: int
    whole_terms: bool = False

    def kept_s(self, term_s: float) -> float:
        """Return for how long a key with a term is kept."""
        return float(math.ceil(term_s)) if self.whole_terms else term_s


class Engine(Protocol):
    """Keeps entries in one order, and keys with values. Methods block; any thread.

    1. ``commit`` judges every condition and writes everything in one step, or nothing, durable
       before it returns (as far as ``durability`` says); a reader sees all of it or nothing.
    2. LSNs begin at 1 and have no gaps; a commit's entries are adjacent. No reader sees an LSN
       before all lower ones, and what was read under an LSN is read there until it is removed.
    3. What returned is in every later read, tail and wait, of any process.
    4. Each row keeps the time that its commit was given, or that of the row before it if that is
       later: times never fall from one LSN to the next. They survive the removal of rows.
    5. A key that was put with a term is absent once that is over by the engine's own clock: in
       the commit that judges it, and in each read. Never early, as far as that clock goes.

    Whatever a store's own errors are, an engine raises ``LogError``s: ``LogUnavailable`` if it
    is not known whether a commit happened (its kind ``LogFull``: it did not, for lack of room),
    ``CorruptLog`` if what is there is not what was written, a key's value too, ``TrimmedLog``.
    """

    @property
    def durability(self) -> str:
        """What the store's settings promise of an acknowledged commit, in a sentence."""

    @property
    def limits(self) -> Limits:
        """What one commit may hold."""

    def commit(self, commit: Commit) -> Lsns:
        """Do it, or raise ``Refused`` with what the conditions' keys hold."""

    def get(self, keys: tuple[str, ...]) -> dict[str, bytes | None]:
        """Return these keys' values as of one moment."""

    def scan(self, prefix: str) -> dict[str, bytes]:
        """Return the keys with this prefix, and their values, as of one moment."""

    def damaged(self) -> list[str]:
        """Return what is wrong with keys, in words: those that are not what was written."""

    def remaining(self, key: str) -> float:
        """Return the seconds left of a key's term: infinite without one, 0.0 if it is absent.

        0.0 or less once the term is over. A hint: a commit judges by itself. It is more than the
        engine's clock says where that was seen to jump, so who would replace the key waits.
        """

    def read(self, after: int, limit: int, tag: str | None = None) -> Rows:
        """Return rows with LSN above ``after``: with the tag, if one is given, and all of them.

        At most ``limit`` rows, and about ``READ_BYTES`` of their bodies, but at least one where
        there is one. ``Rows.through`` is the last row's LSN where that cut it short, else the
        tail. Raises ``TrimmedLog`` if ``after + 1`` is below ``first()``.
        """

    def tail(self) -> int:
        """Return the LSN of the last entry, 0 if there was never one."""

    def first(self) -> int:
        """Return the LSN of the oldest row that is still there; tail + 1 if there is none."""

    def wait(self, after: int, timeout_s: float) -> int:
        """Wait until the tail is above ``after``, or the timeout passes; return the tail.

        Woken by the store's own means where it has any (also of other processes' commits), which
        are hints only: it looks again soon after one, and every second (L5). A commit without
        entries wakes no wait.
        """

    def remove(self, through: int) -> None:
        """Remove the rows up to this LSN, and their tags; idempotent, and in bounded pieces.

        For those only that the rules have declared trimmed (a key, put by a commit). A crash
        leaves some of the lowest LSNs removed.
        """

    def close(self) -> None:
        """Close files and connections; idempotent. Calls that wait raise ``LogUnavailable``."""


@runtime_checkable
class Stirring(Protocol):
    """An engine that hears of changes to its keys, so that who looks again and again need not."""

    @property
    def stirs(self) -> int | None:
        """A number that is another one soon after a key has changed by more than its term.

        A hint, which may be late or miss one. None: it does not hear; it is another number later.
        """

    def hear(self, after: int, timeout_s: float) -> int:
        """Wait as ``wait``, but for one who waits again and again.

        What returned within the last second may be missing from the tail, if no hint tells of it.
        """


@runtime_checkable
class Joining(Protocol):
    """An engine in a database that applications use: it appends in their transactions, too.

    What is given is a driver's connection. Either raises ``WrongTransaction`` for one whose
    transaction cannot take the append along, and then nothing was written; other ``LogError``s as
    ``Engine``'s, and then the transaction may have failed, as the driver has it.
    """

    def append_in(self, connection: Any, within: Within) -> None:
        """Append in the transaction of a connection, which commits it or rolls it back."""

    async def append_in_aio(self, connection: Any, within: Within) -> None:
        """The same for an asynchronous connection; a blocking one is used on the event loop."""

    def make_way(self) -> str:
        """End transactions whose clients hang while all writers of the log wait for them.

        Returns whose could not be ended, in words; empty: all were ended, as far as can be seen.
        """


# About how many bytes of bodies one read returns.
READ_BYTES = 8 << 20
