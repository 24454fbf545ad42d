"""The errors of a log: what it refuses, and whether it was appended. All of them pickle."""

from __future__ import annotations

__all__ = [
    "AlreadyCommitted",
    "AnswerGone",
    "AppendUnknown",
    "CallAfterWrite",
    "CallForgotten",
    "CallMismatch",
    "CheckpointWentBack",
    "CorruptLog",
    "Fenced",
    "HandlerEnded",
    "HoldMoved",
    "InvalidRequest",
    "LogError",
    "LogExists",
    "LogForked",
    "LogFull",
    "LogStopped",
    "LogUnavailable",
    "NewerFormat",
    "NoSuchLog",
    "NoSuchOutbox",
    "NoSuchStream",
    "NotAllowed",
    "NotDurable",
    "OutOfOrder",
    "OutboxWentBack",
    "PredecessorMismatch",
    "ProducerRetired",
    "QuotaExceeded",
    "ReentrantUse",
    "SchemaChanged",
    "SealedMessage",
    "SeqReused",
    "SpanGone",
    "StoreAway",
    "StoreStopped",
    "StoreWentBack",
    "TrimmedLog",
    "UnknownProducer",
    "WrongTransaction",
]


class LogError(Exception):
    """A log's refusal. ``appended``: False if nothing was, None if that is not known."""

    appended: bool | None = False


class InvalidRequest(LogError, ValueError):
    """The request itself cannot be: too large, no such name, too many tags."""


class ReentrantUse(LogError):
    """A call from within another one of the same thread or task: nothing of this was sent.

    A logging handler, a finalizer or a signal's handler made it while its own thread was in the
    middle of such a call, which it would wait for. Make it later, or hand it to another thread and
    do not wait for that.
    """


class CallAfterWrite(InvalidRequest):
    """A handler has written, and then calls another service, over a database of one writer.

    Everybody else who writes it would wait for the service: calls come first. It was not sent.
    """


class HandlerEnded(InvalidRequest):
    """A handler has ended, and a task, thread or function that it left uses what it was lent.

    Nothing of this was done. What the handler did is committed, or runs again, without it.
    """


class CallMismatch(LogError):
    """A handler that ran again makes another call than before: nothing was sent."""


class CallForgotten(LogError):
    """A service no longer has what a call was sent under: whether it ran is not known.

    It is not sent again, as it may run again then.
    """

    appended: bool | None = None


class WrongTransaction(LogError):
    """A transaction that cannot take an append with it: nothing of this request is in the log.

    It is in another database than the log, in autocommit, failed, at another isolation level than
    the log can be judged at, or its commit would not wait for the disk.
    """


class NoSuchOutbox(LogError):
    """The database has no outbox of this name: ``create_outbox`` makes it."""


class OutboxWentBack(LogError):
    """The log has messages of an outbox that its database lacks, or has others in their place.

    It was restored from a backup. Nothing more of it is appended.
    """


class StoreWentBack(LogError):
    """A consumer's store has done less than it had done: it was restored, wiped, or is another.

    Going on would repeat what is in the log already. Nothing more of the shard is done.
    """


class StoreStopped(LogError):
    """A sync of a consumer's store, or of an outbox's database, failed: it is not used any more.

    The last commit may not be on the disk. Look at the disk, then restart the process.
    """

    appended: bool | None = None


class StoreAway(LogError):
    """A consumer's store does not answer, or refuses what is asked for the moment.

    Whether a commit happened is found out before anything else is done.
    """

    appended: bool | None = None


class OtherStore(LogError):
    """Another store stands behind a target than its player was told of: nothing was taken."""

    appended: bool | None = False


class LogForked(LogError):
    """The position or producer is of another incarnation: a copy was written on."""


class UnknownProducer(LogError):
    """No such producer, or not with this token: nothing of this request is in the log."""


class ProducerRetired(LogError):
    """The producer was retired. What it had pending was rolled back.

    Its earlier appends are still answered. Nothing of this request is in the log.
    """


class CheckpointWentBack(LogError):
    """A query's checkpoint is behind what the query has committed: an older copy, or a new one.

    Going on would commit again what is in the log. Nothing of its batch is.
    """


class OutOfOrder(LogError):
    """The seq is not the producer's highest plus one; ``expected`` is."""

    def __init__(self, message: str, expected: int) -> None:
        """``expected``: the seq that would be taken."""
        super().__init__(message, expected)
        self.expected = expected

    def __str__(self) -> str:
        """The message alone."""
        return str(self.args[0])


