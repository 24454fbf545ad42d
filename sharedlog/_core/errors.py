"""The errors of a log: what it refuses, and whether it was appended. All of them pickle."""

from __future__ import annotations

from _rifl_ground.refusals import Denied

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
    # Told to clients in place of a message that may name the server's engine, files and addresses.
    told: str = ""
    # On a server: what a caller lacks who is not let in.
    denied: Denied | None = None


class InvalidRequest(LogError, ValueError):
    """The request itself is invalid: too large, a wrong name, too many tags.

    Correct the call.
    """


class ReentrantUse(LogError):
    """A call from within another one of the same thread or task: nothing of this was sent.

    A logging handler, a finalizer or a signal handler made it during such a call of its own thread:
    to wait for that call would be a deadlock.

    Make the call later, or in another thread, and do not wait for that thread.
    """


class CallAfterWrite(InvalidRequest):
    """A consumer's function calls a service after it wrote to a database with one writer.

    All other writers would wait for the service. The call was not sent.

    Call before you write.
    """


class HandlerEnded(InvalidRequest):
    """A task, thread or function uses a handler's connection or effects after its end.

    Nothing of this was done. The handler's own work is committed, or runs again, without it.

    Await what the handler begins.
    """


class CallMismatch(LogError):
    """A handler that runs again makes another call than in its first run: nothing was sent.

    Make calls depend on the message and the state alone:
    docs/reference/consumers.md#calls-to-other-services.
    """


class CallForgotten(LogError):
    """A service no longer knows the client of a call: it is unknown whether the call ran.

    It is not sent again, because it might run twice.

    Ask the service whether the call ran.
    """

    appended: bool | None = None


class WrongTransaction(LogError):
    """The transaction cannot include an append: nothing of this request is in the log.

    It is in another database than the log, in autocommit, or failed. Or its isolation level is not
    supported, or its commit would not wait for the disk.

    Give it a transaction as docs/reference/log.md#in-your-own-transaction says.
    """


class NoSuchOutbox(LogError):
    """The database has no outbox of this name.

    Make it: ``create_outbox``.
    """


class OutboxWentBack(LogError):
    """The log has messages of an outbox that its database lacks, or has others in their place.

    The database was restored from a backup. No more of its messages are appended.

    Do as docs/how-to/outbox.md says.
    """


class StoreWentBack(LogError):
    """A consumer's store has lost work: it was restored, wiped, or is another one.

    Going on would repeat effects and messages. The consumer handles no more of this substream.

    Bring the store back: docs/reference/consumers.md#what-is-kept.
    """


class StoreStopped(LogError):
    """A disk sync of a consumer's store or of an outbox's database failed: it is no longer used.

    The last commit may not be on the disk.

    Look at the disk, then restart the process.
    """

    appended: bool | None = None


class StoreAway(LogError):
    """A consumer's store does not answer, or refuses requests for the moment.

    Before anything else, the consumer finds out whether its last commit happened.

    Nothing: the consumer retries. Bring the store back.
    """

    appended: bool | None = None


class OtherStore(LogError):
    """A target uses another store than its player was told: it took nothing.

    Bring the store back, or ``sharedlog resume --adopt``.
    """

    appended: bool | None = False


class LogForked(LogError):
    """The position or producer is of another incarnation of the log: a copy was written on.

    Open the log again, and look which of the two is right: docs/how-to/log-operations.md#backups.
    """


class UnknownProducer(LogError):
    """There is no such producer, or it has another token: nothing of this is in the log.

    Look whether the URL names the right log, and open it again.
    """


class ProducerRetired(LogError):
    """The producer was retired. What it had pending was rolled back.

    Its earlier appends are still answered. Nothing of this request is in the log.

    Open the log again, and publish again.
    """


class CheckpointWentBack(LogError):
    """A query's checkpoint is behind what the query has committed, or is another query's.

    Going on would commit rows twice. Nothing of its batch is in the log.

    Bring the checkpoint back, or give the query another name: docs/reference/spark-log.md.
    """


class OutOfOrder(LogError):
    """The seq is not the producer's highest plus one, which is ``expected``.

    Look before you publish again: the handle was copied, or the log was restored.
    """

    def __init__(self, message: str, expected: int) -> None:
        """``expected``: the seq that would be accepted."""
        super().__init__(message, expected)
        self.expected = expected

    def __str__(self) -> str:
        """The message alone."""
        return str(self.args[0])


class AnswerGone(LogError):
    """The seq was appended once, so long ago that its answer is no longer kept.

    Look before you publish again: the handle was copied, or the log was restored.
    """

    appended = True


class SeqReused(LogError):
    """The seq was appended with other content: nothing of this request is in the log.

    Look before you publish again: the handle was copied, or the log was restored.
    """


