"""A shard: one substream of a consumer, by one process at a time (DESIGN-LOG §14, T1 to T3, T5).

A transaction takes committed messages in, and has the handlers' effects and the outputs that they
published. It commits by one write to the store: the effects, through which message they go
(``Checkpoint``), and what is to be appended. Then that is appended.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from sharedlog._core.consumer.asked import (
    Asked,
    Bury,
    CommitStore,
    Failed,
    Note,
    Ran,
    Run,
    TakeStore,
)
from sharedlog._core.consumer.checkpoint import Checkpoint
from sharedlog._core.consumer.members import Lease, gone_on, resumed
from sharedlog._core.consumer.outputs import content_of, intended, recorded
from sharedlog._core.consumer.reconciling import reconcile
from sharedlog._core.errors import AlreadyCommitted, HoldMoved, StoreWentBack
from sharedlog._core.fences import Fence, check_fence, fence_key
from sharedlog._core.holds import Hold, hold_key, move
from sharedlog._core.holds import take as take_holds
from sharedlog._core.named import Turn, append_named, check_producer_name, highest_of
from sharedlog._core.position import Position
from sharedlog._core.reading import Committed, Reader, place_at
from sharedlog._core.steps import Get, Rule
from sharedlog._core.streams import substream_number

# Messages of one read; what was read is kept until it is done.
_READ = 1000


class Bounds(NamedTuple):
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


def hold_name(name: str) -> str:
    """Return the name of a consumer's holds."""
    return f"consumer.{name}"


def producer_name(name: str, tag: str) -> str:
    """Return the name under which a shard's outputs are appended."""
    return f"consumer/{name}/{tag}"


