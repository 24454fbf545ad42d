"""The course of one target: it is connected to, fed, and judged when that ends (DESIGN-LOG §15)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from sharedlog._core.errors import AlreadyCommitted, LogError, TrimmedLog
from sharedlog._core.holds import Hold
from sharedlog._core.player.backoff import LONGEST_S, Pauses
from sharedlog._core.player.deaths import Death
from sharedlog._core.player.failing import Again, Anew, Failing, Skipped, Suspended, Verdict, Why
from sharedlog._core.player.feeder import FeederState
from sharedlog._core.player.feeding import Feeding
from sharedlog._core.player.holding import hold_name, tags_of, take_holds
from sharedlog._core.player.indexes import KnownIndex
from sharedlog._core.player.item import Skip
from sharedlog._core.player.rows import TargetState, Wish
from sharedlog._core.player.trouble import Cause, Trouble
from sharedlog._core.position import Position
from sharedlog._player import letters
from sharedlog._player.beginning import ask, buried, bury, held
from sharedlog._player.declared import Target
from sharedlog._player.delivering import Delivering
from sharedlog._player.link import Link, why
from sharedlog._player.stage import Stage
from sharedlog._player.standing import TargetStanding
from sharedlog._player.under_way import Highest
from sharedlog._player.wire import Garbage
from sharedlog.v1 import target_pb2

_POLLED_S = 2.0
# A google.rpc.Code, ABORTED: the target takes the others.
_OF_ONE_MESSAGE = 10


class Course:
    """One target of a player that leads; on its event loop."""

    def __init__(self, target: Target, stage: Stage, told: TargetState | None = None) -> None:
        """Nothing is sent yet. ``told``: by the player before, or as it was declared before."""
        self.target = target
        self.stage = stage
        self.feeder = Feeding(target.bounds)
        self.standing = TargetStanding(target, stage, _attempts(told))
        # Of the deaths of its processes: of which index, and what is durable.
        self._known = (0, {}) if told is None else (told.number, told.deaths)
        self._noted: Mapping[str, Any] = {}
        self.wish = Wish()
        self.holds: dict[str, Hold] = {}
        self.tags: list[str] = []
        self.taken = 0
        # When it took something last, 0: never.
        self.moved_at_us = 0
        # Through where each substream was ever sent, for those who watch.
        self.highest: Highest = {}
        # Messages that its index has given up.
        self.dead_letters = 0
        # The id of the store that answered last.
        self.store = ""
        # Substreams of which more came at once than it takes, until something of them is taken.
        self._crowded: set[str] = set()
        # Messages whose handlers hang, by substream, as its target says; and when each was counted.
        self.hung: dict[str, Position] = {}
        # Of these, substreams whose handlers wait for another one.
        self._waits: set[str] = set()
        self._counted_s: dict[str, float] = {}
        # Substreams that were late when it was cut off; when it has taken something last.
        self._late: list[str] = []
        self._taken_s = 0.0
        self._link: Link | None = None
        self._delivering: Delivering | None = None
        self._pauses = Pauses()
        # What was judged already of what it was cut off for.
        self._judged: tuple[Trouble, Verdict] | None = None
        self._reached = False
        self._changed = asyncio.Event()
        self._asked = asyncio.Event()

    @property
    def number(self) -> int:
        """Of its index."""
        return max(self.wish.number, self.target.number)

    @property
    def hold_name(self) -> str:
        """Of its holds in the log."""
        return hold_name(self.stage.player, self.target.name, self.number)

    @property
    def suspended(self) -> Suspended | None:
        """Why it is sent nothing until an operator acts."""
        return self.standing.suspended

    @property
    def failing(self) -> Failing:
        """What failed, and how often."""
        return self.standing.failing

    @property
    def error(self) -> str:
        """What went wrong last."""
        return self.standing.error

    @property
    def state(self) -> str:
        """As operators are told it."""
        if self.wish.paused is not None:
            return "paused"
        return "stopped" if self.standing.suspended is not None else self.feeder.state.value

    @property
    def feed(self) -> target_pb2.Feed:
        """Whose index it is, to the target."""
        return target_pb2.Feed(log=self.stage.log_name, number=self.number)

    def poke(self) -> None:
        """Something changed that its deliveries may wait for."""
        if self._delivering is not None:
            self._delivering.poke()

    def cut(self, trouble: Trouble) -> None:
        """Drop what waits for it."""
        self.feeder.cut(trouble)
        self.poke()

    async def asked(self) -> None:
        """Wait until it has said where it is, or that it does not."""
        await self._asked.wait()

    # What operators wish.

    def begin_as(self, wish: Wish) -> None:
        """Begin with what is wished by now; what was done about it was done before."""
        self.wish = wish._replace(skips=())
        number, kept = self._known
        if kept and number == self.number:
            self.feeder, self._noted = Feeding(self.target.bounds, kept), kept
        self.apply(wish)

    def apply(self, wish: Wish) -> None:
        """Take note of what is wished by now."""
        before, self.wish = self.wish, wish
        if wish == before:
            return
        if wish.number != before.number:
            self._begin_anew()
        if wish.resumed > before.resumed:
            self.standing.suspended = None
            self.failing.forget()
        if wish.skips != before.skips and self._decide_skips(self.feeder.acknowledged):
            self.standing.suspended = None
        self._pauses = Pauses()
        self.feeder.hurry()
        self.cut(Trouble(Cause.ORDERED))
        self._changed.set()

    def _decide_skips(self, done: Mapping[str, Position | None]) -> bool:
        """Have the first skip of each substream done that is not; whether there was one.

        Each skip ends its connection (P7): the next one is decided when the next connection
        begins.
        """
        found = False
        for tag, place, order, number in sorted(self.wish.skips, key=lambda each: each.place[:2]):
            last = done.get(tag)
            if number != self.number or (last is not None and place[:2] <= last[:2]):
                continue
            decided = self.feeder.decided(tag)
            if decided is None or place[:2] <= decided[:2]:
                self.feeder.decide(tag, place, Skip(order.why, order.by))
                found = True
        return found

    def _begin_anew(self) -> None:
        self.cut(Trouble(Cause.ORDERED))
        term, self.feeder = self.feeder.term, Feeding(self.target.bounds)
        self.feeder.main.term = term
        self.failing.forget()
        self.standing.suspended = None
        self.holds = {}
        self.highest.clear()

    # Its life.

    async def run(self) -> None:
        """Feed it, for as long as its player leads; cancelled then."""
        try:
            while True:
                await self._allowed()
                await self._once()
                self._asked.set()
                await self._judge()
        finally:
            self.feeder.cut(Trouble(Cause.RESTARTED))
            await self._unlink()

    async def _unlink(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            with suppress(Exception):
                await link.close()

    async def _allowed(self) -> None:
        while self.wish.paused is not None or self.suspended is not None:
            self._asked.set()
            suspended = self.suspended
            unknown = suspended is not None and suspended.why is Why.UNKNOWN
            if not await self._wait(LONGEST_S if unknown else None) and unknown:
                # Another replica of it may have known, or have ended it.
                return

    async def _wait(self, timeout_s: float | None) -> bool:
        self._changed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def _once(self) -> None:
        """Make one connection, and deliver until it ends."""
        feeder, term = self.feeder, self.feeder.connect()
        self._reached = False
        try:
            found = await self._begun(feeder, term)
            if found is not None:
                self._delivering = found
                self._asked.set()
                await found.run()
        except Garbage as error:
            self.feeder.cut(Trouble(Cause.GARBAGE, details=str(error)))
        except AlreadyCommitted as error:
            self._found(feeder, Suspended(Why.DEAD_LETTER, str(error)))
        except TrimmedLog as error:
            self._found(feeder, Suspended(Why.TRIMMED, str(error)))
        except LogError as error:
            self.feeder.cut(why(error))
        finally:
            self._delivering = None
            self.feeder.cut(Trouble(Cause.BROKEN))
            if self.feeder.trouble.cause in (Cause.NOT_ALLOWED, Cause.CONFIG, Cause.LATE):
                # Its files may have changed, or its connection answers nothing.
                await self._unlink()

    def _found(self, feeder: Feeding, suspended: Suspended) -> None:
        """Stop for what was found while it was asked; not where an operator decided meanwhile."""
        if feeder is self.feeder and feeder.state is FeederState.ASKED:
            self._suspend(suspended)

    async def _begun(self, feeder: Feeding, term: int) -> Delivering | None:
        """Ask it where it is; None: it is not fed from there.

        An operator may have it begin anew meanwhile: this is about the index that was asked for.
        """
        number, name, feed = self.number, self.hold_name, self.feed
        stage, target, incarnation = self.stage, self.target, self.stage.place.incarnation
        if self._link is None:
            self._link = stage.outside.link(target)
        if not self.tags:
            self.tags = await stage.run(lambda: tags_of(target.methods))
        holds = self.holds
        if not holds:
            # Of a replay, unless its number was declared since.
            first = self.wish.first if number == self.wish.number else 0
            holds = await stage.run(
                lambda: take_holds(name, target.follows, incarnation, stage.outside.now_us(), first)
            )
            if feeder is not self.feeder:
                return None
            self.holds = holds
        deaths = feeder.deaths
        passed_over = feeder.passed_over
        here = await ask(stage, self._link, feed, self.tags, deaths.asked, passed_over)
        self._reached = True
        self._pauses.connected()
        self.store = here.store
        begins = await held(stage, target.name, number, here, holds)
        if isinstance(begins, Suspended):
            self._found(feeder, begins)
            return None
        confirmed = await bury(stage, target.name, number, here)
        self.dead_letters = await buried(stage, target.name, number, here)
        if feeder is not self.feeder:
            return None
        self._decide_skips(begins.indexes)
        late, self._late = self._late, []
        running = {each.tag: each.running for each in here.indexes if each.running is not None}
        died = deaths.connected(here.process, here.beats, begins.indexes, running)
        if not await self._died(feeder, died):
            return None
        killers = {each.alone[0] for each in died if each.alone is not None}
        # Each that hung before, and each that was late and whose handler runs.
        hung = {tag: place for tag, place in self.hung.items() if running.get(tag) == place}
        self.hung = hung | {tag: running[tag] for tag in late if tag in running}
        self._waits = {each.tag for each in here.indexes if each.waits}
        for tag in late:
            if not await self._hangs(feeder, tag):
                return None
        found = feeder.passed_over.items() - passed_over.items()
        if any(running.get(tag) == place for tag, place in found):
            # Its run is revoked first: what is before it may wait for that.
            feeder.cut(Trouble(Cause.ORDERED))
            return None
        # In an order that is no hash's: runs of the simulator are repeatable.
        failed = dict.fromkeys((*self.failing.attempts, *self.hung, *deaths.killers))
        if feeder is not self.feeder or not feeder.begin(
            term, begins.indexes, self._crowded, here.at_once, failed
        ):
            return None
        for tag in killers:
            if tag in feeder.aside and feeder.decided(tag) is None:
                # The others go on meanwhile.
                pause_s = self._pauses.of_substream(tag, stage.outside.draw())
                feeder.wait_on(tag, asyncio.get_running_loop().time() + pause_s)
        return Delivering(self, self._link, begins.starts, confirmed, here)

    async def _died(self, feeder: Feeding, died: Sequence[Death]) -> bool:
        """Judge the deaths of its processes, durably; False: nothing is sent now (P7)."""
        deaths = feeder.deaths
        for each in died:
            self._pauses.died()
            self.standing.died(each, deaths.limit)
            if each.alone is None:
                continue
            trouble = Trouble(Cause.DIED, *each.alone, alone=True)
            verdict = await letters.possible(self.stage, self.failing.judge(trouble))
            if feeder is not self.feeder:
                return False
            if isinstance(verdict, Suspended):
                self._suspend(verdict)
            elif isinstance(verdict, Skipped):
                feeder.decide(verdict.tag, verdict.place, verdict.skip)
                self.standing.gives_up(verdict)
        await self.noted()
        if feeder is not self.feeder or self.suspended is not None:
            return False
        if deaths.holds(self.failing.attempts, self.target.rules.tries):
            waits = "it is not known yet whether a message has crashed its process"
            feeder.cut(Trouble(Cause.BROKEN, details=waits))
            return False
        return True

    async def noted(self) -> None:
        """Have what the next player needs be durable, before anything more is sent."""
        kept = self.feeder.deaths.kept()
        if kept != self._noted:
            await self.stage.tell(self.target.name)
            self._noted = kept

    # What it answers.

    def taken_through(self, term: int, tag: str, place: Position) -> None:
        """It has taken a substream through there."""
        if self.feeder.taken(term, tag, place, asyncio.get_running_loop().time()):
            self.standing.taken(tag, place)
            self.moved_at_us = self.stage.outside.now_us()
            self._taken_s = asyncio.get_running_loop().time()
            self.hung.pop(tag, None)
            self._counted_s.pop(tag, None)
            self._pauses.taken(tag, self.failing.attempts)
            self._crowded.discard(tag)

    def rested(self, time_s: float) -> None:
        """Its connection ended after that time, when it had all that was dispatched."""
        self._pauses.rested(time_s)

    def refused(self, term: int, trouble: Trouble) -> None:
        """It has answered that something is wrong: with one message, or with all of it."""
        if trouble.cause is Cause.FAILED and term == self.feeder.term:
            verdict = self.failing.judge(trouble)
            if isinstance(verdict, Again) and self._held_up(term, trouble):
                return
            self._judged = trouble, verdict
        elif trouble.cause is Cause.UNAVAILABLE and trouble.code == _OF_ONE_MESSAGE:
            # It waits, and nothing is counted.
            waits = term == self.feeder.term and self._held_up(term, trouble)
            if waits:
                return
        self.feeder.troubled(term, trouble)

    def _held_up(self, term: int, trouble: Trouble) -> bool:
        """Have the substream of a message that failed wait, and no other one (P7)."""
        tag = trouble.tag
        pause_s = self._pauses.of_substream(tag, self.stage.outside.draw())
        now_s = asyncio.get_running_loop().time()
        if not self.feeder.hold_up(term, trouble, now_s + pause_s):
            return False
        self.standing.waits(trouble, pause_s)
        return True

    # What hangs.

    def was_late(self, tags: Sequence[str]) -> None:
        """It is cut off since it answered nothing of these substreams, the longest first."""
        self._late = list(tags)

    @property
    def polls_s(self) -> float:
        """How often it is asked whether a handler that hangs has ended."""
        return min(self.target.patience.total_seconds(), _POLLED_S)

    async def polled(self, feeder: Feeding, index: KnownIndex) -> None:
        """It has said where a substream is whose handler hung."""
        tag = index.tag
        if feeder is not self.feeder or tag not in self.hung or tag not in feeder.aside:
            return
        now_s = asyncio.get_running_loop().time()
        (self._waits.add if index.waits else self._waits.discard)(tag)
        if index.running is None or index.running[:2] != self.hung[tag][:2]:
            del self.hung[tag]
            feeder.found(tag, index.at)
            feeder.wait_on(tag, now_s)
        elif now_s - self._counted_s.get(tag, 0.0) >= self.target.patience.total_seconds():
            await self._hangs(feeder, tag)
        self.poke()

    async def _hangs(self, feeder: Feeding, tag: str) -> bool:
        """Count a message that hangs as one that has failed (P7); False: the connection ends.

        One that waits for another handler is not at fault. Where several others hang and nothing
        else is taken none is known to be: they may wait for one, or for the target's store.
        """
        place = self.hung.get(tag)
        now_s = asyncio.get_running_loop().time()
        patience_s = self.target.patience.total_seconds()
        if place is None or feeder.decided(tag) == place:
            return True
        self._counted_s[tag] = now_s
        trouble = Trouble(
            Cause.HUNG,
            tag,
            place,
            details=f"its handler has not ended for {patience_s:g} s, and may have run",
            alone=True,
        )
        blocking = self.hung.keys() - self._waits
        if tag not in blocking or (len(blocking) > 1 and now_s - self._taken_s > patience_s):
            self.standing.waits(trouble, patience_s)
            return True
        verdict = await letters.possible(self.stage, self.failing.judge(trouble))
        if feeder is not self.feeder:
            return False
        if isinstance(verdict, Suspended):
            self.suspend(verdict)
            return False
        self.standing.waits(trouble, patience_s)
        if isinstance(verdict, Skipped):
            feeder.decide(verdict.tag, verdict.place, verdict.skip)
            self.standing.gives_up(verdict)
            # The next one begins with the run's end: what is before it may wait for that.
            feeder.cut(Trouble(Cause.ORDERED))
            return False
        return True

    def _suspend(self, suspended: Suspended) -> None:
        self.feeder.cut(Trouble(Cause.ORDERED))
        self.standing.suspend(suspended)

    def suspend(self, suspended: Suspended) -> None:
        """Send it nothing more until an operator acts."""
        self._suspend(suspended)
        self.poke()

    async def _judge(self) -> None:
        """Do what follows from how a connection ended."""
        if self.suspended is not None and self.suspended.why is not Why.UNKNOWN:
            return
        trouble = self.feeder.trouble
        judged, self._judged = self._judged, None
        if judged is not None and judged[0] is trouble:
            verdict = judged[1]
        else:
            verdict = self.failing.judge(trouble)
        verdict = await letters.possible(self.stage, verdict)
        if isinstance(verdict, Suspended):
            self._suspend(verdict)
            return
        if isinstance(verdict, Again) and not verdict.pause:
            return
        self.standing.troubled(trouble)
        # What was decided and cannot be done yet is tried again, after a pause.
        if isinstance(verdict, Skipped) and self.feeder.decided(verdict.tag) != verdict.place:
            self.feeder.decide(verdict.tag, verdict.place, verdict.skip)
            self.standing.gives_up(verdict)
            return
        if isinstance(verdict, Anew):
            self.feeder.decide(verdict.tag, verdict.place, None)
            return
        if trouble.cause is Cause.UNAVAILABLE and trouble.tag:
            self._crowded.add(trouble.tag)
        failed = trouble.place is not None and trouble.tag in self.failing.attempts
        drawn = self.stage.outside.draw()
        pause_s = self._pauses.of_target(drawn, failed=failed, reached=self._reached)
        now_s = asyncio.get_running_loop().time()
        self.standing.is_down(trouble, pause_s, now_s, reached=self._reached)
        await self._wait(pause_s)

    @property
    def lag(self) -> int:
        """How many entries of the log are behind what it has taken."""
        through = self.stage.dispatched() or 0
        feeder = self.feeder
        if feeder.settled:
            return 0
        known = [
            feeder.acknowledged[tag].lsn if tag in feeder.acknowledged else hold.lsn - 1
            for tag, hold in self.holds.items()
        ]
        return max(0, through - min(known, default=through))


def _attempts(told: TargetState | None) -> dict[str, tuple[Position, int]]:
    if told is None:
        return {}
    return {tag: (Position.parse(place), count) for tag, (place, count) in told.attempts.items()}
