"""The appends of single messages by one producer: one append under way at a time."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from sharedlog._core.errors import (
    InvalidRequest,
    LogError,
    LogFull,
    LogUnavailable,
    OutcomeUnknown,
    ProducerRetired,
    UnknownProducer,
)
from sharedlog._core.position import Position
from sharedlog._core.producers import NewMessage, Producer, append, grant
from sharedlog._core.publishing import (
    APPEND_BYTES,
    APPEND_ENTRIES,
    Placed,
    committing,
    positions,
)
from sharedlog._log.place import Place
from sharedlog._log.resending import Unknown, not_sent, until_known

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
            raise self.error or LogUnavailable("the thread that sent this one was interrupted")
        return self.position


@dataclass
class _Append:
    seq: int
    messages: list[NewMessage]
    group: Sequence[Publication]
    # An attempt was not answered.
    unknown: bool = False


class Appender:
    """Appends groups of messages, each group by one append. One thread at a time."""

    def __init__(self, place: Place) -> None:
        """Nothing is asked of the log before the first message."""
        self._place = place
        limits = place.engine.limits
        self.most = min(APPEND_ENTRIES, limits.entries)
        self.most_bytes = min(APPEND_BYTES, limits.append_bytes)
        self._producer: Producer | None = None
        self._seq = 0
        # An append of unknown fate: nothing else of its producer is sent before it is known.
        self._unsettled: _Append | None = None
        self._settled: OrderedDict[str, Publication] = OrderedDict()

    def append(self, group: Sequence[Publication]) -> None:
        """Append the messages, committed by themselves; every one has an outcome afterwards."""
        try:
            self._resolve()
        except LogUnavailable as error:
            _fail(group, not_sent(error))
            return
        except LogError:
            # Of an earlier group, which is told.
            pass
        messages = committing([each.message for each in group])
        while True:
            try:
                if self._producer is None:
                    self._producer = until_known(
                        self._place, lambda: grant(secrets.token_bytes(16))
                    )
                    self._seq = 0
            except LogUnavailable as error:
                _fail(group, error if isinstance(error, LogFull) else not_sent(error))
                return
            self._unsettled = _Append(self._seq + 1, messages, group)
            try:
                self._resolve()
            except ProducerRetired:
                # Nothing of this is in the log, nor will it be: another producer may append it.
                continue
            except LogError:
                pass
            return

    def settle(self, ticket: str) -> Position:
        """Return where a message is whose outcome was unknown, or raise why it is not there."""
        known = self._settled.get(ticket)
        if known is None:
            raise InvalidRequest(f"{ticket[:100]!r} names nothing whose outcome was unknown here")
        unsettled = self._unsettled
        if unsettled is not None and known in unsettled.group:
            # Told by the outcome.
            with suppress(LogError):
                self._resolve()
        return known.outcome()

    def _resolve(self) -> None:
        """Send what is unsettled until its outcome is known; raises what it is told to have."""
        unsettled, producer = self._unsettled, self._producer
        if unsettled is None or producer is None:
            return
        group = unsettled.group
        try:
            found = until_known(
                self._place,
                lambda: append(producer, unsettled.seq, unsettled.messages),
                unknown=unsettled.unknown,
            )
        except Unknown as error:
            unsettled.unknown = True
            for each in group:
                each.error = self._unknown(each, error)
            raise
        except LogError as error:
            self._unsettled = None
            if not isinstance(error, LogUnavailable | InvalidRequest | UnknownProducer):
                # Whatever is wrong with its seqs, a new one begins at 1. A log that does not
                # know it is another one than was opened, which is for the caller to learn.
                self._producer = None
            _fail(group, error)
            raise
        except BaseException:
            # A signal's: its thread does not know more than the others.
            unsettled.unknown = True
            for each in group:
                each.error = self._unknown(each, LogUnavailable("the thread was interrupted"))
            raise
        self._unsettled = None
        self._seq = unsettled.seq
        places = positions(
            [each.message.tag for each in group],
            found.lsn,
            found.checksum,
            self._place.incarnation,
        )
        for each, position in zip(group, places, strict=True):
            each.position, each.error = position, None

    def _unknown(self, publication: Publication, error: LogUnavailable) -> OutcomeUnknown:
        if not publication.ticket:
            # Known in this process only, as what it names.
            publication.ticket = secrets.token_hex(8)
            self._settled[publication.ticket] = publication
            while len(self._settled) > _KEPT:
                self._settled.popitem(last=False)
        return OutcomeUnknown(
            f"the log did not say within {self._place.timeout_s:g} s whether it has this message "
            f"({error}): ask again by log.settle; publishing it again may double it",
            publication.ticket,
        )


def _fail(group: Sequence[Publication], error: LogError) -> None:
    for each in group:
        each.error = error
