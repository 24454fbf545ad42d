"""The letters that could not be delivered, appended to the stream of dead letters (P7)."""

from __future__ import annotations

from _rifl_ground.log import get_logger
from sharedlog._core.errors import LogError, LogUnavailable
from sharedlog._core.player.deadletters import Whose, bury_skipped, is_letter_at
from sharedlog._core.player.failing import Again, Skipped, Verdict
from sharedlog._core.player.indexes import Unconfirmed
from sharedlog._player.stage import Stage

_log = get_logger("sharedlog")


async def possible(stage: Stage, verdict: Verdict) -> Verdict:
    """Return it, or what is done instead: of a dead letter none is made, without end."""
    if not isinstance(verdict, Skipped):
        return verdict
    tag, place, seals = verdict.tag, verdict.place, stage.place.seals
    try:
        letter = await stage.run(lambda: is_letter_at(tag, place, seals))
    except LogUnavailable:
        # It is called once more, and judged again.
        return Again(pause=True)
    except LogError:
        return verdict
    return verdict.instead if letter else verdict


async def bury_one(stage: Stage, whose: Whose, tag: str, skipped: Unconfirmed) -> None:
    """Have a message that a target skipped among the dead letters, once."""
    stream, fence, seals = stage.dead_letters, stage.fence, stage.place.seals
    await stage.run(lambda: bury_skipped(stream, whose, tag, skipped, fence, seals))
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
