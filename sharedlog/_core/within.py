"""Appends within a transaction of the application's, in the log's own database (DESIGN-LOG §12).

Nothing is sent again: the transaction commits once, or not at all. Such an append is that of one
producer, whose name no program can take; its seq is given under the lock that every write of the
log takes, so that its seqs are dense, in the order in which the transactions commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sharedlog._core.commit import Commit, Condition, NewEntry, Put, Refused, Stamp
from sharedlog._core.entry import EntryKind, committed_bodies
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.fences import Fence, check_fence, condition_of, fence_key
from sharedlog._core.incarnation import read_incarnation
from sharedlog._core.named import named_key, seq_of
from sharedlog._core.producers import NewMessage, fingerprint_of, number
from sharedlog._core.steps import Get, Lsns, Rule

# ``check_producer_name`` refuses it.
NAME = "@transactions"


class Within(NamedTuple):
    """What is appended; ``incarnation``: of the log that it is meant for."""

    incarnation: str
    messages: tuple[NewMessage, ...]
    fence: Fence | None = None

    @property
    def content(self) -> bytes:
        """What is kept with the seq, 16 bytes that tell the messages."""
        return fingerprint_of(EntryKind.COMMITTED, self.messages, ())


def bodies_of(messages: Sequence[NewMessage], seq: int) -> list[bytes]:
    """Return the bodies of the entries of one append, committed by itself."""
    return committed_bodies([each.envelope for each in messages], 0, seq, NAME)


def append_within(within: Within) -> Rule[Lsns]:
    """Append as the next of all such transactions.

    To be carried out in the application's transaction, under the lock. Raises ``Fenced``, and
    ``LogForked`` if that database holds another log.
    """
    messages, fence = within.messages, within.fence
    if not messages:
        raise InvalidRequest("an append has at least one message")
    key = named_key(NAME)
    keys = (key,) if fence is None else (key, fence_key(fence.name))
    while True:
        yield from read_incarnation(within.incarnation)
        found = yield Get(keys)
        conditions = [Condition(key, found[key])]
        if fence is not None:
            check_fence(fence, found[fence_key(fence.name)])
            conditions.append(condition_of(fence))
        seq = seq_of(found[key]) + 1
        entries = tuple(
            NewEntry(body, message.tags)
            for body, message in zip(bodies_of(messages, seq), messages, strict=True)
        )
        put = Put(key, number(seq) + within.content, Stamp.LAST)
        try:
            lsns: Lsns = yield Commit(tuple(conditions), (put,), entries)
        except Refused:
            continue
        return lsns
