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

    __slots__ = ("leads", "publication", "woken")

    def __init__(self, publication: Publication | None) -> None:
        # None: it wants the lead for something else.
        self.publication = publication
        self.leads = False
        self.woken = threading.Lock()
        self.woken.acquire()


class Publisher:
    """Appends single messages, each committed as soon as it is in the log. Any thread."""

    def __init__(self, place: Place) -> None:
        """Nothing is asked of the log before the first message."""
        self._appender = Appender(place)
        self._gate = threading.Lock()
        self._queue: deque[_Waiting] = deque()
        self._led = False
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
        if self._turn(mine):
            self._lead(mine, publication)
        return publication.outcome()

    def settle(self, ticket: str) -> Position:
        """Return where a message is whose outcome was unknown, or raise why it is not there."""
        mine = _Waiting(None)
        self._turn(mine)
        try:
            return self._appender.settle(ticket)
        finally:
            self._hand_on()

    def _turn(self, mine: _Waiting) -> bool:
        """Wait for the lead (True), or until somebody who leads has done what is wanted."""
        with self._gate:
            if not self._led:
                self._led = True
                return True
            self._queue.append(mine)
        try:
            mine.woken.acquire()
        except BaseException:
            # A signal's. Whatever was given meanwhile is given to the next.
            with self._gate:
                if mine in self._queue:
                    self._queue.remove(mine)
                leads = mine.leads
            if leads:
                self._hand_on()
            raise
        return mine.leads

    def _lead(self, mine: _Waiting, publication: Publication) -> None:
        """Append one's own message, and what has gathered behind it."""
        followers: list[_Waiting] = []
        group = [publication]
        try:
            self._let_gather()
            self._gather(followers, group)
            self._appender.append(group)
            self._last = len(group) + len(self._queue)
        finally:
            for each in followers:
                each.woken.release()
            self._hand_on()

    def _let_gather(self, give_way: Callable[[float], None] = time.sleep) -> None:
        """Let those publish again whose messages the last append had: they were just woken.

        Else two halves of the threads would take turns, each with a sync of the disk.
        """
        expected, seen = self._last - 1, -1
        while seen < len(self._queue) < expected:
            seen = len(self._queue)
            give_way(0)

    def _gather(self, followers: list[_Waiting], group: list[Publication]) -> None:
        """Take from the queue what fits one append with the leader's."""
        most, bytes_left = self._appender.most, self._appender.most_bytes - group[0].message.size
        with self._gate:
            queue = self._queue
            while queue and len(group) < most:
                publication = queue[0].publication
                if publication is None or publication.message.size > bytes_left:
                    return
                bytes_left -= publication.message.size
                followers.append(queue.popleft())
                group.append(publication)

    def _hand_on(self) -> None:
        """Give the lead to who waits longest, if somebody does."""
        with self._gate:
            if not self._queue:
                self._led = False
                return
            following = self._queue.popleft()
            following.leads = True
        following.woken.release()