class AlreadyCommitted(LogError):
    """A named producer has committed this seq with other content, or a later one.

    This request appended nothing. If the producer is past the seq, contents are not compared: the
    same content may have been committed under it, or the seq may have been skipped.

    Nothing, if an earlier run or another copy of this program went on; else look at the log.
    """


class PredecessorMismatch(LogError):
    """A named producer's highest seq is not the one that this append follows: it is ``found``.

    Go on after ``found``: an earlier run or another copy of this program went on.
    """

    def __init__(self, message: str, found: int) -> None:
        """``found``: the name's highest seq."""
        super().__init__(message, found)
        self.found = found

    def __str__(self) -> str:
        """The message alone."""
        return str(self.args[0])


class Fenced(LogError):
    """Another program raised the fence and took over: this writer's number is too low.

    Stop: another program does this work.
    """

    def __init__(self, message: str, number: int) -> None:
        """``number``: the fence's, now."""
        super().__init__(message, number)
        self.number = number

    def __str__(self) -> str:
        """The message alone."""
        return str(self.args[0])


class SpanGone(LogError):
    """The marker does not name exactly what its producers have pending; nothing was decided.

    Begin the transaction or batch again.
    """


class HoldMoved(LogError):
    """The hold is already ahead of this move: another follower with the same name runs.

    End one of the two.
    """


class TrimmedLog(LogError):
    """The requested messages were trimmed, or the hold that kept them was dropped.

    ``first``: commits from this LSN on are whole. ``lost``: the first and the last LSN that this
    reader has lost; None if it has lost nothing yet, or it is unknown what it had read.

    Decide where to go on: docs/how-to/log-operations.md#holds.
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
    """The stored data is damaged: it is not what was written. Nothing is skipped.

    Bring the data back: docs/how-to/log-operations.md#backups.
    """

    told = "the log is damaged: the server's events say where"


class SchemaChanged(LogError):
    """The stream's values have other columns, or another type, than the writer or reader uses.

    Change the query, or declare the change: docs/reference/spark-log.md#columns.
    """


class SealedMessage(LogError):
    """The message is sealed, and cannot be opened here: no ``unseal`` was given, or it failed.

    Its position and times are known all the same, and the messages after it are read.

    Open the log with the key: docs/reference/log.md#encryption.
    """


class LogUnavailable(LogError):
    """The engine did not answer, or has no room: it is unknown whether a commit happened.

    Send the same request again: it is answered or happens now. If ``appended`` is False, nothing
    was sent: publish again later.
    """

    appended: bool | None = None
    # False: it stays so until an operator changes something, and is told at once.
    passing = True
    told = "the server's log or store does not take this now: the server's events say why"


class LogFull(LogUnavailable):
    """The engine has no room: nothing of this request is in the log. Reads go on.

    Make room, then publish again.
    """

    appended = False


class QuotaExceeded(LogUnavailable):
    """The caller has used up its quota at the server: nothing of this is in the log.

    Try again later: the call was retried until its log's timeout.
    """

    appended = False
    told = ""


class LogStopped(LogUnavailable):
    """This handle is unusable: closed, forked, or it is unknown what is on its disk.

    Remove the cause, then open the log again.
    """


class NotDurable(LogError):
    """The store's settings allow it to lose acknowledged commits: the log is not opened.

    Correct the settings that the message names.
    """


class AppendUnknown(LogUnavailable):
    """It is unknown whether the log has the append; it may still arrive.

    Its producer sends it again before anything else, so that it is in the log once or not at all.
    ``ticket`` is empty for a transaction: call the transaction's own ``settle``.

    ``log.settle(error)`` returns the position or raises why there is none. Publishing again may
    append it twice.
    """

    def __init__(self, message: str, ticket: str) -> None:
        """``ticket``: what ``Log.settle`` takes, in the process that got this."""
        super().__init__(message, ticket)
        self.ticket = ticket

    def __str__(self) -> str:
        """The message alone."""
        return str(self.args[0])


class NoSuchLog(LogError):
    """There is no log at this URL; opening never makes one.

    Correct the URL, or ``create`` the log.
    """

    told = "the server's log is gone: the server's events say where it was"


class NoSuchStream(LogError):
    """The log has no stream of this name.

    Make it: ``log.stream``.
    """


class LogExists(LogError):
    """There is a log already: nothing was made.

    ``open`` it.
    """


class NewerFormat(LogError):
    """A newer release made the log or wrote this part of it: nothing is skipped or changed.

    Run that release.
    """


class NotAllowed(LogError):
    """The log's server does not allow this caller to do so; nothing was done.

    Ask for the right: docs/how-to/log-operations.md#serve-a-log.
    """

    def __init__(self, message: str = "", denied: Denied | None = None) -> None:
        super().__init__(message)
        self.denied = denied