class AnswerGone(LogError):
    """The seq was appended once, so long ago that its answer is no longer kept."""

    appended = True


class SeqReused(LogError):
    """The seq was appended with other content: nothing of this request is in the log."""


class AlreadyCommitted(LogError):
    """A named producer is at this seq with other content, or past it.

    Nothing of this request is in the log by it. Past a seq contents are not compared: it may be
    what was committed under it, or what was passed over.
    """


class PredecessorMismatch(LogError):
    """A named producer's highest is not what this append follows; ``found`` is."""

    def __init__(self, message: str, found: int) -> None:
        """``found``: the name's highest seq."""
        super().__init__(message, found)
        self.found = found

    def __str__(self) -> str:
        """The message alone."""
        return str(self.args[0])


class Fenced(LogError):
    """Another program raised the fence and took over: this writer's number is too low."""

    def __init__(self, message: str, number: int) -> None:
        """``number``: the fence's, now."""
        super().__init__(message, number)
        self.number = number

    def __str__(self) -> str:
        """The message alone."""
        return str(self.args[0])


class SpanGone(LogError):
    """The marker does not name exactly what its producers have pending; nothing was decided."""


class HoldMoved(LogError):
    """The hold is further on than this move: another follower of its name runs."""


class TrimmedLog(LogError):
    """What is asked for was trimmed, or the hold that kept it was dropped.

    ``first``: commits from this LSN on are whole. ``lost``: the first and the last LSN of what
    is gone for this reader, None where nothing is gone yet, or it is not known what was read.
    """

    def __init__(self, message: str, first: int, lost: tuple[int, int] | None = None) -> None:
        """``first``: the first LSN that can be read whole."""
        super().__init__(message, first, lost)
        self.first = first
        self.lost = lost

    def __str__(self) -> str:
        """The message alone."""
        return str(self.args[0])


class CorruptLog(LogError):
    """What was read is not what was written. Nothing is skipped."""


class SchemaChanged(LogError):
    """The values of a stream have other columns, or another type, than is written or read."""


class SealedMessage(LogError):
    """The message is sealed, and cannot be opened here: no ``unseal`` was given, or it failed.

    Its place and its times are known all the same, and those behind it are read.
    """


class LogUnavailable(LogError):
    """The engine did not answer, or has no room: whether a commit happened is not known.

    The same request, sent again, is answered or happens now (L3).
    """

    appended: bool | None = None
    # False: it stays so until an operator changes something, and is told at once.
    passing = True


class LogFull(LogUnavailable):
    """The engine has no room: nothing of this request is in the log. What is there is read."""

    appended = False


class QuotaExceeded(LogUnavailable):
    """The server takes no more of this caller for the moment: nothing of this is in the log.

    Sent again later it may be taken; ``publish`` does so for as long as its log's timeout.
    """

    appended = False


class LogStopped(LogUnavailable):
    """This handle cannot be used again: closed, forked, or it is unknown what is on its disk.

    Open the log again once the cause is removed.
    """


class NotDurable(LogError):
    """The store's settings allow it to forget what it acknowledged: the log is not opened."""


class AppendUnknown(LogUnavailable):
    """It is not known whether the log has the append, which it may still get.

    Its producer sends it again before anything else, so that it is in the log once or not at
    all. ``ticket`` names it: ``Log.settle`` asks again; of a transaction it is empty, and its own
    ``settle`` does. Publishing it once more instead may append it twice.
    """

    def __init__(self, message: str, ticket: str) -> None:
        """``ticket``: what ``Log.settle`` takes, in the process that got this."""
        super().__init__(message, ticket)
        self.ticket = ticket

    def __str__(self) -> str:
        """The message alone."""
        return str(self.args[0])


class NoSuchLog(LogError):
    """There is no log: it is made by ``create``, and never by opening it."""


class NoSuchStream(LogError):
    """The log has no stream of this name: ``log.stream`` makes it."""


class LogExists(LogError):
    """There is a log already: nothing was made."""


class NewerFormat(LogError):
    """A newer release made the log or wrote this part of it: nothing is skipped or changed."""


class NotAllowed(LogError):
    """The server that has the log does not let this caller do so; nothing was done."""
