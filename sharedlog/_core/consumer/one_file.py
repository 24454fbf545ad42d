"""Keepers whose database has the log, too: outputs are in the commit of the effects.

So there is no intent, nothing is owed, and nothing is pending (DESIGN-LOG §14, T2, T3).
"""

from __future__ import annotations

from sharedlog._core.consumer.asked import AppendWithin, Asked, Ran
from sharedlog._core.consumer.keeping import InStore
from sharedlog._core.consumer.outputs import content_of, parted
from sharedlog._core.errors import AlreadyCommitted
from sharedlog._core.named import Turn, append_named
from sharedlog._core.position import Position
from sharedlog._core.publishing import committing


class InOneFile(InStore):
    """The keeper of a shard whose store is in the log's file: outputs are at most one append."""

    def commit(self, ran: Ran, position: Position | None) -> Asked[int]:
        """Commit effects, position and outputs at once.

        Judged under the name's highest seq, under the lease's number in the log, and in the
        store, by one transaction (T1).
        """
        try:
            yield from self._append_and_commit(ran, position)
        except AlreadyCommitted as error:
            raise (yield from self._went_back(str(error))) from error
        return ran.done

    def _append_and_commit(self, ran: Ran, position: Position | None) -> Asked[None]:
        checkpoint = self._next(position, self.checkpoint.seq + bool(ran.outputs), b"")
        if ran.outputs:
            messages = committing(ran.outputs)
            content = content_of(b"".join([each.envelope for each in messages]))
            turn = Turn(self._producer, checkpoint.seq, self.checkpoint.seq)
            append = append_named(turn, content, messages, fence=self._fence)
            yield AppendWithin(self._tag, append)
        yield from self._commit(checkpoint)


class InOneDatabase(InOneFile):
    """The keeper of a shard in the log's database: it can append more, pending, before a commit."""

    def commit(self, ran: Ran, position: Position | None) -> Asked[int]:
        """Commit; outputs of more than one append are committed as in other stores."""
        if len(parted(ran.outputs, self._bounds)) > 1:
            return (yield from InStore.commit(self, ran, position))
        return (yield from super().commit(ran, position))
