"""The headline of a target: what is wrong with it, in a few words (DESIGN-LOG §15)."""

from __future__ import annotations

import enum
from typing import NamedTuple

from sharedlog._core.player.rows import TargetState, Wish

# A player tells of a target each ten seconds at least.
_SILENT_US = 30_000_000
# A message that has failed once or twice may be chance.
_OFTEN = 3
_STATES = {"S": "connecting", "ASKED": "asked", "RF": "recovering", "FC": "catching up"}


class Level(enum.Enum):
    """How bad it is."""

    GOOD = "good"
    # It passes by itself, as far as is known.
    BUSY = "busy"
    # An operator should look.
    BAD = "bad"
    # No action is needed.
    OFF = "off"


class Headline(NamedTuple):
    """What people are told first. ``word``: the state; ``text``: what is wrong, or nothing."""

    level: Level
    word: str
    text: str = ""


def headline(told: TargetState | None, wished: Wish, now_us: int) -> Headline:
    """Say how a target is, by what its player told last."""
    if wished.paused is not None:
        return Headline(Level.OFF, "paused", f"by {wished.paused.by}: {wished.paused.why}")
    if told is None:
        return Headline(Level.OFF, "not told", "no player has told of it yet")
    if now_us - told.at_us > _SILENT_US:
        passed_s = (now_us - told.at_us) // 1_000_000
        text = f"nothing was told of it for {passed_s} s: no player of this name leads"
        return Headline(Level.BAD, "not told", text)
    if told.state == "stopped":
        about = f"{told.about_tag} at {_short(told.about)}: " if told.about else ""
        return Headline(Level.BAD, f"stopped {told.why}", about + told.details)
    if told.state == "S" and told.error:
        return Headline(Level.BAD, "down", told.error)
    if told.attempts:
        return _waiting(told)
    if told.lag and told.error_at_us > told.moved_at_us:
        return Headline(Level.BAD, "stuck", f"nothing was taken since its last error: {told.error}")
    if told.limit:
        text = f"its process has crashed: {told.limit} messages are in flight at once, at most"
        return Headline(Level.BUSY, "limited", text)
    if told.state == "N":
        return Headline(Level.GOOD, "fed")
    return Headline(Level.BUSY, _STATES.get(told.state, told.state))


def _waiting(told: TargetState) -> Headline:
    tag, (place, count) = max(told.attempts.items(), key=lambda each: (each[1][1], each[0]))
    more = len(told.attempts) - 1
    others = f" (and {more} more)" if more else ""
    times = "once" if count == 1 else f"{count} times"
    text = f"{tag} at {_short(place)}{others} has failed {times}: {told.error}"
    return Headline(Level.BAD if count >= _OFTEN else Level.BUSY, "retrying", text)


def _short(place: str) -> str:
    return place.partition("-")[0]
