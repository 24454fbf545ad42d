"""The standing of one target: what failed, what went wrong last, and who is told (§15, P7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from _rifl_ground.log import get_logger
from sharedlog._core.player.backoff import LONGEST_S
from sharedlog._core.player.deaths import Death
from sharedlog._core.player.failing import Failing, Skipped, Suspended
from sharedlog._core.player.trouble import Cause, Trouble
from sharedlog._core.position import Position
from sharedlog._player.declared import Target
from sharedlog._player.stage import Stage

_log = get_logger("sharedlog")


class TargetStanding:
    """Of one target of a player that leads. ``suspended``: why it is sent nothing, if it is not."""

    def __init__(
        self, target: Target, stage: Stage, attempts: Mapping[str, tuple[Position, int]]
    ) -> None:
        """``attempts``: of messages that failed under the player before."""
        self._name = target.name
        self._stage = stage
        self.failing = Failing(target.rules, attempts)
        self.suspended: Suspended | None = None
        self.error = ""
        self.error_at_us = 0
        # Why it was not reached, and when that was logged last.
        self._unreached: tuple[Cause, float] | None = None

    def note(self, error: str) -> None:
        """Tell what went wrong last."""
        self.error, self.error_at_us = error, self._stage.outside.now_us()

    def suspend(self, suspended: Suspended) -> None:
        """Send nothing until an operator acts; told once."""
        if suspended == self.suspended:
            return
        self.suspended = suspended
        self.note(suspended.details)
        self._stage.watchers.stopped(self._name, suspended.why.name)
        _log.error(
            "target_stopped",
            why=suspended.why.name,
            error=suspended.details,
            **self._about(suspended.tag, suspended.about),
        )

    def taken(self, tag: str, place: Position) -> None:
        """A substream was taken through there."""
        self.failing.done(tag, place)
        if self.suspended is not None and self.suspended.tag in ("", tag):
            self.suspended = None

    def troubled(self, trouble: Trouble) -> None:
        """It was cut off, or a substream of it."""
        self.note(f"{trouble.cause.value}: {trouble.details}".rstrip(": "))
        self._stage.watchers.troubled(self._name, trouble.cause.name)

    def gives_up(self, skipped: Skipped) -> None:
        """A message has failed as often as it may."""
        about = self._about(skipped.tag, skipped.place)
        _log.error("message_given_up", error=skipped.skip.reason, **about)

    def waits(self, trouble: Trouble, pause_s: float) -> None:
        """A substream waits, whose message failed."""
        self.troubled(trouble)
        self._again("substream_waits", trouble, pause_s)

    def died(self, died: Death, limit: int) -> None:
        """Its process has ended; ``limit``: how many messages it is sent at once from now on."""
        about = self._about(*died.alone) if died.alone else self._about("", None)
        self.note(f"its process {died.process} has ended, with {died.in_flight} messages in flight")
        _log.warning(
            "target_died", process=died.process, in_flight=died.in_flight, limit=limit, **about
        )

    def is_down(self, trouble: Trouble, pause_s: float, now_s: float, *, reached: bool) -> None:
        """It is tried again after a pause."""
        if self._is_news(trouble.cause, now_s, reached=reached):
            self._again("target_down", trouble, pause_s, cause=trouble.cause.name)

    def _is_news(self, cause: Cause, now_s: float, *, reached: bool) -> bool:
        """Whether to log it: a target that stays unreachable is logged now and then."""
        known = self._unreached
        if reached:
            self._unreached = None
            return True
        if known is not None and known[0] is cause and now_s - known[1] < LONGEST_S:
            return False
        self._unreached = cause, now_s
        return True

    def _again(self, event: str, trouble: Trouble, pause_s: float, **more: Any) -> None:
        about = self._about(trouble.tag, trouble.place)
        again_in_s = round(pause_s, 3)
        _log.warning(event, error=trouble.details, again_in_s=again_in_s, **about, **more)

    def _about(self, tag: str, place: Position | None) -> dict[str, str]:
        return {
            "player": self._stage.player,
            "target": self._name,
            "substream": tag,
            "position": str(place or ""),
        }
