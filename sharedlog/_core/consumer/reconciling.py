"""The reconciling of a store with a log that knows less of it (DESIGN-LOG §14, T1).

The seq of a shard's outputs is in the store and in the log. The log is behind by the intent
alone, unless an operator has forgotten what it knew, or its end was lost.
"""

from __future__ import annotations

from sharedlog._core.commit import Commit, Condition, Put, Refused
from sharedlog._core.consumer.checkpoint import Checkpoint
from sharedlog._core.errors import LogForked, TrimmedLog
from sharedlog._core.fences import Fence, check_fence, condition_of, fence_key, number_of
from sharedlog._core.named import begun_at, named_key, seq_of
from sharedlog._core.position import Position
from sharedlog._core.reading import verify
from sharedlog._core.steps import Get, Rule


def check_place(position: Position | None) -> Rule[None]:
    """Raise ``LogForked`` if this log has something else at a store's position, or nothing.

    Before anything is appended: each take-over raises the log's number, so that the number tells
    no more that the log is an older one. The next read tells what was trimmed.
    """
    if position is not None:
        try:
            yield from verify(position)
        except TrimmedLog:
            return


def reconcile(producer: str, hold_key: str, fence: Fence, checkpoint: Checkpoint) -> Rule[None]:
    """Have the producer's name go on from what the store says, where it was forgotten.

    Told by the name and by the hold, of which neither is there: the hold is made before the first
    output is. Raises ``LogForked`` if the log has fewer outputs than were acknowledged, and was
    not told to forget them; ``Fenced``.
    """
    # Nothing begins before the log has acknowledged what was (T3): so all but the intent was.
    acknowledged = checkpoint.seq - bool(checkpoint.intent)
    name, number = named_key(producer), fence_key(fence.name)
    while True:
        found = yield Get((name, hold_key, number))
        highest = seq_of(found[name])
        if highest >= acknowledged:
            return
        check_fence(fence, found[number])
        if found[name] is not None or found[hold_key] is not None:
            raise LogForked(
                f"the log has {highest} of the outputs of {producer!r}, and has acknowledged "
                f"{acknowledged}: its end was lost, or the name alone was forgotten; where the "
                "hold is forgotten, too, the name goes on from what the store says"
            )
        try:
            yield Commit(
                (Condition(name, None), Condition(hold_key, None), condition_of(fence)),
                (Put(name, begun_at(acknowledged)),),
            )
        except Refused:
            continue
        return


def go_on(producer: str, seq: int, fence: Fence) -> Rule[None]:
    """Have a name go on behind a seq whose outputs are in the log; raises ``Fenced``."""
    name, number = named_key(producer), fence_key(fence.name)
    while True:
        found = yield Get((name, number))
        check_fence(fence, found[number])
        if seq_of(found[name]) >= seq:
            return
        try:
            yield Commit(
                (Condition(name, found[name]), condition_of(fence)), (Put(name, begun_at(seq)),)
            )
        except Refused:
            continue
        return


def check_given(fence: Fence, number: int) -> Rule[None]:
    """Raise ``LogForked`` unless the log has given the number in a store to another process.

    It is raised in the log first, and read here afterwards: a store that has a higher one, or this
    process's before it came, follows another log, or one whose end was lost.
    """
    key = fence_key(fence.name)
    given = number_of((yield Get((key,)))[key])
    if given < number or number == fence.number:
        raise LogForked(
            f"the store is at number {number} of {fence.name!r}, and this log is at {given}: the "
            "log was restored, or is another one"
        )
