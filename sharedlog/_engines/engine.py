"""The interface of a log's engine: one atomic step, and reads (DESIGN-LOG §12, §18)."""

from __future__ import annotations

from typing import Protocol

from sharedlog._core.commit import Commit
from sharedlog._core.steps import Lsns, Rows


class Engine(Protocol):
    """Keeps entries in one order, and keys with values. Methods block; any thread.

    1. ``commit`` judges every condition and writes everything in one step, or nothing, durable
       before it returns; a reader sees all of it or nothing.
    2. LSNs begin at 1 and have no gaps; a commit's entries are adjacent. No reader sees an LSN
       before all lower ones, and what was read under an LSN is read there for ever.
    3. What returned is in every later read, of any process.
    """

    def commit(self, commit: Commit) -> Lsns:
        """Do it, or raise ``Refused`` with what the conditions' keys hold."""

    def get(self, keys: tuple[str, ...]) -> dict[str, bytes | None]:
        """Return these keys' values as of one moment."""

    def scan(self, prefix: str) -> dict[str, bytes]:
        """Return the keys with this prefix, and their values, as of one moment."""

    def read(self, after: int, limit: int, tag: str | None = None) -> Rows:
        """Return rows with LSN above ``after``: with the tag, if one is given, and all of them.

        ``Rows.through`` is the last row's LSN where ``limit`` cut it short, else the tail.
        """

    def tail(self) -> int:
        """Return the LSN of the last entry, 0 if there is none."""

    def close(self) -> None:
        """Let go of files and connections; idempotent."""
