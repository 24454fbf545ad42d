"""The judging of failures: tried again, a dead letter, or the target stops (DESIGN-LOG §15, P7)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from sharedlog._core.errors import LogError
from sharedlog._core.player.item import Skip
from sharedlog._core.player.trouble import Cause, Trouble
from sharedlog._core.position import Position

_DIED = "the target's process ended with this message alone in flight"


class Then(enum.Enum):
    """What becomes of a message that fails for good."""

    DEAD_LETTER = "dead-letter"
    STOP = "stop"
    # Of an unknown one alone: it is called once more.
    AGAIN = "again"


class Why(enum.Enum):
    """Why a target is suspended: nothing is sent until an operator acts."""

    FAILED = "a handler failed as often as it may"
    REFUSED = "a message can never be called"
    UNKNOWN = "the outcome of a message is unknown"
    FORKED = "its index is of another incarnation of the log"
    NOT_IN_LOG = "its index is not in the log"
    TRIMMED = "what it has not taken was trimmed"
    WIPED = "its index is gone, or another store stands there"
    SEALED = "a message cannot be opened"
    DEAD_LETTER = "a dead letter cannot be appended"
    SAME_ERROR = "many messages in a row have failed with the same error"


class TargetStopped(LogError):
    """A target is sent nothing until an operator acts; ``why``: the reason's name.

    Look ``why`` up: docs/reference/player.md#states-and-what-to-do.
    """

    def __init__(self, message: str, why: str) -> None:
        """``why``: of ``Why``."""
        super().__init__(message, why)
        self.why = why

    def __str__(self) -> str:
        """The message alone."""
        return str(self.args[0])


class Suspended(NamedTuple):
    """A target that is sent nothing any more; ``about``: the message, where it is about one."""

    why: Why
    details: str
    tag: str = ""
    about: Position | None = None


class Again(NamedTuple):
    """It is tried again, after a pause that grows, or at once."""

    pause: bool


class Skipped(NamedTuple):
    """A message is given up: it is skipped at the target, then a dead letter.

    ``instead``: the target stops, where that is no message that can be one.
    """

    tag: str
    place: Position
    skip: Skip
    instead: Suspended


class Anew(NamedTuple):
    """A message of unknown outcome is called anew."""

    tag: str
    place: Position


Verdict = Again | Skipped | Anew | Suspended


class FailurePolicy(NamedTuple):
    """A target's declared policy. ``tries``: of one message; None: without a limit.

    ``same_error``: so many messages in a row with the same error stop the target, 0: never.
    """

    tries: int | None = None
    failed: Then = Then.STOP
    refused: Then = Then.STOP
    unknown: Then = Then.STOP
    same_error: int = 0


class _Row:
    """Messages that were given up one after the other with the same error, none taken between."""

    def __init__(self) -> None:
        self._error = ""
        # By substream, the one that was given up last, and through where it was taken.
        self._given_up: dict[str, Position] = {}
        self._taken: dict[str, Position] = {}
        self.count = 0

    def add(self, error: str, tag: str, place: Position) -> int:
        """Add a message, if it is another one; return how many there are."""
        if error != self._error:
            self._error, self.count = error, 0
        if self._given_up.get(tag) != place:
            self.count += 1
        self._given_up[tag] = place
        return self.count

    def taken(self, tag: str, place: Position) -> None:
        """A substream was taken through there: more than what was given up ends the row."""
        known, given_up = self._taken.get(tag), self._given_up.get(tag)
        self._taken[tag] = place
        if known is not None and place[:2] > known[:2] and place != given_up:
            self.count = 0


class Failing:
    """What failed at one target, and how often; of the message that each substream is at."""

    def __init__(
        self, rules: FailurePolicy, attempts: Mapping[str, tuple[Position, int]] | None = None
    ) -> None:
        """``attempts``: what the player before this one has counted."""
        self.rules = rules
        # By substream, the message that failed and how often; kept where a crash does not reach.
        self.attempts = dict(attempts or {})
        self._row = _Row()

    def done(self, tag: str, place: Position) -> None:
        """A substream was taken through there."""
        self._row.taken(tag, place)
        found = self.attempts.get(tag)
        if found is not None and place[:2] >= found[0][:2]:
            del self.attempts[tag]

    def forget(self) -> None:
        """An operator has it go on: all count from the beginning."""
        self.attempts.clear()
        self._row = _Row()

    def judge(self, trouble: Trouble) -> Verdict:
        """Say what is done after a target was cut off."""
        tag, place = trouble.tag, trouble.place
        match trouble.cause:
            case Cause.FULL | Cause.RESTARTED | Cause.ORDERED:
                return Again(pause=False)
            case Cause.FORKED:
                return Suspended(Why.FORKED, trouble.details, tag, place)
            case Cause.REFUSED if place is not None:
                return self._ended(self.rules.refused, Why.REFUSED, trouble, place)
            case Cause.UNKNOWN if place is not None:
                return self._ended(self.rules.unknown, Why.UNKNOWN, trouble, place)
            case Cause.FAILED if place is not None:
                return self._failed(trouble, place)
            case Cause.HUNG | Cause.DIED if trouble.alone and place is not None:
                return self._failed(trouble, place)
        return Again(pause=True)

    def _failed(self, trouble: Trouble, place: Position) -> Verdict:
        known, count = self.attempts.get(trouble.tag, (place, 0))
        count = 1 + (count if known == place else 0)
        self.attempts[trouble.tag] = (place, count)
        tries = self.rules.tries
        if tries is None or count < tries:
            return Again(pause=True)
        return self._ended(self.rules.failed, Why.FAILED, trouble, place)

    def _ended(self, then: Then, why: Why, trouble: Trouble, place: Position) -> Verdict:
        died = trouble.cause is Cause.DIED
        said = _DIED if died else trouble.details or trouble.cause.value
        stopped = Suspended(why, said, trouble.tag, place)
        if then is Then.DEAD_LETTER:
            code = f" ({trouble.code})" if trouble.code else ""
            skip = Skip(f"{why.name}{code}: {said}", "rule")
            count = self._row.add(skip.reason, trouble.tag, place)
            if 0 < self.rules.same_error <= count:
                said = f"{count} messages in a row have failed with the same error: {said}"
                return Suspended(Why.SAME_ERROR, said, trouble.tag, place)
            return Skipped(trouble.tag, place, skip, stopped)
        if then is Then.AGAIN:
            return Anew(trouble.tag, place)
        return stopped
