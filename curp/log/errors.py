"""What a log engine refuses, and why."""

from __future__ import annotations

__all__ = [
    "ConditionFailed",
    "CorruptLog",
    "Deposed",
    "EngineUnavailable",
    "LeaseHeld",
    "LogError",
    "TailMismatch",
    "TrimmedLog",
]


class LogError(Exception):
    """The tree of log errors. All survive pickling; all but one say that nothing was written.

    LogError
    ├── Deposed             the configuration number is not the current one
    ├── TailMismatch        the tail is not where the writer expects it
    ├── LeaseHeld           another replica's lease runs
    ├── ConditionFailed     a metadata key holds something else
    ├── TrimmedLog          the entries asked for are no longer there
    ├── CorruptLog          a gap, a torn or damaged entry, or a newer format
    └── EngineUnavailable   cannot be asked now; a write may have happened
    """


class Deposed(LogError):
    """The configuration number is not the current one: never will be again."""


class TailMismatch(LogError):
    """The tail is not where the writer expects it."""

    def __init__(self, message: str, tail: int) -> None:
        super().__init__(message, tail)
        self.tail = tail


class LeaseHeld(LogError):
    """Another replica's lease runs for ``remaining_s`` seconds."""

    def __init__(self, message: str, remaining_s: float) -> None:
        super().__init__(message, remaining_s)
        self.remaining_s = remaining_s


class ConditionFailed(LogError):
    """A metadata key does not hold what the writer expects."""


class TrimmedLog(LogError):
    """The entries asked for were trimmed; the oldest there is ``first``."""

    def __init__(self, message: str, first: int) -> None:
        super().__init__(message, first)
        self.first = first


class CorruptLog(LogError):
    """The log cannot be read as it is: a gap, a damaged entry, a newer format."""


class EngineUnavailable(LogError):
    """The engine cannot be asked now. A write that was under way may have happened."""
