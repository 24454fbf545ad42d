"""The errors of a group's log: those of the shared log, and its own."""

from __future__ import annotations

from typing import Any

from sharedlog._core.errors import (
    CorruptLog,
    InvalidRequest,
    LogError,
    LogExists,
    LogFull,
    LogStopped,
    LogUnavailable,
    NewerFormat,
    NoSuchLog,
    NotDurable,
    TrimmedLog,
)

__all__ = [
    "ConditionFailed",
    "CorruptLog",
    "InvalidRequest",
    "LeadershipOver",
    "LeaseHeld",
    "LogError",
    "LogExists",
    "LogFull",
    "LogMoved",
    "LogStopped",
    "LogUnavailable",
    "NewerFormat",
    "NoSuchLog",
    "NotDurable",
    "TailMismatch",
    "TrimmedLog",
    "UnfinishedCopy",
    "log_exists",
    "may_pass",
    "no_such_log",
    "other_entry",
]


class LeadershipOver(LogError):
    """The configuration number is not the current one, and never will be. Nothing was written."""


class TailMismatch(LogError):
    """The log does not end where the writer expects, but at ``tail``. Nothing was written."""

    def __init__(self, message: str, tail: int) -> None:
        super().__init__(message)
        self.tail = tail

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.tail)


class LeaseHeld(LogError):
    """Another replica's lease runs for ``remaining_s`` seconds. Nothing was written."""

    def __init__(self, message: str, remaining_s: float) -> None:
        super().__init__(message)
        self.remaining_s = remaining_s

    @classmethod
    def by(cls, replica: str, remaining_s: float) -> LeaseHeld:
        """Return the error for the lease of that replica."""
        return cls(f"{replica} leads for {remaining_s:.3f} s more", remaining_s)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.remaining_s)


class ConditionFailed(LogError):
    """A metadata key does not hold what the writer expects. Nothing was written."""


class LogMoved(LogError):
    """The log was moved to another engine; no replica can serve from this one any more."""


class UnfinishedCopy(LogError):
    """The log is an incomplete copy of another one, and no replica can serve from it."""


def other_entry(lsn: int) -> CorruptLog:
    """Return the error for an entry that is not the one which was read before."""
    return CorruptLog(f"the log's entry {lsn} is not the one that was there before")


def no_such_log(where: str, group: str) -> NoSuchLog:
    """Return the error for a group without a log, that says what to do.

    Only ``curp init`` creates one: a lost one does not start over.
    """
    return NoSuchLog(
        f"there is no log of the group {group!r} in {where}. If there was one, it is lost or "
        "this is another place: restore it, or look there. To begin a new group, create its "
        "log first, once: curp init --log URL"
    )


def log_exists(where: str, group: str) -> LogExists:
    """Return the error for a place that has a log already."""
    return LogExists(f"{where} has a log of the group {group!r} already")


def may_pass(error: Exception) -> bool:
    """Return whether a retry may succeed, since the store does not answer now.

    Any other error is an answer: a retry would get the same.
    """
    return isinstance(error, LogUnavailable) and not isinstance(error, LogStopped)
