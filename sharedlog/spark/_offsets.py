"""Offsets of a query: an LSN through which every substream was read (DESIGN-LOG §16)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sharedlog._core.errors import TrimmedLog
from sharedlog._core.following import Start, append_at, find_starts
from sharedlog._core.position import Position
from sharedlog._core.ranges import Range, split
from sharedlog._core.steps import Rule
from sharedlog.spark._options import SourceError


class Offset(NamedTuple):
    """Through which LSN a query has read, and of which log that is.

    ``begun``: the position of a message behind which a query begins in the midst of a commit;
    no offset but the first has one. ``stream``: what it reads, for who sees Spark's progress.
    """

    lsn: int
    incarnation: str
    begun: str = ""
    stream: str = ""

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> Offset:
        """Read what ``json`` gave, as a checkpoint kept it; raises ``SourceError``."""
        lsn, incarnation = said.get("lsn"), said.get("incarnation")
        begun, stream = said.get("begun", ""), said.get("stream", "")
        texts = all(isinstance(each, str) for each in (incarnation, begun, stream))
        if type(lsn) is not int or not texts:
            raise SourceError(f"the checkpoint's offset is not of this source: {said!r:.200}")
        return cls(lsn, str(incarnation), begun, stream)

    def json(self) -> dict[str, Any]:
        """Return it as Spark keeps it."""
        said = self._asdict()
        return {name: each for name, each in said.items() if each != ""}


def behind_trimmed(lsn: int, error: TrimmedLog) -> TrimmedLog:
    """Return what a query is told that has read through an LSN, and what follows is gone."""
    return TrimmedLog(
        f"the query has read through LSN {lsn}, and what follows was trimmed while it was away: "
        f"the log is whole from LSN {error.first} on, the rest is lost to this query. Go on with "
        "a new checkpoint (its sink says adopt, where it has a name); the option name has the "
        "log keep what a query has not read",
        error.first,
        (lsn + 1, error.first - 1) if error.first > lsn + 1 else None,
    )


def first_offset(tags: Sequence[str], incarnation: str, start: Start) -> Rule[Offset]:
    """Return where a query begins; raises ``LogForked``, ``TrimmedLog``, ``InvalidRequest``."""
    starts = yield from find_starts(tags, incarnation, start)
    lowest = min(each.lsn if isinstance(each, Position) else each for each in starts.values())
    if isinstance(start, Position):
        return Offset((yield from append_at(lowest)) - 1, incarnation, str(start))
    return Offset(lowest - 1, incarnation)


def ranges_of(tags: Sequence[str], start: Offset, end: Offset, entries: int) -> Rule[list[Range]]:
    """Return what tasks read, each a range, of what was committed between two offsets.

    Raises ``LogForked`` if they are of different logs.
    """
    if end.lsn <= start.lsn:
        return []
    found = yield from split(tags, start.lsn, end.lsn, entries)
    if not start.begun:
        return found
    behind = Position.parse(start.begun)
    starts = yield from find_starts(tags, start.incarnation, behind)
    return [_begun(each, starts[each.tag]) for each in found]


def _begun(of: Range, start: Position | int) -> Range:
    if isinstance(start, Position):
        return of._replace(behind=start) if of.after < start.lsn <= of.through else of
    return of._replace(after=max(of.after, start - 1))