class Shard:
    """One substream of a consumer; one step at a time. After any error it can be gone on with.

    ``sure``: what the store has is known. Where it is not (nothing was taken over yet; a commit
    was not answered), the shard is taken over, from this process itself if need be, before
    anything else: that waits for what is on its way, or fences it off.
    """

    def __init__(self, name: str, tag: str, incarnation: str, bounds: Bounds, start: str) -> None:
        """``start``: ``BEGINNING`` or ``END``, of a consumer that is new."""
        self.tag = tag
        self.sure = False
        self._name = name
        self._incarnation = incarnation
        self._bounds = bounds
        self._start = start
        self._producer = producer_name(name, tag)
        check_producer_name(self._producer)
        self._died = False
        self._fence = Fence("", 0)
        self._checkpoint = Checkpoint(0)
        # The newest outputs may not be in the log.
        self._owes = False
        self._held: dict[str, Hold] = {}
        self._reader: Reader | None = None
        self._ready: deque[Committed] = deque()
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
    def checkpoint(self) -> Checkpoint:
        """What the store has, as far as it is known."""
        return self._checkpoint

    @property
    def through(self) -> int:
        """Through which LSN it has read."""
        return 0 if self._reader is None else self._reader.through

    @property
    def waiting(self) -> int:
        """How many messages were read and are not done."""
        return len(self._ready)

    def take_over(self, lease: Lease, now_us: int, retention_us: int) -> Asked[None]:
        """T1, in its order; the lease, whose number is the fence's, was taken before.

        Raises ``Fenced`` where the store has a higher number, ``StoreWentBack``, ``LogForked``
        and ``TrimmedLog``: before anything is appended where the log is another one.
        """
        self.sure = False
        self._died |= lease.died
        self._fence = lease.fence
        # T5: what was counted is forgotten where an operator lets it go on.
        anew = yield from resumed(self._name, self.tag)
        # T1: from here on a zombie's commit fails, and what it committed is seen.
        found: Checkpoint = yield TakeStore(self.tag, lease.fence.number, self._died, anew)
        self._died = False
        if anew:
            yield from gone_on(self._name, self.tag)
        self._checkpoint = found
        self._owes = bool(found.intent)
        self._ready.clear()
        self._noted = False
        self._limit = 0 if found.takeovers or found.attempts else self._bounds.messages
        if found.position is not None:
            found.position.check_incarnation(self._incarnation)
        yield from reconcile(
            self._producer, hold_key(hold_name(self._name), self.tag), self._fence, found
        )
        # T1, T2: before anything else, once more, what the one before may not have appended.
        yield from self.settle()
        yield from self._check_seq()
        start = yield from self._hold(now_us, retention_us)
        self._reader = Reader(self.tag, self._incarnation, start)
        yield from self._reader.begin()
        self.sure = True

    def settle(self) -> Rule[None]:
        """T2: append the outputs that the store has committed, unless they are acknowledged.

        Under the name and the seq with which they were recorded, so that they are in the log
        once; and under the lease's number (T1).
        """
        if not self._owes:
            return
        intent, seq = self._checkpoint.intent, self._checkpoint.seq
        turn = Turn(self._producer, seq, seq - 1)
        try:
            yield from append_named(turn, content_of(intent), intended(intent), fence=self._fence)
        except AlreadyCommitted as error:
            raise (yield from self._went_back(str(error))) from error
        self._owes = False

    def turn(self) -> Asked[Turned]:
        """Carry out one transaction, of messages that are there; then ``settle`` at once.

        Raises ``Fenced``: the shard is another one's.
        """
        # T3: nothing of the next one begins before the log has acknowledged this.
        yield from self.settle()
        reader = self._reader
        if reader is None:
            raise AssertionError("no turn before the shard was taken over")
        if not self._ready:
            self._ready.extend((yield from reader.read(_READ)).messages)
        if not self._ready:
            return Turned()
        if not self._limit:
            return (yield from self._alone(self._ready[0]))
        return (yield from self._transact(Run(self._next())))

    def pass_by(self) -> Asked[bool]:
        """Where nothing is to be done, move the checkpoint with the log, so that it is trimmed.

        In the store, as every move: a hold is never ahead of what the store says.
        """
        if self._ready or self._owes or not self.sure:
            return False
        position, through = self._checkpoint.position, self.through
        # The commit there has nothing of this substream: it would have been done, and be
        # ``position``; or it was before all that is wanted.
        if through <= (self._held[self.tag].lsn - 1 if position is None else position.lsn):
            return False
        place = yield from place_at(through, self._incarnation)
        if place is None:
            return False
        at = place._replace(substream=substream_number(self.tag))
        moved = Checkpoint(self._fence.number, at, self._checkpoint.seq)
        self.sure = False
        try:
            yield CommitStore(self.tag, moved)
        except Failed:
            self.sure = True
            return False
        self._checkpoint = moved
        self.sure = True
        return True

    def move_hold(self, now_us: int) -> Rule[None]:
        """Let the log trim what the store has the effects of."""
        place, hold = self._checkpoint.position, self._held[self.tag]
        if place is not None and (place.lsn, place.ordinal) <= hold.place:
            place = None
        if place is None and 4 * (now_us - hold.renewed_us) <= hold.retention_us:
            return
        try:
            self._held = yield from move(self._held, {self.tag: place}, now_us)
        except HoldMoved:
            # By a successor: this one learns of it by its next commit.
            return

    def _alone(self, message: Committed) -> Asked[Turned]:
        """T5: one message, whose attempts are noted in the store before each."""
        attempts = self._checkpoint.attempts
        if not self._noted:
            if attempts >= self._bounds.attempts:
                return (yield from self._give_up(message, attempts))
            attempts += 1
            yield Note(self.tag, self._fence.number, attempts)
            self._checkpoint = self._checkpoint._replace(attempts=attempts)
            self._noted = True
        turned = yield from self._transact(Run([message]))
        if turned.failed is not None and turned.failed.counts:
            self._noted = False
        return turned

    def _give_up(self, message: Committed, attempts: int) -> Asked[Turned]:
        """T5: nothing is skipped silently."""
        why = self._why or "the process ended while it ran, each time"
        if not self._bounds.buries:
            return Turned(stops=f"{message.position}, after {attempts} attempts: {why}")
        turned = yield from self._transact(Bury(message, attempts, why))
        return turned._replace(buried=turned.failed is None)

    def _transact(self, step: Run | Bury) -> Asked[Turned]:
        """One transaction of the store."""
        try:
            ran: Ran = yield step
            intent = recorded(ran.outputs)
            checkpoint = Checkpoint(
                self._fence.number,
                self._ready[ran.done - 1].position,
                self._checkpoint.seq + bool(intent),
                intent,
            )
            self.sure = False
            # T2: until here nothing of it is anywhere in the log.
            yield CommitStore(self.tag, checkpoint)
        except Failed as failed:
            self.sure = True
            self._limit = 0
            if failed.counts:
                self._why = failed.why
            return Turned(failed=failed)
        self.sure = True
        self._checkpoint = checkpoint
        self._owes = bool(intent)
        self._noted = False
        self._why = ""
        self._limit = min(max(1, 2 * self._limit), self._bounds.messages)
        for _ in range(ran.done):
            self._ready.popleft()
        return Turned(done=ran.done)

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

    def _check_seq(self) -> Rule[None]:
        """Hold the store against what the log has of this shard's outputs."""
        highest = yield from highest_of(self._producer)
        if highest > self._checkpoint.seq:
            raise (
                yield from self._went_back(
                    f"the log has {highest} of its outputs, the store {self._checkpoint.seq}"
                )
            )

    def _hold(self, now_us: int, retention_us: int) -> Rule[Position | int]:
        """Take the hold, and return where to go on."""
        position = self._checkpoint.position
        start = self._start if position is None else position
        self._held = yield from take_holds(
            hold_name(self._name), {self.tag: start}, self._incarnation, now_us, retention_us
        )
        hold = self._held[self.tag]
        if position is None:
            if hold.position is not None:
                raise (
                    yield from self._went_back(
                        f"it was done through {hold.position}, and has nothing"
                    )
                )
            return hold.lsn
        if hold.place > (position.lsn, position.ordinal):
            raise (yield from self._went_back(f"it was done through {hold.position or hold.lsn}"))
        return position

    def _went_back(self, why: str) -> Rule[StoreWentBack]:
        """Raises ``Fenced`` where it is this one that is behind: a successor was further on."""
        key = fence_key(self._fence.name)
        check_fence(self._fence, (yield Get((key,)))[key])
        return StoreWentBack(
            f"the store of the consumer {self._name!r} has {self.tag} done through "
            f"{self._checkpoint.position}, and was further on ({why}): it was restored from a "
            "backup, or is another one"
        )
