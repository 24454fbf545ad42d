"""The feeding of one target: by one feeder, and one more for each substream that waits (§15, P7).

A message whose handler fails holds up its own substream: that leaves the target's feeder, waits,
and goes on by itself, through the states that the target went through, until it has all that the
main stream dispatched; then it joins the others again. While it waits nothing of it is kept here,
however much there is of it in the log, and its index is where it was: it is not skipped, and what
is behind its message is not sent before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sharedlog._core.player.deaths import Deaths
from sharedlog._core.player.feeder import Feeder, FeederBounds, FeederState
from sharedlog._core.player.item import Item, Outgoing, Skip
from sharedlog._core.player.trouble import Trouble
from sharedlog._core.position import Position

# So many substreams go on by themselves at once, each with this part of what the target may have.
_ASIDE, _PART = 8, 8


class Aside:
    """A substream that goes on by itself. ``feeder``: in S while it waits, until ``until_s``.

    ``fell_back``: what follows the sent messages must be fetched again.
    """

    def __init__(self, feeder: Feeder, until_s: float) -> None:
        """It waits."""
        self.feeder = feeder
        self.until_s = until_s
        self.fell_back = False


class Feeding:
    """What a player does for one target. Its driver calls its methods one at a time.

    ``main``: the feeder of all substreams that do not go on by themselves.
    """

    def __init__(
        self,
        bounds: FeederBounds = FeederBounds(),  # noqa: B008 - it does not change
        kept: Mapping[str, Any] | None = None,
    ) -> None:
        """It is down. ``kept``: of the deaths of its processes, by the player before this one."""
        self.main = Feeder(bounds, Deaths(bounds.window_count, kept))
        self._aside: dict[str, Aside] = {}
        # Through where each substream was taken on this connection, or before it.
        self._at: dict[str, Position | None] = {}
        # Through which LSN the main stream was dispatched to all of them, as far as is known.
        self._dispatched = 0
        self._turn = False

    # Its state, for observers.

    @property
    def state(self) -> FeederState:
        """Of the target."""
        return self.main.state

    @property
    def term(self) -> int:
        """Of its connection."""
        return self.main.term

    @property
    def trouble(self) -> Trouble:
        """Why it was cut off last."""
        return self.main.trouble

    @property
    def acknowledged(self) -> dict[str, Position]:
        """Through where it is known to have taken each substream."""
        return self.main.acknowledged

    @property
    def deaths(self) -> Deaths:
        """What became of its processes, and how much may be in flight by that."""
        return self.main.deaths

    @property
    def aside(self) -> Mapping[str, Aside]:
        """Substreams that go on by themselves."""
        return self._aside

    @property
    def queued(self) -> int:
        """How many messages wait for it here."""
        count = self.main.queued
        # Asked for with each answer: mostly nothing goes on by itself.
        if self._aside:
            count += sum(each.feeder.queued for each in self._aside.values())
        return count

    @property
    def in_flight(self) -> int:
        """How many deliveries are not answered."""
        count = self.main.in_flight
        if self._aside:
            count += sum(each.feeder.in_flight for each in self._aside.values())
        return count

    @property
    def crowded(self) -> bool:
        """Whether the main stream had better wait, if all targets are so."""
        return self.main.crowded

    @property
    def gathers(self) -> bool:
        """Whether something waits for it, and more may come into the same batch."""
        return self.main.gathers

    @property
    def fed(self) -> bool:
        """Whether the main stream feeds it, or will."""
        return self.main.fed or any(each.feeder.fed for each in self._aside.values())

    @property
    def settled(self) -> bool:
        """Whether it has all that was dispatched."""
        return self.state is FeederState.N and not (self._aside or self.queued or self.in_flight)

    def late(self, now_s: float, patience_s: float) -> list[str]:
        """Return the substreams that it has let wait for longer than it may."""
        return [tag for each in self._feeders() for tag in each.late(now_s, patience_s)]

    def _feeders(self) -> Iterator[Feeder]:
        yield self.main
        for each in self._aside.values():
            yield each.feeder

    # Its connection.

    def connect(self) -> int:
        """Begin a connection, and return its term; what was queued under an older one is gone."""
        return self.main.connect()

    def begin(
        self,
        term: int,
        indexes: Mapping[str, Position | None],
        suspects: Iterable[str] = (),
        at_once: int = 0,
        failed: Iterable[str] = (),
    ) -> bool:
        """It said where it is; False: it was cut off meanwhile.

        ``suspects``: substreams whose messages are sent one at a time until one is taken.
        ``at_once``: the most bytes of one batch, 0: as before. ``failed``: substreams whose next
        message has failed before, under another player: they go on by themselves.
        """
        # What may kill its target is sent with nothing beside it.
        suspects = set(suspects)
        aside = {tag: each for tag, each in self._aside.items() if tag not in suspects}
        for tag in failed:
            if tag in indexes and tag not in suspects and tag not in aside:
                aside[tag] = Aside(self.main.part(_PART), 0.0)
        for tag, each in aside.items():
            if self.main.decided(tag) is not None:
                each.until_s = 0.0
        if at_once:
            self.main.at_once = at_once
        rest = {tag: place for tag, place in indexes.items() if tag not in aside}
        if not self.main.begin(term, rest, suspects):
            return False
        self._at, self._aside = dict(indexes), aside
        for tag in aside:
            self.main.found(tag, indexes[tag])
        return True

    def cut(self, trouble: Trouble) -> None:
        """Drop what waits for it: it is asked anew where it is."""
        self.main.cut(trouble)
        for each in self._aside.values():
            each.feeder.cut(trouble)
            each.fell_back = False

    def troubled(self, term: int, trouble: Trouble) -> bool:
        """It answered that something is wrong; False: that was of an older connection."""
        if term != self.term or self.state is FeederState.S:
            return False
        self.cut(trouble)
        return True

    # Substreams that go on by themselves.

    def hold_up(self, term: int, trouble: Trouble, until_s: float) -> bool:
        """Have a substream wait whose message failed; False: that is not how it stands."""
        tag, place = trouble.tag, trouble.place
        if term != self.term or self.state in (FeederState.S, FeederState.ASKED):
            return False
        known = self._aside.get(tag)
        if place is None or not (known.feeder if known else self.main).at_first(tag, place):
            return False
        self.deaths.answered(tag, place)
        if known is None:
            self.main.leave(tag)
            known = self._aside[tag] = Aside(self.main.part(_PART), until_s)
        known.feeder.cut(trouble)
        known.until_s, known.fell_back = until_s, False
        return True

    def due(self, now_s: float) -> list[str]:
        """Return the substreams that must go on by themselves now."""
        if self.state in (FeederState.S, FeederState.ASKED):
            return []
        waiting = [tag for tag, each in self._aside.items() if each.feeder.state is FeederState.S]
        room = _ASIDE - len(self._aside) + len(waiting)
        ready = [tag for tag in waiting if self._aside[tag].until_s <= now_s]
        ready = sorted(ready, key=lambda tag: self._aside[tag].until_s)[: max(0, room)]
        return [*ready, *(tag for tag, each in self._aside.items() if each.fell_back)]

    def due_s(self) -> float | None:
        """Return when the next one must go on; None: none is known."""
        if self.state in (FeederState.S, FeederState.ASKED):
            return None
        waiting = [
            each.until_s for each in self._aside.values() if each.feeder.state is FeederState.S
        ]
        if len(self._aside) - len(waiting) >= _ASIDE:
            return None
        return min(waiting, default=None)

    def open(self, tag: str) -> tuple[Feeder, Position | None]:
        """Have one go on; return its feeder, in RF, and behind what it is read for it."""
        aside = self._aside[tag]
        feeder, at = aside.feeder, self._at.get(tag)
        if aside.fell_back:
            aside.fell_back = False
            return feeder, feeder.sent(tag)
        feeder.at_once = self.main.at_once
        # Its message by itself, until that is taken.
        feeder.begin(feeder.connect(), {tag: at}, [tag])
        return feeder, at

    def wait_on(self, tag: str, until_s: float) -> None:
        """Have one that waits go on then."""
        self._aside[tag].until_s = until_s

    def found(self, tag: str, place: Position | None) -> None:
        """It says where one is that waits."""
        self._at[tag] = place
        self.main.found(tag, place)

    def hurry(self) -> None:
        """Have all go on at once."""
        for each in self._aside.values():
            each.until_s = 0.0

    def _join(self) -> None:
        """Have those that have all that was dispatched be fed with the others again."""
        if not self._aside or self.state is not FeederState.N:
            return
        for tag, each in list(self._aside.items()):
            feeder = each.feeder
            # What the others fetched for themselves they do not take from the main stream.
            has_it = max(feeder.end, self._dispatched) >= self.main.end
            if has_it and feeder.state is FeederState.N and not (feeder.queued or feeder.in_flight):
                del self._aside[tag]
                self.main.join(tag, self._at.get(tag))

    # The main stream.

    def fix(self, dispatched: int | None) -> bool:
        """Fix the end of what is recovered, if what is missing fits its queue; if any was."""
        fixed = False
        self._dispatched = max(self._dispatched, dispatched or 0)
        for each in self._feeders():
            before = each.state
            each.fix(dispatched)
            fixed = fixed or each.state is not before
        return fixed

    def dispatch(self, found: Iterable[Item]) -> None:
        """Queue what the main stream read of its substreams; cut off what that does not fit."""
        if not self._aside:
            self.main.dispatch(found)
            return
        self._join()
        mine: list[Item] = []
        theirs: dict[str, list[Item]] = {}
        for item in found:
            (theirs.setdefault(item.tag, []) if item.tag in self._aside else mine).append(item)
        self.main.dispatch(mine)
        if self.state is FeederState.S:
            self.cut(self.trouble)
        for tag, some in theirs.items():
            aside = self._aside[tag]
            term = aside.feeder.term
            aside.feeder.dispatch(some)
            aside.fell_back = aside.fell_back or aside.feeder.term != term

    def move_on(self, places: Mapping[str, Position]) -> None:
        """Have its indexes moved to where there was nothing for it to do; in N only (P5)."""
        self._join()
        self.main.move_on(places)

    # What it is sent, and what it answers.

    def decide(self, tag: str, place: Position, skip: Skip | None) -> None:
        """Have a message skipped; or (None) called anew; on the next connection."""
        self.main.decide(tag, place, skip)

    def decided(self, tag: str) -> Position | None:
        """Return the message of a substream that was decided on, and is not taken yet."""
        return self.main.decided(tag)

    @property
    def passed_over(self) -> dict[str, Position]:
        """The messages that must be skipped, and are not yet, by substream."""
        return self.main.passed_over

    def take(self, now_s: float) -> list[Outgoing]:
        """Return the next batch to be sent; it is in flight from now on. Empty: there is none."""
        if not self._aside:
            return self.main.take(now_s)
        self._join()
        aside = [each.feeder for each in self._aside.values()]
        alone = self._alone()
        if alone is not None:
            return alone.take(now_s, self.in_flight - alone.in_flight)
        # In turn, as one message in flight may be all that there is room for.
        self._turn = not self._turn
        for each in [*aside, self.main] if self._turn else [self.main, *aside]:
            found = each.take(now_s)
            if found:
                return found
        return []

    def _alone(self) -> Feeder | None:
        """Return the feeder beside whose message nothing may be in flight."""
        if self.main.alone:
            return self.main
        killers = [self._aside[tag].feeder for tag in self.deaths.killers if tag in self._aside]
        return next((each for each in killers if each.alone), None)

    def taken(self, term: int, tag: str, place: Position, now_s: float) -> bool:
        """It has taken a substream through there; False: that was of an older connection."""
        if term != self.term:
            return False
        aside = self._aside.get(tag)
        if aside is None:
            found = self.main.taken(term, tag, place, now_s)
            # What it answers makes no sense: all of it is.
            if self.state is FeederState.S:
                self.cut(self.trouble)
        else:
            feeder, waits = aside.feeder, aside.feeder.state is FeederState.S
            found = feeder.taken(feeder.term, tag, place, now_s)
            if feeder.state is FeederState.S and not waits:
                self.cut(feeder.trouble)
        if found:
            self._at[tag] = place
        return found
