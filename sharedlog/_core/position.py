"""A position: the place of one committed message in its substream (DESIGN-LOG §13, C3)."""

from __future__ import annotations

from dataclasses import dataclass

from sharedlog._core.errors import InvalidRequest, LogForked


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The LSN of the entry that committed the message, and its place in that commit.

    Positions of one substream are ordered as its messages are delivered; those of different
    substreams by the log's order, without a promise. ``str`` and ``parse`` round-trip. Whoever
    keeps one keeps a whole checkpoint: ``incarnation`` and ``checksum`` tell whether the log
    that is there is the one it was read from.
    """

    lsn: int
    ordinal: int
    # Of the committing entry.
    checksum: int
    incarnation: str

    def __str__(self) -> str:
        """``LSN.ORDINAL-CHECKSUM@INCARNATION``, the checksum in hexadecimal."""
        return f"{self.lsn}.{self.ordinal}-{self.checksum:08x}@{self.incarnation}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read what ``str`` gave; raises ``InvalidRequest``."""
        place, at, incarnation = text.partition("@")
        numbers, _, checksum = place.partition("-")
        lsn, _, ordinal = numbers.partition(".")
        try:
            found = cls(int(lsn), int(ordinal), int(checksum, 16), incarnation)
        except ValueError:
            found = None
        if found is None or not at or not incarnation or str(found) != text:
            raise InvalidRequest(f"{text[:100]!r} is no position")
        return found

    def check_incarnation(self, incarnation: str) -> None:
        """Raise ``LogForked`` if this position is of another log, or of another copy of it."""
        if incarnation != self.incarnation:
            raise LogForked(
                f"the position is of incarnation {self.incarnation}, the log is {incarnation}: "
                "it is another log, or was restored and declared so"
            )
