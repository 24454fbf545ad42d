"""A position: the place of one committed message in its substream (DESIGN-LOG §13, C3)."""

from __future__ import annotations

from typing import NamedTuple

from _rifl_ground.numbers import is_whole
from sharedlog._core.errors import InvalidRequest, LogForked

MAX_LSN = (1 << 63) - 1
_MOST = (1 << 32) - 1


class Position(NamedTuple):
    """The LSN of the entry that committed the message, and its place in that commit.

    Positions of one substream are in the order of delivery. Those of different substreams are in
    the log's order, without a promise. ``str`` and ``parse`` round-trip. A position is a whole
    checkpoint. ``incarnation`` and ``checksum`` tell whether the log is the one it was read from.
    If several substreams are followed together, ``substream`` tells which of them were read through
    this commit already.
    """

    lsn: int
    ordinal: int
    # Of the committing entry.
    checksum: int
    incarnation: str
    substream: int

    def __str__(self) -> str:
        """``LSN.ORDINAL/SUBSTREAM-CHECKSUM@INCARNATION``, the checksum in hexadecimal."""
        at = f"{self.lsn}.{self.ordinal}/{self.substream}"
        return f"{at}-{self.checksum:08x}@{self.incarnation}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read what ``str`` gave; raises ``InvalidRequest``."""
        if not isinstance(text, str):
            raise InvalidRequest(f"a position's text is a str, not {type(text).__name__}")
        place, at, incarnation = text.partition("@")
        numbers, _, checksum = place.partition("-")
        lsn, _, rest = numbers.partition(".")
        ordinal, _, substream = rest.partition("/")
        try:
            found = cls(int(lsn), int(ordinal), int(checksum, 16), incarnation, int(substream))
        except ValueError:
            found = None
        if found is None or not at or not incarnation or str(found) != text:
            raise InvalidRequest(f"{text[:100]!r} is no position")
        return found

    def check(self, incarnation: str, substreams: int) -> None:
        """Raise ``LogForked`` as ``check_incarnation``, and ``InvalidRequest`` if none is so.

        ``substreams``: how many its stream has.
        """
        self.check_incarnation(incarnation)
        for number, least, most in (
            (self.lsn, 1, MAX_LSN),
            (self.ordinal, 0, _MOST),
            (self.checksum, 0, _MOST),
            (self.substream, 0, substreams - 1),
        ):
            if not is_whole(number) or not least <= number <= most:
                raise InvalidRequest(f"{tuple(self)!r:.200} is no position of this stream")

    def check_incarnation(self, incarnation: str) -> None:
        """Raise ``LogForked`` if this position is of another log, or of another copy of it."""
        if incarnation != self.incarnation:
            raise LogForked(
                f"the position is of incarnation {self.incarnation}, the log is {incarnation}: "
                "it is another log, or was restored and declared so"
            )
