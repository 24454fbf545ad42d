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
    """The URL names no store of rifl's, or its extra is not installed.

    Correct the URL: docs/reference/stores.md.
    """


class MissingExtra(UnsupportedStore):
    """The URL, or a file's format, needs an extra that is not installed.

    Install the extra that the message names.
    """


class StoreCorrupt(StoreError):
    """The store is damaged, is no store of rifl's, or has stopped after a loss.

    Restore a backup; after a loss: docs/how-to/operations.md#after-a-loss.
    """


class StoreLocked(StoreError):
    """Another process, named in the message, owns the store.

    End that process.
    """


class StoreLost(StoreError):
    """The store lacks what it acknowledged: it is an older copy, or a part.

    Answered calls would run again. The message says what is missing, and what an operator must do.

    Bring the rest back, or declare the restore: docs/how-to/operations.md#after-a-restore.
    """


class StoreSchemaTooNew(StoreError):
    """A newer release wrote the store.

    Run that release.
    """


class StoreNotDurable(StoreError):
    """The store's settings allow it to lose what it acknowledged.

    Correct the settings that the message names.
    """


class StoreUnreachable(StoreError):
    """The store cannot be read or written at all.

    Bring it back; look at the URL, the rights and the network.
    """


class WrongDatabase(StoreError):
    """The handler gave ``rifl.record`` a transaction that is not the method's.

    Raised inside the handler, whose effects then roll back.

    Use the method's database: docs/reference/transactions.md.
    """


class TransactionEnded(WrongDatabase):
    """The handler ended the transaction of its ``rifl.transaction``; the message says how.

    Raised at the block's end, which rolls back uncommitted writes. If something may have been
    committed without the call's record, the call's outcome stays unknown.

    Neither commit nor roll back in the handler, or in the repositories that it calls.
    """
