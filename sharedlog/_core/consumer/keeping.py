"""A keeper: by what a shard commits its transactions, and what it knows of that (DESIGN-LOG §14).

``InStore`` commits in the user's database, by the steps that a store carries out, and appends the
outputs to the log afterwards. ``InLog`` (``in_log``) has no database.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sharedlog._core.consumer.asked import (
    Asked,
    CommitStore,
    Failed,
    NoteBegun,
    PartialTransaction,
    Ran,
    Resend,
    TakeStore,
    Unit,
)
from sharedlog._core.consumer.checkpoint import Checkpoint
from sharedlog._core.consumer.members import Gone
from sharedlog._core.consumer.names import hold_name, producer_name
from sharedlog._core.consumer.operating import rewind
from sharedlog._core.consumer.outputs import (
    Intended,
    content_of,
    first_of,
    intended,
    parted,
    recorded,
    recorded_marker,
)
from sharedlog._core.consumer.reconciling import check_place, go_on, reconcile
from sharedlog._core.consumer.state import Changes
from sharedlog._core.consumer.travelling import Draw, Travelling, committed
from sharedlog._core.draft import AppendBounds
from sharedlog._core.entry import ProducerDecision
from sharedlog._core.errors import AlreadyCommitted, LogForked, SpanGone, StoreWentBack
from sharedlog._core.fences import Fence, check_fence, fence_key
from sharedlog._core.holds import hold_key
from sharedlog._core.named import (
    Turn,
    append_named,
    check_any_name,
    decide_named,
    highest_of,
)
from sharedlog._core.position import Position
from sharedlog._core.publishing import committing
from sharedlog._core.steps import Get, Rule


class Keeper(Protocol):
    """What has a shard's checkpoint; one step at a time.

    ``checkpoint``: the stored one, if known, else the last known. ``sure``: it is known. ``owes``:
    some of what was committed is not in the log yet.
    """

    checkpoint: Checkpoint
    sure: bool
    owes: bool

    def take(self, fence: Fence, *, gone: Gone, anew: bool) -> Asked[None]:
        """T1: from here on no other process commits; the checkpoint is what was committed.

        ``gone``, ``anew``: see ``TakeStore``. Raises ``Fenced``, ``LogForked``.
        """

    def recover(self, now_us: int, retention_us: int) -> Asked[None]:
        """T1: finish what the process before has begun; raises ``StoreWentBack``, ``LogForked``."""

    def note(self, attempts: int) -> Asked[None]:
        """Note, durably, how often the next message was begun alone."""

    def begin(self) -> Changes | None:
        """Return what handlers change of the shard's state, where the keeper has one."""

    def commit(self, ran: Ran, position: Position | None) -> Asked[int]:
        """Commit what was run, through a position; return of how many messages.

        ``Failed``: nothing of it is there.
        """

    def move(self, position: Position) -> Asked[None]:
        """Commit that there is nothing to do through a position; fails as ``commit``."""

    def settle(self) -> Rule[None]:
        """T2: have in the log what was committed, if it is not there; before anything else."""

    def tend(self, now_us: int) -> Asked[bool]:
        """Do a short step of the work in the background; return whether there is more."""

    def pass_by(self, now_us: int, through: int) -> Asked[None]:
        """Now and then: the shard has read through this LSN."""


