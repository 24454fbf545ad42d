"""Publishing from any thread: the messages of threads that meet travel in one append.

One thread *leads*: it appends what has gathered, wakes those whose messages these were, and gives
the lead to the first that came meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from sharedlog._core.errors import InvalidRequest
from sharedlog._core.position import Position
from sharedlog._core.publishing import Placed
from sharedlog._log.appender import Appender, Publication
from sharedlog._log.place import Place


class _Waiting:
    """A thread that waits for its turn: for its message's outcome, or for the lead."""

    __slots__ = ("leads", "publication", "waits", "woken")

    def __init__(self, publication: Publication | None) -> None:
        # None: it wants the lead for something else.
        self.publication = publication
        self.waits = False
        # It has the lead, and has to give it on.
        self.leads = False
        self.woken = threading.Lock()
        self.woken.acquire()

    def wake(self) -> None:
        """Let it go on; again changes nothing, since it waits once."""
        if self.woken.locked():
            self.woken.release()


class Publisher:
    """Appends single messages, each committed as soon as it is in the log. Any thread.

    A signal's exception may come between any two steps of the thread that it meets. What that
    leaves half done ``_leave`` does again: each of its steps may be taken twice.
    """

    def __init__(self, place: Place) -> None:
        """Nothing is asked of the log before the first message."""
        self._appender = Appender(place)
        self._gate = threading.Lock()
        self._queue: deque[_Waiting] = deque()
        self._leader: _Waiting | None = None
        # Whose messages travel with the leader's: they are woken when it leaves.
        self._riding: list[_Waiting] = []
        # How many published at the same time, as the last leader saw it.
        self._last = 0

    def publish(self, message: Placed) -> Position:
        """Append a message, and return its position.

        Raises ``OutcomeUnknown`` where the log does not say in time whether it has it; what
        refuses it; and ``LogUnavailable`` with ``appended`` False where it is not there.
        """
        if message.size > self._appender.most_bytes:
            raise InvalidRequest(
                f"a message of {message.size} bytes; this log takes {self._appender.most_bytes}"
            )
        publication = Publication(message)
        mine = _Waiting(publication)
        try:
            try:
                if self._turn(mine):
                    self._lead(publication)
            finally:
                self._leave(mine)
        except BaseException:
            self._leave(mine)
            raise
        return publication.outcome()

    def settle(self, ticket: str) -> Position:
        """Return where a message is whose outcome was unknown, or raise why it is not there."""
        mine = _Waiting(None)
        try:
            try:
                self._turn(mine)
                return self._appender.settle(ticket)
            finally:
                self._leave(mine)
        except BaseException:
            self._leave(mine)
            raise

    def _turn(self, mine: _Waiting) -> bool:
        """Wait for the lead (True), or until somebody who leads has done what is wanted."""
        with self._gate:
            if self._leader is None:
                mine.leads = True
                self._leader = mine
                return True
            mine.waits = True
            self._queue.append(mine)
        mine.woken.acquire()
        mine.waits = False
        return mine.leads

    def _lead(self, publication: Publication) -> None:
        """Append one's own message, and what has gathered behind it."""
        group = [publication]
        self._let_gather()
        self._gather(group)
        self._appender.append(group)
        self._last = len(group) + len(self._queue)

    def _leave(self, mine: _Waiting) -> None:
        """Wait for nothing any more; who leads wakes those it led, and gives the lead on."""
        if not mine.leads and not mine.waits:
            return
        with self._gate:
            queue = self._queue
            if mine.waits:
                mine.waits = False
                if mine in queue:
                    queue.remove(mine)
            if self._leader is mine:
                for each in self._riding:
                    if queue and queue[0] is each:
                        queue.popleft()
                    each.wake()
                self._riding.clear()
                self._leader = queue[0] if queue else None
            leader = self._leader
            if leader is not None:
                if queue and queue[0] is leader:
                    queue.popleft()
                leader.leads = True
                leader.wake()
            mine.leads = False

    def _let_gather(self, give_way: Callable[[float], None] = time.sleep) -> None:
        """Let those publish again whose messages the last append had: they were just woken.

        Else two halves of the threads would take turns, each with a sync of the disk.
        """
        expected, seen = self._last - 1, -1
        while seen < len(self._queue) < expected:
            seen = len(self._queue)
            give_way(0)

    def _gather(self, group: list[Publication]) -> None:
        """Take from the queue what fits one append with the leader's."""
        most, bytes_left = self._appender.most, self._appender.most_bytes - group[0].message.size
        with self._gate:
            queue = self._queue
            while queue and len(group) < most:
                publication = queue[0].publication
                if publication is None or publication.message.size > bytes_left:
                    return
                bytes_left -= publication.message.size
                group.append(publication)
                self._riding.append(queue[0])
                queue.popleft()
