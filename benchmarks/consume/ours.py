"""A consumer of the shared log as a worker, and the same with its guarantee off."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import sharedlog
from benchmarks.consume import databases
from benchmarks.consume.worker import BATCH, INPUT, OUTPUT, SUBSTREAMS, body_of, read
from sharedlog._core.commit import Commit, NewEntry
from sharedlog._core.consumer.asked import Asked, CommitStore, Ran
from sharedlog._core.consumer.checkpoint import Checkpoint
from sharedlog._core.consumer.keeping import InStore
from sharedlog._core.consumer.outputs import parted
from sharedlog._core.entry import committed_bodies
from sharedlog._core.position import Position
from sharedlog._core.publishing import Placed, committing
from sharedlog._core.steps import Rule

__all__ = ["IN_LOG", "Ours", "consumer_of", "fill"]

# The store that is the log itself.
IN_LOG = "log"
# Of one append, which are 1 KiB each.
_PIECE = 900


def fill(log: sharedlog.Log, count: int) -> None:
    """Publish so many messages, many in a transaction."""
    producer = log.producer()
    for first in range(0, count, _PIECE):
        with producer.transaction() as transaction:
            for number in range(first, min(count, first + _PIECE)):
                transaction.publish(INPUT, body_of(number))


def consumer_of(
    log: sharedlog.Log, name: str, store: str, taken: list[bytes]
) -> sharedlog.Consumer:
    """Return the consumer; it puts what it was called with into a list."""
    consumer = sharedlog.Consumer(log, name, [INPUT], store, batch=BATCH)

    @consumer.on(INPUT, bytes)
    def bill(body: bytes, effects: sharedlog.Effects) -> None:
        account, _ = read(body)
        if store == IN_LOG:
            effects.state[str(account)] = effects.state.get(str(account), 0) + 1
        else:
            databases.update(effects.connection, account)
        effects.publish(OUTPUT, body)
        taken.append(body)

    return consumer


class Ours:
    """See ``Worker``."""

    def __init__(self, url: str, store: str, name: str, *, guarantee: bool = True) -> None:
        """``url``: of its log, which is there; ``name``: its own.

        Without ``guarantee`` a crash loses, or repeats.
        """
        self._stack = ExitStack()
        self._log = self._stack.enter_context(sharedlog.open(url))
        if store != IN_LOG:
            databases.create(store)
        self._taken: list[bytes] = []
        self._consumer = consumer_of(self._log, name, store, self._taken)
        self._work = self._stack.enter_context(self._consumer._member())
        while len(self._work.shards) < SUBSTREAMS:
            self._work.round()
        self._work.round()
        if not guarantee:
            for own in self._work._own.values():
                own.shard.keeper = _Careless(own.shard.keeper)
            store_of_it: Any = self._work.carrier._store
            store_of_it._table.move = lambda *_: None

    def fill(self, count: int) -> None:
        """See ``Worker``."""
        fill(self._log, count)

    def take(self) -> list[bytes]:
        """See ``Worker``."""
        if not self._work.round():
            self._consumer._wait(self._work)
        # Of what is returned the outputs are in the log, too.
        for own in self._work._own.values():
            own.settled()
        taken = list(self._taken)
        self._taken.clear()
        return taken

    def close(self) -> None:
        """See ``Worker``."""
        self._stack.close()


class _Careless(InStore):
    """A keeper that commits the effects alone, and appends the outputs unconditionally."""

    def __init__(self, keeper: Any) -> None:
        """Go on where another one is."""
        self.__dict__.update(keeper.__dict__)
        self._placed: list[Sequence[Placed]] = []

    def commit(self, ran: Ran, position: Position | None) -> Asked[int]:
        """See ``Keeper``: nothing says how far it is, or what to append."""
        checkpoint = Checkpoint(self._fence.number, position, self.checkpoint.seq + 1)
        yield CommitStore(self._tag, checkpoint)
        self.checkpoint = checkpoint
        self._placed = list(parted(ran.outputs, self._bounds))
        self.owes = bool(self._placed)
        return ran.done

    def settle(self) -> Rule[None]:
        """See ``Keeper``."""
        outputs, self._placed, self.owes = self._placed, [], False
        for messages in outputs:
            placed = committing(messages)
            seq = self.checkpoint.seq
            bodies = committed_bodies([each.envelope for each in placed], 0, seq, self._producer)
            entries = [NewEntry(body, each.tags) for body, each in zip(bodies, placed, strict=True)]
            yield Commit(entries=tuple(entries))
