"""A shard: one substream of a consumer, by one process at a time (DESIGN-LOG §14, T1 to T3, T5).

A transaction takes committed messages in, and has the handlers' effects and the outputs that they
published. A ``Keeper`` commits it, with through which message its effects go (``Checkpoint``).
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, TypeVar

from sharedlog._core.consumer.asked import Asked, Bury, Failed, Fire, Ran, Run
from sharedlog._core.consumer.checkpoint import Checkpoint
from sharedlog._core.consumer.holding import Begins, Done, ShardHold
from sharedlog._core.consumer.keeping import Keeper
from sharedlog._core.consumer.members import Gone, ShardLease, gone_on, resumed
from sharedlog._core.errors import TrimmedLog
from sharedlog._core.fences import Fence, check_fence, fence_key
from sharedlog._core.position import Position
from sharedlog._core.reading import Committed, ReadBatch, Reader, place_at
from sharedlog._core.steps import Get, Rule
from sharedlog._core.streams import substream_number

_T = TypeVar("_T")
# Messages of one read; what was read is kept until it is done.
_READ = 1000
# A message whose process others took for gone is tried so many times as often as one that fails.
_INTERRUPTED = 4


class TransactionBounds(NamedTuple):
    """Of a consumer's transactions.

    ``messages``, ``message_bytes``: of one at most. ``attempts``: after so many a message is
    given up: buried as a dead letter if ``buries``, else the shard stops.
    """

    messages: int
    message_bytes: int
    attempts: int
    buries: bool


class Turned(NamedTuple):
    """What a turn did: messages done; why not, if it failed; why the shard stops, if it does."""

    done: int = 0
    failed: Failed | None = None
    stops: str = ""
    buried: bool = False


class Shard:
    """One substream of a consumer; one step at a time. After any error it can be gone on with.

    Where it is not known what its keeper has (nothing was taken over yet; a commit was not
    answered), it is taken over, from this process itself if need be, before anything else: that
    waits for what is on its way, or fences it off.
    """

    def __init__(
        self,
        name: str,
        tag: str,
        incarnation: str,
        bounds: TransactionBounds,
        begins: Begins,
        keeper: Keeper,
    ) -> None:
        """``begins``: where, of a consumer that is new."""
        self.tag = tag
        self.keeper = keeper
        self._name = name
        self._incarnation = incarnation
        self._bounds = bounds
        self._begins = begins
        self._hold = ShardHold(name, tag, incarnation)
        self._gone = Gone.LEFT
        self._fence = Fence("", 0)
        # Whether it was taken over, wholly.
        self._taken = False
        self._reader: Reader | None = None
        self._ready: deque[Committed] = deque()
        # It has looked for messages since it was taken over.
        self._looked = False
        # Messages of the next transaction. After an error none but one, which is noted (0), then
        # more and more.
        self._limit = bounds.messages
        # The attempt that is noted was not used up.
        self._noted = False
        # What the handler raised last.
        self._why = ""

    @property
    def fence(self) -> Fence:
        """What it was taken with."""
        return self._fence

    @property
    def sure(self) -> bool:
        """Whether it was taken over, and is known since then."""
        return self._taken and self.keeper.sure

    @property
    def checkpoint(self) -> Checkpoint:
        """The keeper's checkpoint, the last that is known."""
        return self.keeper.checkpoint

    @property
    def through(self) -> int:
        """Through which LSN it has read."""
        return 0 if self._reader is None else self._reader.through

    @property
    def waiting(self) -> int:
        """How many messages were read and are not done."""
        return len(self._ready)

    def take_over(
        self, lease: ShardLease, gone: Gone, now_us: int, retention_us: int
    ) -> Asked[None]:
        """T1, in its order; the lease, whose number is the fence's, was taken before.

        ``gone``: what became of who had it.
        Raises ``Fenced`` if the store has a higher number, ``StoreWentBack``, ``LogForked``
        and ``TrimmedLog``: before anything is appended where the log is another one.
        """
        self._taken = False
        self._gone = max(self._gone, gone)
        self._fence = lease.fence
        # T5: what was counted is forgotten where an operator lets it go on.
        anew = yield from resumed(self._name, self.tag)
        before = self.checkpoint
        # T1: from here on a zombie's commit fails, and what it committed is seen.
        yield from self.keeper.take(lease.fence, gone=self._gone, anew=anew)
        self._gone = Gone.LEFT
        if anew:
            self._why = ""
            yield from gone_on(self._name, self.tag)
        self._ready.clear()
        self._looked = False
        # T5: after a commit of unknown fate the attempt that was noted is not used up.
        self._noted = self._noted and _counted(before) == _counted(self.checkpoint)
        # T5: what failed here goes on alone, though its note was lost with the store's session.
        again = self.checkpoint.takeovers or self.checkpoint.attempts or self._why
        self._limit = 0 if again else self._bounds.messages
        # T1, T2: before anything else, once more, what the one before may not have finished.
        yield from self._unless_behind(self.keeper.recover(now_us, retention_us))
        taken: Rule[Position | int] = self._hold.take(
            self._fence, self.checkpoint, self._begins, now_us, retention_us
        )
        start = yield from self._unless_behind(taken)
        self._reader = Reader(self.tag, self._incarnation, start)
        yield from self._unless_behind(self._reader.begin())
        self._taken = True

    def settle(self) -> Rule[None]:
        """T2: have what was committed in the log, once its keeper has committed it."""
        yield from self.keeper.settle()

    def turn(self, tail: int | None = None) -> Asked[Turned]:
        """Carry out one transaction, of messages that are there; then ``settle`` at once.

        ``tail``: where the log ended a moment ago, if that is known.
        Raises ``Fenced``: the shard is another one's.
        """
        # T3: nothing of the next one begins before the log has acknowledged this.
        yield from self.settle()
        if self.checkpoint.broken:
            return Turned(stops=f"the store has a part of {self.checkpoint.broken}")
        reader = self._reader
        if reader is None:
            raise AssertionError("no turn before the shard was taken over")
        if not self._ready:
            if tail is None or tail > reader.through:
                batch: ReadBatch = yield from self._unless_behind(reader.read(_READ))
                self._ready.extend(batch.messages)
            self._looked = True
        if not self._ready:
            return Turned()
        if not self._limit:
            return (yield from self._alone(self._ready[0]))
        return (yield from self._transact(Run(self._next(), self.keeper.begin())))

    def fire(self, timer: int) -> Asked[Failed | None]:
        """Carry out a transaction of a timer's, which moves nothing; then ``settle``.

        Not while a message is counted, which a commit would forget. What it failed by is returned.
        """
        counted = self.checkpoint.attempts or self.checkpoint.takeovers
        if self.checkpoint.broken or (counted and (self._ready or not self._looked)):
            return None
        # T3: as before a message's.
        yield from self.settle()
        try:
            ran: Ran = yield Fire(self.tag, timer, self.keeper.begin())
            yield from self.keeper.commit(ran, self.checkpoint.position)
        except Failed as failed:
            return failed
        return None

    def pass_by(self, now_us: int, *, idle: bool) -> Asked[None]:
        """When the shard is idle, move its hold with the log.

        In the store, as every move: a hold is never ahead of what the store says.
        """
        if not self.sure:
            return
        yield from self.keeper.pass_by(now_us, self.through)
        if not idle or self._ready or self.keeper.owes:
            return
        position, through = self.checkpoint.position, self.through
        # The commit there has nothing of this substream: it would have been done, and be
        # ``position``; or it was before all that is wanted.
        if through <= (self._hold.lsn - 1 if position is None else position.lsn):
            return
        found: Rule[Position | None] = place_at(through, self._incarnation)
        place = yield from self._unless_behind(found)
        if place is None:
            return
        try:
            yield from self.keeper.move(place._replace(substream=substream_number(self.tag)))
        except Failed:
            # It moves the next time.
            return

    def tend(self, now_us: int) -> Asked[bool]:
        """Do some of the work in the background; return whether there is more."""
        return (yield from self._unless_behind(self.keeper.tend(now_us)))

    @property
    def done(self) -> Done:
        """What the store has the effects of, by which its hold is moved (``move_holds``)."""
        return Done(self._hold, self.checkpoint.position)

    def _unless_behind(self, rule: Asked[_T]) -> Asked[_T]:
        """Carry a rule out, whose ``TrimmedLog`` is ``Fenced`` if it is this process's fault.

        What its successors have done may be trimmed: that is told by the log's fence, read
        afterwards.
        """
        try:
            return (yield from rule)
        except TrimmedLog:
            key = fence_key(self._fence.name)
            check_fence(self._fence, (yield Get((key,)))[key])
            raise

    def _alone(self, message: Committed) -> Asked[Turned]:
        """T5: one message, whose attempts are noted in the store before each."""
        attempts = self.checkpoint.attempts
        if not self._noted:
            # T5: attempts whose end is unknown have a bound of their own.
            excused = min(self.checkpoint.interrupted, (_INTERRUPTED - 1) * self._bounds.attempts)
            if attempts - excused >= self._bounds.attempts:
                return (yield from self._give_up(message, attempts))
            yield from self.keeper.note(attempts + 1)
            self._noted = True
        turned = yield from self._transact(Run([message], self.keeper.begin()))
        failed = turned.failed
        if failed is not None and failed.counts is None:
            # T5: the store works, so it was the handler; else this raises, and is no attempt.
            yield from self.keeper.note(self.checkpoint.attempts)
            failed.counts, self._why = True, failed.why
        if failed is not None and failed.counts:
            self._noted = False
            if failed.lasts:
                return (yield from self._give_up(message, self.checkpoint.attempts))
        return turned

    def _give_up(self, message: Committed, attempts: int) -> Asked[Turned]:
        """T5: nothing is skipped silently."""
        interrupted = self.checkpoint.interrupted
        taken = f", or said nothing and others took over ({interrupted} times)"
        ended = f"the process ended while it ran{taken if interrupted else ''}, each time"
        why = self._why or ended
        if not self._bounds.buries:
            return Turned(stops=f"{message.position}, after {attempts} attempts: {why}")
        turned = yield from self._transact(Bury(message, attempts, why))
        return turned._replace(buried=turned.failed is None)

    def _transact(self, step: Run | Bury) -> Asked[Turned]:
        """One transaction of the store."""
        try:
            ran: Ran = yield step
            done = yield from self.keeper.commit(ran, self._ready[ran.done - 1].position)
        except Failed as failed:
            self._limit = 0
            if failed.counts:
                self._why = failed.why
            return Turned(failed=failed)
        self._noted = False
        self._why = ""
        # Behind a part the message that failed comes alone.
        whole = done == ran.done
        self._limit = min(max(1, 2 * self._limit), self._bounds.messages) if whole else 0
        for _ in range(done):
            self._ready.popleft()
        return Turned(done=done)

    def _next(self) -> list[Committed]:
        """The messages of the next transaction, at most."""
        found: list[Committed] = []
        size = 0
        for each in self._ready:
            size += len(each.envelope)
            if found and (len(found) == self._limit or size > self._bounds.message_bytes):
                break
            found.append(each)
        return found


def _counted(checkpoint: Checkpoint) -> tuple[Position | None, int, int]:
    return checkpoint.position, checkpoint.attempts, checkpoint.takeovers
