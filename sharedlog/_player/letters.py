"""The letters that could not be delivered, appended to the stream of dead letters (P7)."""

from __future__ import annotations

from rifl._log import get_logger
from sharedlog._core.catalog import make_stream
from sharedlog._core.errors import LogError, LogForked, LogUnavailable, TrimmedLog
from sharedlog._core.player.deadletters import Whose, bury, is_letter, message_at, written
from sharedlog._core.player.failing import Again, Skipped, Verdict
from sharedlog._core.player.indexes import Unconfirmed
from sharedlog._core.position import Position
from sharedlog._log.resending import until_answered
from sharedlog._player.stage import Stage

_log = get_logger("sharedlog")


async def possible(stage: Stage, verdict: Verdict) -> Verdict:
    """Return it, or what is done instead: of a dead letter none is made, without end."""
    if not isinstance(verdict, Skipped):
        return verdict
    try:
        letter = await stage.threads.run(_is_one, stage, verdict.tag, verdict.place)
    except LogUnavailable:
        # It is called once more, and judged again.
        return Again(pause=True)
    except LogError:
        return verdict
    return verdict.instead if letter else verdict


def _is_one(stage: Stage, tag: str, at: Position) -> bool:
    """Return whether a message is a dead letter itself: none is made of that; in a thread."""
    place = stage.place
    envelope = until_answered(place, lambda: message_at(tag, at))
    return envelope is not None and is_letter(envelope, place.seals)


def bury_one(stage: Stage, whose: Whose, tag: str, skipped: Unconfirmed) -> None:
    """Have a message that a target skipped among the dead letters, once; in a thread."""
    place = stage.place
    stream = place.run(make_stream(stage.dead_letters))
    try:
        envelope = until_answered(place, lambda: message_at(tag, skipped.place))
    except (TrimmedLog, LogForked):
        # Its hold is before it, unless somebody dropped that.
        envelope = None
    placed = written(stream, whose, tag, skipped, envelope or b"")
    until_answered(
        place, lambda: bury(whose, tag, skipped.number, placed, stage.fence, place.seals)
    )
    stage.watchers.buried(whose.target)
    _log.warning(
        "dead_letter",
        player=stage.player,
        target=whose.target,
        substream=tag,
        position=str(skipped.place),
        reason=skipped.reason,
        by=skipped.by,
    )
