"""Publishing from any thread: the messages of threads that meet travel in one append.

One thread leads: it appends what has gathered, wakes those whose messages these were, and gives
the lead to the first that came meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from _rifl_ground.owned_lock import LONGEST_S
from sharedlog._core.errors import InvalidRequest, LogUnavailable, ReentrantUse
from sharedlog._core.position import Position
from sharedlog._core.publishing import Placed
from sharedlog._engines.lead import Candidate, Lead
from sharedlog._log.appender import Appender, Publication
from sharedlog._log.place import Place


class _Publishing(Candidate):
    """A thread that waits for its turn: for its message's outcome, or for the lead."""

    __slots__ = ("publication",)

    # None: it wants the lead for something else.
    publication: Publication | None


class Publisher:
    """Appends single messages, each committed once it is in the log. Any thread."""

    def __init__(self, place: Place) -> None:
        """Nothing is asked of the log before the first message."""
        self._appender = Appender(place)
        # The one that leads asks the log for that time, and may then ask for its own message.
        self._lead: Lead[_Publishing] = Lead(LONGEST_S + place.timeout_s)
        # How many published at the same time, as the last leader saw it.
        self._last = 0

    def publish(self, message: Placed) -> Position:
        """Append a message, and return its position.

        Raises ``AppendUnknown`` if the log does not say in time whether it has it; what
        refuses it; ``ReentrantUse`` within another one of this thread; and ``LogUnavailable``
        with ``appended`` False if it is not there.
        """
        if message.size > self._appender.most_bytes:
            raise InvalidRequest(
                f"a message of {message.size} bytes; this log takes {self._appender.most_bytes}"
            )
        mine = _Publishing()
        mine.publication = publication = Publication(message)
        self._lead.run(mine, self._append)
        if publication.position is not None:
            return publication.position
        self._appender.left(publication)
        return publication.outcome()

    def settle(self, ticket: str) -> Position:
        """Return where a message is whose outcome was unknown, or raise why it is not there."""
        publication = self._appender.unsettled(ticket)
        mine = _Publishing()
        mine.publication = None
        try:
            self._lead.run(mine, lambda _: self._appender.settle(publication))
        except (LogUnavailable, ReentrantUse) as error:
            # It was not asked for: the message may be there.
            error.appended = None
            raise
        return publication.outcome()

    def _append(self, mine: _Publishing) -> None:
        """Append one's own message, and what has gathered behind it."""
        if self._last > 1:
            self._let_gather()
        group = self._gather(mine)
        self._appender.append(group)
        self._last = len(group) + self._lead.waiting

    def _let_gather(self, give_way: Callable[[float], None] = time.sleep) -> None:
        """Let those publish again whose messages the last append had: they were just woken.

        Else two halves of the threads would take turns, each with a sync of the disk.
        """
        expected, seen = self._last - 1, -1
        while seen < self._lead.waiting < expected:
            seen = self._lead.waiting
            give_way(0)

    def _gather(self, mine: _Publishing) -> list[Publication]:
        """Return the messages to append: the leader's, and those that fit one append with it."""
        group: list[Publication] = []
        most, bytes_left = self._appender.most, self._appender.most_bytes

        def fits(each: _Publishing) -> bool:
            nonlocal bytes_left
            publication = each.publication
            if publication is None or len(group) == most:
                return False
            bytes_left -= publication.message.size
            if bytes_left < 0:
                return False
            group.append(publication)
            return True

        fits(mine)
        self._lead.take(fits)
        return group
