"""Errors of a store that cannot be opened (DESIGN §6). Raised at start, never for a call."""

from __future__ import annotations

__all__ = [
    "MissingExtra",
    "StoreCorrupt",
    "StoreError",
    "StoreLocked",
    "StoreLost",
    "StoreNotDurable",
    "StoreSchemaTooNew",
    "StoreUnreachable",
    "TransactionEnded",
    "UnsupportedStore",
    "WrongDatabase",
]


class StoreError(Exception):
    """The root of the errors below; they all pickle."""


class UnsupportedStore(StoreError, ValueError):
    """The URL names no store of rifl's, or its extra is not installed."""


class MissingExtra(UnsupportedStore):
    """The URL, or a file's format, needs an extra that is not installed."""


class StoreCorrupt(StoreError):
    """The file is damaged, truncated, or no rifl database."""


class StoreLocked(StoreError):
    """Another process, named in the message, owns the store."""


class StoreLost(StoreError):
    """The store lacks what it acknowledged: it is an older copy, or a part.

    Answered calls would run again. The message says what is missing, and what an operator
    must do.
    """


class StoreSchemaTooNew(StoreError):
    """A newer release wrote the store."""


class StoreNotDurable(StoreError):
    """The store's settings allow it to forget what it acknowledged."""


class StoreUnreachable(StoreError):
    """The store cannot be read or written at all."""


class WrongDatabase(StoreError):
    """``rifl.record`` was given a transaction it must not record into.

    Raised inside the handler, whose effects then roll back.
    """


class TransactionEnded(WrongDatabase):
    """The handler ended the transaction of its ``rifl.transaction``; the message says how.

    Raised at the block's end, which rolls back uncommitted writes. If something may have been
    committed without the call's record, the call's outcome stays unknown. The handler, and the
    repositories that it calls, must neither commit nor roll back.
    """
