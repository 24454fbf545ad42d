"""The appends of single messages: groups of them, one append in flight at a time."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress

from sharedlog._core.errors import (
    AppendUnknown,
    InvalidRequest,
    LogError,
    LogUnavailable,
    ProducerRetired,
)
from sharedlog._core.position import Position
from sharedlog._core.producers import Appended, ProducerId, append
from sharedlog._core.publishing import (
    APPEND_BYTES,
    APPEND_ENTRIES,
    Placed,
    committing,
    positions,
)
from sharedlog._log.place import Place
from sharedlog._log.resending import Unknown, not_sent
from sharedlog._log.sender import Sender

# How many outcomes that were unknown once are kept for who asks.
_KEPT = 1000


class Publication:
    """A message on its way: its position, or why it has none."""

    __slots__ = ("error", "message", "position", "ticket")

    def __init__(self, message: Placed) -> None:
        """Nothing is known of it yet."""
        self.message = message
        self.position: Position | None = None
        self.error: LogError | None = None
        # What names it once its outcome was unknown.
        self.ticket = ""

    def outcome(self) -> Position:
        """Return its position, or raise why it has none."""
        if self.position is None:
            raise self.error or _interrupted()
        return self.position


class Appender:
    """Appends groups of messages, each group by one append. One thread at a time."""

    def __init__(self, place: Place) -> None:
        """Nothing is asked of the log before the first message."""
        self._place = place
        limits = place.engine.limits
        self.most = min(APPEND_ENTRIES, limits.entries)
        self.most_bytes = min(APPEND_BYTES, limits.append_bytes)
        self._sender = Sender(place)
        # Those of the append whose outcome is not known.
        self._group: Sequence[Publication] = ()
        self._unsettled: OrderedDict[str, Publication] = OrderedDict()

    def append(self, group: Sequence[Publication]) -> None:
        """Append the messages, committed by themselves; every one has an outcome afterwards."""
        try:
            self._learn(self._sender.settle)
        except LogUnavailable as error:
            _fail(group, not_sent(error))
            return
        except LogError:
            # Of an earlier group, which is told.
            pass
        except BaseException:
            # A signal's, while an earlier group was asked for.
            _fail(group, not_sent(_interrupted()))
            raise
        messages = committing([each.message for each in group])

        def send() -> None:
            self._sender.append(lambda mine, seq: append(mine, seq, messages), self._appended)

        self._group = group
        try:
            self._learn(send)
        except ProducerRetired:
            # Nothing of this is in the log, nor will it be: another producer may append it.
            self._group = group
            with suppress(LogError):
                self._learn(send)
        except LogError:
            # Its messages are told.
            pass

    def left(self, publication: Publication) -> None:
        """Note that its outcome is unknown to its thread, which waits no longer. Any thread."""
        if publication.position is None and publication.error is None:
            error = LogUnavailable(
                "another thread sends it, and has not said yet what became of it"
            )
            self._tell_unknown([publication], error)

    def unsettled(self, ticket: str) -> Publication:
        """Return the message of which this ticket was given. Any thread."""
        found = self._unsettled.get(ticket)
        if found is None:
            raise InvalidRequest(f"{ticket[:100]!r} names nothing whose outcome was unknown here")
        return found

    def settle(self, publication: Publication) -> None:
        """Ask for the outcome of a message once more, where that is still unknown."""
        if publication in self._group:
            # Told by the outcome.
            with suppress(LogError):
                self._learn(self._sender.settle)

    def _learn(self, act: Callable[[], None]) -> None:
        """Do what finds the outcome of the group's append; raises why it is not in the log."""
        try:
            act()
        except Unknown as error:
            self._tell_unknown(self._group, error)
            raise
        except LogError as error:
            _fail(self._group, error)
            self._group = ()
            raise
        except BaseException:
            # A signal's: its thread does not know more than the others.
            self._tell_unknown(self._group, _interrupted())
            raise

    def _appended(self, _: ProducerId, found: Appended) -> None:
        group = self._group
        places = positions(
            [each.message.tag for each in group],
            found.lsn,
            found.checksum,
            self._place.incarnation,
        )
        for each, position in zip(group, places, strict=True):
            each.position, each.error = position, None
        self._group = ()

    def _tell_unknown(self, those: Sequence[Publication], error: LogUnavailable) -> None:
        remedy = (
            "This handle cannot learn it any more: read the log after it is opened again"
            if isinstance(error, Unknown) and error.stopped
            else "Ask again by log.settle"
        )
        for each in those:
            if not each.ticket:
                each.ticket = secrets.token_hex(8)
                self._unsettled[each.ticket] = each
            each.error = AppendUnknown(
                f"it is not known whether the log has this message: {error}. {remedy}; "
                "publishing it again may double it",
                each.ticket,
            )
        while len(self._unsettled) > _KEPT:
            self._unsettled.popitem(last=False)


def _interrupted() -> LogUnavailable:
    return LogUnavailable("the thread that sent it was interrupted by a signal")


def _fail(group: Sequence[Publication], error: LogError) -> None:
    for each in group:
        each.error = error
