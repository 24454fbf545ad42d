"""The group as a replica saw it last, for threads that must not wait for the engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from curp._core.witness_list import WitnessList
from curp._replica.metadata import read_witness_list
from curp.log._commits import GroupLog
from curp.log._creation import log_id
from curp.log._values import Leadership


class GroupView:
    """The newest leadership, witness list, log id and tail that the replica's thread read.

    ``look`` is of one thread; everything else of any, and never waits.
    """

    def __init__(self, engine: GroupLog, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: seconds, monotonic."""
        self._engine = engine
        self._clock = clock
        self._leadership: Leadership | None = None
        self._seen_at = 0.0
        self.listed: WitnessList | None = None
        # The log's, 0 until it was read.
        self.store_id = 0
        self.tail = 0
        # Set once anything was seen at all.
        self.begun = threading.Event()

    def look(self) -> Leadership | None:
        """Ask the engine who leads; its answer, which is kept. Raises ``LogError``."""
        leadership = self._engine.leadership()
        self._leadership, self._seen_at = leadership, self._clock()
        number = 0 if leadership is None else leadership.configuration
        listed = self.listed
        # A list that serves changes with the number only.
        if number and (listed is None or not listed.serving or listed.configuration != number):
            self.listed = read_witness_list(self._engine)
        return leadership

    def begin(self) -> None:
        """See whose log it is, who leads and where it ends, before any of it is read.

        Raises ``LogError``.
        """
        self.store_id = log_id(self._engine)
        self.look()
        self.look_at_tail()
        self.begun.set()

    def look_at_tail(self) -> None:
        """Ask the engine where the log ends. Raises ``LogError``."""
        self.tail = self._engine.tail()

    def leader(self) -> str:
        """Return the leader's address, empty while no lease runs that this replica knows."""
        leadership, left_s = self._leadership, self.lease_left_s()
        return leadership.address if leadership is not None and left_s > 0 else ""

    def lease_left_s(self) -> float:
        """Return how long the lease still runs, 0.0 or less if it does not."""
        leadership = self._leadership
        if leadership is None:
            return 0.0
        return leadership.expires_in_s - (self._clock() - self._seen_at)

    def followed(self, tail: int) -> None:
        """Take where the log ends."""
        self.tail = tail
