"""The errors of log engines: what they refuse, and why."""

from __future__ import annotations

from typing import Any

__all__ = [
    "ConditionFailed",
    "CorruptLog",
    "Deposed",
    "EngineFull",
    "EngineStopped",
    "EngineUnavailable",
    "InvalidRequest",
    "LeaseHeld",
    "LogError",
    "LogExists",
    "LogMoved",
    "NoSuchLog",
    "NotDurable",
    "TailMismatch",
    "TrimmedLog",
    "UnfinishedCopy",
    "may_pass",
]


class LogError(Exception):
    """The tree of log errors. All pickle; all but EngineUnavailable's branch wrote nothing.

    ::

        LogError
        ├── Deposed             the configuration number is not the current one
        ├── TailMismatch        the tail is not where the writer expects it
        ├── LeaseHeld           another replica's lease runs
        ├── ConditionFailed     a metadata key holds something else
        ├── TrimmedLog          the entries asked for are no longer there
        ├── CorruptLog          a gap, a torn or damaged entry, a tail that went back,
        │                       a newer format
        ├── InvalidRequest      what can never be done: the caller's bug
        ├── NoSuchLog           there is none: never created, or lost
        ├── LogExists           there is one where a new one was to be created
        ├── LogMoved            curp log copy has moved it to another engine
        ├── UnfinishedCopy      a copy of another log, which broke off
        ├── NotDurable          the store's settings may lose what it acknowledges
        └── EngineUnavailable   cannot be asked now; a write may have happened
            ├── EngineFull      the store has no room, and takes no writes until it has
            └── EngineStopped   and never again through this handle
    """


class Deposed(LogError):
    """The configuration number is not the current one: never will be again."""


class TailMismatch(LogError):
    """The tail is not where the writer expects it, but at ``tail``."""

    def __init__(self, message: str, tail: int) -> None:
        super().__init__(message)
        self.tail = tail

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.tail)


class LeaseHeld(LogError):
    """Another replica's lease runs for ``remaining_s`` seconds."""

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
    """A metadata key does not hold what the writer expects."""


class TrimmedLog(LogError):
    """The entries asked for were trimmed; the oldest there is ``first``."""

    def __init__(self, message: str, first: int) -> None:
        super().__init__(message)
        self.first = first

    @classmethod
    def with_snapshot(cls, lsn: int, first: int) -> TrimmedLog:
        """Return the error for the chunks of a snapshot that is not the newest any more."""
        return cls(f"a newer snapshot took the place of the one at {lsn}", first)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.first)


class CorruptLog(LogError):
    """The log cannot be read as it is, or is not the log that was read before."""

    @classmethod
    def without(cls, lsn: int) -> CorruptLog:
        """Return the error for an entry that is missing."""
        return cls(f"entry {lsn} is missing")

    @classmethod
    def with_another(cls, lsn: int) -> CorruptLog:
        """Return the error for an entry that is not the one which was read before."""
        return cls(f"the log's entry {lsn} is not the one that was there before")


class InvalidRequest(LogError, ValueError):
    """What was asked can never be done: empty, over a bound, or in the wrong order."""


class NoSuchLog(LogError):
    """There is no such log, and only ``curp init`` creates one: a lost one does not start over."""

    @classmethod
    def of(cls, where: str, group: str) -> NoSuchLog:
        """Return the error for a group, that says what to do."""
        return cls(
            f"there is no log of the group {group!r} in {where}. If there was one, it is lost or "
            "this is another place: restore it, or look there. To begin a new group, create its "
            "log first, once: curp init --log URL"
        )


class LogExists(LogError):
    """There is a log where a new one was to be created; nothing was changed."""

    @classmethod
    def of(cls, where: str, group: str) -> LogExists:
        """Return the error for a group."""
        return cls(f"{where} has a log of the group {group!r} already")


class LogMoved(LogError):
    """The log was moved to another engine, and is not served from here any more."""


class UnfinishedCopy(LogError):
    """The copy of another log, which may lack anything."""


class NotDurable(LogError):
    """The store's settings allow it to forget what it acknowledged. Raised when opening."""


class EngineUnavailable(LogError):
    """The engine cannot be asked now. A write that was under way may have happened."""


class EngineFull(EngineUnavailable):
    """The store has no room left: an operator makes some. Says what is to be done."""


class EngineStopped(EngineUnavailable):
    """This handle will not be used again: closed, or nobody knows what is on its disk."""


def may_pass(error: Exception) -> bool:
    """Whether the same may succeed when it is asked again: the engine cannot be asked now.

    Anything else is an answer: asked again, it would be the same.
    """
    return isinstance(error, EngineUnavailable) and not isinstance(error, EngineStopped)
