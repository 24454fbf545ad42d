"""The rules of an outbox: messages that wait in an application's database (DESIGN-LOG §12).

Their seqs come from a row of that database, its *head*, which is locked until the transaction that
took one has ended: dense, in the order of the commits, and never given twice. A relay appends them
as one named producer's, each after its predecessor, so that the log has each once (L3). The
*chain* tells a message with all before it: what the log has of the name is held against it, and so
a database that was restored from a backup is noticed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from sharedlog._core.commit import LSN_BYTES, Commit, Condition, Put, Refused
from sharedlog._core.errors import CorruptLog, OutboxWentBack, PredecessorMismatch
from sharedlog._core.fences import Fence
from sharedlog._core.named import Turn, append_named, named_key, seq_of
from sharedlog._core.names import NameKind, own_name
from sharedlog._core.producers import Appended, number
from sharedlog._core.publishing import Placed, committing, size_of
from sharedlog._core.steps import Ends, Get, Lsns, Rule

CHAIN_BYTES = 16
# Of an outbox that was never used.
NO_CHAIN = bytes(CHAIN_BYTES)


class WaitingMessage(NamedTuple):
    """A message that waits: its number, the tag of its substream, its envelope, and its chain."""

    seq: int
    tag: str
    envelope: bytes
    chain: bytes


class Mark(NamedTuple):
    """A place in the order of an outbox's messages."""

    seq: int
    chain: bytes


class Box(NamedTuple):
    """An outbox as one moment has it: what it is called, the log it is for, and what waits.

    ``head``: of the newest message; ``done``: of the newest one that is known to be in the log.
    ``waiting``: behind ``done``, or some of them. ``asked``: a message that was asked for, if it
    waits.
    """

    name: str
    id: str
    incarnation: str
    head: Mark
    done: Mark
    waiting: Sequence[WaitingMessage] = ()
    asked: Mark | None = None

    @property
    def producer(self) -> str:
        """Under which name its messages are appended."""
        return own_name(NameKind.OUTBOX, self.name, self.id)


def chained(chain: bytes, content: bytes) -> bytes:
    """Return the chain of a message, of the one before it and its content."""
    return hashlib.sha256(chain + content).digest()[:CHAIN_BYTES]


def content_of(tag: str, envelope: bytes) -> bytes:
    """Return what tells a message from others."""
    return hashlib.sha256(tag.encode() + b"\n" + envelope).digest()


def reached(box: Box) -> Rule[Mark]:
    """Return through where the log has an outbox's messages."""
    key = named_key(box.producer)
    value = (yield Get((key,)))[key]
    return Mark(seq_of(value), NO_CHAIN if value is None else value[8:-LSN_BYTES])


def judge(box: Box, log: Mark) -> None:
    """Hold what the log has against what the outbox has there.

    ``log`` was read before ``box``, which was asked for that message. Raises ``OutboxWentBack``
    if the outbox lacks what the log has, or has another message in its place, and
    ``PredecessorMismatch`` if the log lacks what it had acknowledged.
    """
    if log.seq < box.done.seq:
        raise PredecessorMismatch(
            f"the log has the messages of outbox {box.name!r} through {log.seq}, and had "
            f"acknowledged {box.done.seq}: it was restored from a backup, or forgot the name. "
            "To go on without what it lacks: sharedlog relay --adopt",
            log.seq,
        )
    if log not in (box.done, box.head, box.asked):
        raise OutboxWentBack(
            f"the log has message {log.seq} of outbox {box.name!r}, which "
            + ("ends at " if log.seq > box.head.seq else "has another one there, and ends at ")
            + f"{box.head.seq}: its database was restored from a backup. What was published since "
            "that is in the log; look, and go on with an outbox of another name"
        )


def missing(box: Box, log: Mark) -> tuple[int, int] | None:
    """Return the first and the last message that the log lacks and had acknowledged, if any.

    The outbox has them no more. Raises ``OutboxWentBack``, and takes the same, as ``judge``.
    """
    if log.seq < box.done.seq:
        return log.seq + 1, box.done.seq
    judge(box, log)
    return None


def pass_over(box: Box) -> Rule[None]:
    """Have the log go on behind what was acknowledged, and what it lacks of that; idempotent."""
    key = named_key(box.producer)
    while True:
        value = (yield Get((key,)))[key]
        if seq_of(value) >= box.done.seq:
            return
        # No append of this log's is that one: it stands where the log ends.
        ends: Lsns = yield Ends()
        mine = number(box.done.seq) + box.done.chain + ends.last.to_bytes(LSN_BYTES, "big")
        try:
            yield Commit((Condition(key, value),), (Put(key, mine),))
        except Refused:
            continue
        return


def check_waiting(box: Box) -> None:
    """Raise ``CorruptLog`` unless what waits is what was published, from ``done`` on."""
    seq, chain = box.done
    for each in box.waiting:
        seq, chain = seq + 1, chained(chain, content_of(each.tag, each.envelope))
        if (each.seq, each.chain) != (seq, chain):
            raise CorruptLog(f"message {seq} of outbox {box.name!r} is missing or damaged")
    if not box.waiting and box.head != box.done:
        raise CorruptLog(f"message {box.head.seq} of outbox {box.name!r} is missing")


def relayed(box: Box, messages: Sequence[WaitingMessage], fence: Fence) -> Rule[Appended]:
    """Append messages that follow each other, by one append: once, also if several relays try."""
    turn = Turn(box.producer, messages[-1].seq, messages[0].seq - 1)
    placed = [Placed(each.envelope, each.tag, 0) for each in messages]
    return append_named(turn, messages[-1].chain, committing(placed), fence=fence)


def fitting(
    waiting: Sequence[WaitingMessage], most: int, most_bytes: int
) -> Sequence[WaitingMessage]:
    """Return the first of them that fit one append."""
    left = most_bytes
    for count, each in enumerate(waiting):
        left -= size_of(each.envelope, each.tag)
        if count and (left < 0 or count == most):
            return waiting[:count]
    return waiting
