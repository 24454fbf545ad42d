"""Why a witness does not start."""

from __future__ import annotations

__all__ = ["CorruptJournal", "JournalError", "JournalHeld"]


class JournalError(Exception):
    """The tree of journal errors: ``CorruptJournal`` and ``JournalHeld``."""


class CorruptJournal(JournalError):
    """The journal is damaged: the highest configuration number may be lost.

    Nothing but that number is in it, so a new directory and a new listing under the
    next number are the whole repair.
    """


class JournalHeld(JournalError):
    """Another process has the data directory."""
