"""The indexes that a target tells of, held against the log (DESIGN-LOG §15, P5, P6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sharedlog._core.errors import CorruptLog, LogForked, TrimmedLog
from sharedlog._core.following import append_at
from sharedlog._core.holds import Hold
from sharedlog._core.player.failing import Suspended, Why
from sharedlog._core.position import Position
from sharedlog._core.reading import verify
from sharedlog._core.steps import Ends, Lsns, Rule
from sharedlog._core.whole import read_trimmed


class Unconfirmed(NamedTuple):
    """What an index has skipped, and is not known to be among the dead letters yet."""

    place: Position
    number: int
    reason: str
    by: str
    at_us: int


class KnownIndex(NamedTuple):
    """Of one substream, as its target keeps it. ``at``: None: nothing was ever taken.

    ``running``: the message whose handler runs there now; ``waits``: for another handler.
    """

    tag: str
    at: Position | None
    taken: int = 0
    begun: Position | None = None
    skipped: tuple[Unconfirmed, ...] = ()
    running: Position | None = None
    waits: bool = False


def check_store(known: str | None, store: str) -> Suspended | None:
    """Return why a target is not fed: its index was begun in another store than has answered."""
    if known is None or known == store:
        return None
    return Suspended(
        Why.WIPED,
        f"another store stands there: {store or 'one without an id'} answers, and the target's "
        f"index was begun in {known}",
    )


class Begins(NamedTuple):
    """Where a target goes on. ``starts``: of its recovery stream, LSNs where nothing was taken."""

    indexes: dict[str, Position | None]
    starts: dict[str, Position | int]


def held_against(
    indexes: Sequence[KnownIndex], holds: Mapping[str, Hold], incarnation: str
) -> Rule[Begins | Suspended]:
    """Return where a target goes on, or why it does not; nothing is guessed.

    ``holds``: of each of its substreams; one that was never moved says where a new target begins.
    """
    trimmed = yield from read_trimmed()
    verified: set[tuple[int, int]] = set()
    starts: dict[str, Position | int] = {}
    for each in indexes:
        at, hold = each.at, holds[each.tag]
        if at is None:
            if hold.position is not None:
                return Suspended(
                    Why.WIPED,
                    f"{each.tag} was taken through {hold.position}, and its target knows of "
                    "nothing: it was wiped, or is another one",
                    each.tag,
                )
            starts[each.tag] = hold.lsn
            continue
        if at.incarnation != incarnation:
            said = (
                f"{each.tag} was taken from incarnation {at.incarnation}, not {incarnation}: this "
                "log was restored, or another log has fed the target under the same log_name. "
                + (
                    "replay has it begin anew"
                    if hold.position is not None
                    # This player has never fed it.
                    else "Give this player a log_name that no other log has at this target"
                )
            )
            return Suspended(Why.FORKED, said, each.tag, at)
        if (at.lsn, at.checksum) not in verified:
            try:
                trimmed.check(at.lsn)
                yield from verify(at)
            except TrimmedLog as error:
                return Suspended(Why.TRIMMED, f"{each.tag}: {error}", each.tag, at)
            except (LogForked, CorruptLog) as error:
                return Suspended(Why.NOT_IN_LOG, f"{each.tag}: {error}", each.tag, at)
            verified.add((at.lsn, at.checksum))
        starts[each.tag] = at
    return Begins({each.tag: each.at for each in indexes}, starts)


def main_begins(lows: Sequence[int], near: int) -> Rule[int]:
    """Return the LSN from which on the main stream is read: the lowest index that is near the end.

    ``lows``: through which LSN each target has taken everything; ``near``: in LSNs. Who is further
    behind is recovered, so that the others need not wait for what it missed.
    """
    ends: Lsns = yield Ends()
    lowest = min((each for each in lows if each + near >= ends.last), default=ends.last)
    first = max(min(lowest, ends.last), ends.first - 1) + 1
    if first > ends.last:
        return first
    return (yield from append_at(first))
