"""The travelling of outputs that are more than one append: pending, until the store has committed.

What is pending has a *home*, the shard (``homes``), which alone decides it (DESIGN-LOG §14).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sharedlog._core.consumer.asked import Failed
from sharedlog._core.entry import EntryKind, ProducerDecision, read_row
from sharedlog._core.errors import ProducerRetired, SpanGone, TrimmedLog
from sharedlog._core.fences import Fence
from sharedlog._core.homes import grant_at, vacate
from sharedlog._core.producers import TOKEN_BYTES, ProducerId
from sharedlog._core.publishing import Placed, pending
from sharedlog._core.spans import pend
from sharedlog._core.steps import Read, Rows, Rule

_ROWS = 1000
Draw = Callable[[int], bytes]


class Travelling:
    """What a shard has pending; one step at a time.

    ``left``: there may be something that was not committed, or is not known to be: before anything
    else is pending it is rolled back (C1).
    """

    def __init__(self, home: str, draw: Draw) -> None:
        """``home``: the name of the shard's outputs; ``draw``: so many random bytes."""
        self.left = False
        self._home = home
        self._draw = draw
        self._producer: ProducerId | None = None
        self._seq = 0

    def pend(self, appends: Sequence[Sequence[Placed]], fence: Fence) -> Rule[ProducerDecision]:
        """Append messages that readers do not see, and return what a marker says to commit them.

        Each append was answered before this returns. Raises ``Failed`` if another process has
        rolled it back meanwhile, and ``Fenced``.
        """
        if self.left:
            yield from self.undo(fence)
        self.left = True
        producer = self._producer
        if producer is None:
            producer = yield from grant_at(self._home, self._draw(TOKEN_BYTES), fence)
            self._producer, self._seq = producer, 0
        begins: dict[str, int] = {}
        try:
            for each in appends:
                found = yield from pend(
                    producer, self._seq + 1, pending(each), sorted(begins), fence=fence
                )
                self._seq += 1
                begins.update(found.begins)
        except (ProducerRetired, SpanGone) as error:
            raise Failed(f"what it published was rolled back: {error}", counts=False) from error
        return ProducerDecision(producer.id, self._seq, begins)

    def decided(self) -> None:
        """A marker has committed what was pending."""
        self.left = False

    def undo(self, fence: Fence) -> Rule[None]:
        """Roll back what any process left pending: its producer is retired (T1)."""
        self._producer = None
        yield from vacate(self._home, fence)
        self.left = False


def committed(decision: ProducerDecision) -> Rule[bool]:
    """Whether what was pending is committed; False: rolled back, or no longer known."""
    tag, begin = min(decision.begins.items())
    after = begin - 1
    try:
        while True:
            rows: Rows = yield Read(after, _ROWS, tag)
            for each in map(read_row, rows.rows):
                if any(
                    (of.producer, of.begins.get(tag)) == (decision.producer, begin)
                    for of in each.decisions
                ):
                    return each.kind is EntryKind.MARKER
            if not rows.rows:
                return False
            after = rows.through
    except TrimmedLog:
        return False