class InStore:
    """The keeper of a shard in the user's database: a commit has the outputs beside the effects."""

    def __init__(
        self, name: str, tag: str, incarnation: str, bounds: AppendBounds, draw: Draw
    ) -> None:
        """Nothing was taken over yet. ``bounds``: of an append; ``draw``: so many random bytes."""
        self._bounds = bounds
        self.checkpoint = Checkpoint(0)
        self.sure = False
        self.owes = False
        self._name = name
        self._tag = tag
        self._incarnation = incarnation
        self._producer = producer_name(name, tag)
        check_any_name(self._producer)
        self._travelling = Travelling(self._producer, draw)
        self._fence = Fence("", 0)
        # What it owes, where it need not be read from the checkpoint.
        self._outputs: Intended | None = None

    def take(self, fence: Fence, *, gone: Gone, anew: bool) -> Asked[None]:
        """Take the shard's row in the store under this fence; see ``Keeper``."""
        self.sure = False
        self._fence = fence
        found: Checkpoint = yield TakeStore(self._tag, fence.number, gone, anew)
        self.checkpoint = found
        self.owes = bool(found.intent)
        self._outputs = None
        if found.position is not None:
            found.position.check_incarnation(self._incarnation)

    def recover(self, now_us: int, retention_us: int) -> Asked[None]:
        """Append again what the predecessor may not have appended; see ``Keeper`` for errors."""
        yield from check_place(self.checkpoint.position)
        hold = hold_key(hold_name(self._name), self._tag)
        yield from reconcile(self._producer, hold, self._fence, self.checkpoint)
        yield from self.settle()
        highest = yield from highest_of(self._producer)
        if highest > self.checkpoint.seq:
            why = f"the log has {highest} of its outputs, the store {self.checkpoint.seq}"
            raise (yield from self._went_back(why))
        # T1: what the one before had pending, and its store did not commit.
        yield from self._travelling.undo(self._fence)
        # What an operator has said since, and the store does not know.
        self.checkpoint = yield from rewind(self._name, self._tag, self._fence, self.checkpoint)
        # T6: nor may the one before have what it called answered.
        yield Resend(self._tag, self.checkpoint)
        self.sure = True

    def begin(self) -> None:
        """Do nothing: the state is in the database."""

    def note(self, attempts: int) -> Asked[None]:
        """Note, durably, how often the next message was begun alone."""
        # T5: one of unknown fate may come late, behind the commit of what it was noted for.
        self.sure = False
        yield NoteBegun(self._tag, self._fence.number, attempts)
        self.checkpoint = self.checkpoint._replace(attempts=attempts)
        self.sure = True

    def commit(self, ran: Ran, position: Position | None) -> Asked[int]:
        """Commit effects, position and messages at once.

        T2: what is more than one append is pending before, and all of it was answered.
        """
        appends = parted(ran.outputs, self._bounds)
        if len(appends) > 1:
            decision = yield from self._travelling.pend(appends, self._fence)
            outputs: Intended = decision
            intent = recorded_marker(decision)
        else:
            outputs = committing(ran.outputs) if ran.outputs else []
            intent = recorded(outputs)
        seq = self.checkpoint.seq + bool(intent)
        # T2: until here no reader sees any of it in the log.
        units = ran.units if len(appends) < 2 else ()
        part = yield from self._commit(self._next(position, seq, intent), units)
        # Of a part, what is appended is read from its intent.
        self._outputs = outputs if part is None else None
        return ran.done if part is None else part.done

    def move(self, position: Position) -> Asked[None]:
        """Commit that there is nothing to do through a position; fails as ``commit``."""
        yield from self._commit(self._next(position, self.checkpoint.seq, b""))

    def settle(self) -> Rule[None]:
        """Append the outputs that the store has, unless they are acknowledged.

        Under the name and the seq with which they were recorded, so that they are in the log
        once; and under the lease's number (T1). What a try that failed has pending is rolled back.
        """
        if self.owes:
            if self._outputs is None:
                self._outputs = intended(self.checkpoint.intent)
            yield from self._append(self._outputs)
            self.owes = False
            self._outputs = None
        elif self.sure and self._travelling.left:
            yield from self._travelling.undo(self._fence)

    def tend(self, now_us: int) -> Asked[bool]:
        """Do nothing: there is no work in the background."""
        yield from ()
        return False

    def pass_by(self, now_us: int, through: int) -> Asked[None]:
        """Note now and then that the shard has read through this LSN."""
        yield from ()

    def _append(self, outputs: Intended) -> Rule[None]:
        content, seq = content_of(self.checkpoint.intent), self.checkpoint.seq
        turn = Turn(self._producer, seq, seq - 1)
        try:
            if isinstance(outputs, ProducerDecision):
                yield from decide_named(turn, content, [outputs], fence=self._fence)
                self._travelling.decided()
            else:
                yield from append_named(turn, content, outputs, fence=self._fence)
        except AlreadyCommitted as error:
            raise (yield from self._went_back(str(error))) from error
        except SpanGone as error:
            if not isinstance(outputs, ProducerDecision) or not (yield from committed(outputs)):
                raise LogForked(
                    f"what {self._producer!r} published with what its store has committed was "
                    "rolled back in the log: an operator has forgotten the name, retired the "
                    "producer, or restored the log"
                ) from error
            # The name was forgotten since, and its store restored.
            yield from go_on(self._producer, seq, self._fence)

    def _next(self, position: Position | None, seq: int, intent: bytes) -> Checkpoint:
        epoch = self.checkpoint.epoch
        return Checkpoint(self._fence.number, position, seq, intent, epoch=epoch)

    def _commit(
        self, checkpoint: Checkpoint, units: Sequence[Unit] = ()
    ) -> Asked[PartialTransaction | None]:
        self.sure = False
        try:
            part: PartialTransaction | None = yield CommitStore(self._tag, checkpoint, units)
        except Failed as failed:
            self.sure = True
            if failed.partial:
                self.checkpoint = self.checkpoint._replace(broken=failed.why)
            raise
        if part is not None:
            intent = first_of(checkpoint.intent, units[part.done - 1].outputs)
            checkpoint = checkpoint._replace(
                position=units[part.done - 1].position,
                seq=checkpoint.seq - bool(checkpoint.intent) + bool(intent),
                intent=intent,
                broken=part.failed.why if part.failed.partial else "",
            )
        self.checkpoint = checkpoint
        self.owes = bool(checkpoint.intent)
        self.sure = True
        return part

    def _went_back(self, why: str) -> Rule[StoreWentBack]:
        return went_back(self._name, self._tag, self._fence, self.checkpoint, why)


def went_back(
    name: str, tag: str, fence: Fence, checkpoint: Checkpoint, why: str
) -> Rule[StoreWentBack]:
    """Return the error of a store that has less than was done.

    Raises ``Fenced`` if it is this process that is behind: a successor was further on.
    """
    key = fence_key(fence.name)
    check_fence(fence, (yield Get((key,)))[key])
    return StoreWentBack(
        f"the store of the consumer {name!r} has {tag} done through {checkpoint.position}, and was "
        f"further on ({why}): it was restored from a backup, or is another one"
    )
