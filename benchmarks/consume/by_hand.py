"""The loops that one writes by hand: follow, commit, publish; what is killed loses or repeats."""

from __future__ import annotations

from itertools import islice
from typing import Any

import sharedlog
from benchmarks.consume import databases
from benchmarks.consume.ours import fill
from benchmarks.consume.worker import INPUT, OUTPUT, read

__all__ = ["ByHand"]

_WAIT_S = 0.1


class ByHand:
    """See ``Worker``: no exactly-once at all."""

    def __init__(self, url: str, store: str, *, batch: int = 1) -> None:
        """``batch``: messages of one transaction at most, which are published together, too."""
        self._batch = batch
        self._log = sharedlog.open(url)
        self._producer = self._log.producer()
        databases.create(store)
        self._connection: Any = databases.connected(store)
        self._following = self._log.follow(INPUT, name="by-hand")
        self._read: list[sharedlog.Message] = []

    def fill(self, count: int) -> None:
        """See ``Worker``."""
        fill(self._log, count)

    def take(self) -> list[bytes]:
        """See ``Worker``."""
        self._read = self._read or self._following.poll(_WAIT_S)
        messages = list(islice(self._read, self._batch))
        if not messages:
            return []
        self._read = self._read[len(messages) :]
        bodies = [each.value for each in messages]
        self._connection.execute("BEGIN")
        for body in bodies:
            databases.update(self._connection, read(body)[0])
        self._connection.execute("COMMIT")
        if self._batch == 1:
            self._log.publish(OUTPUT, bodies[0])
        else:
            with self._producer.transaction() as transaction:
                for body in bodies:
                    transaction.publish(OUTPUT, body)
        self._following.done(messages[-1])
        return bodies

    def close(self) -> None:
        """See ``Worker``."""
        self._following.close()
        self._connection.close()
        self._log.close()
