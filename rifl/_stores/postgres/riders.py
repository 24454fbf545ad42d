"""Riders: what other libraries do as the last of a ``rifl.transaction``, before its commit."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import psycopg

from rifl._stores.drivers import driver_connection, driver_connection_async, holder

# Checked before: what rides locks what many need, and the commit is to follow at once.
_CHECKED = "SET CONSTRAINTS ALL IMMEDIATE"


class Rider(Protocol):
    """A statement behind the completion record, in one message with the commit over psycopg.

    For what must be locked last, and not for long.
    """

    @property
    def statement(self) -> str:
        """SQL without parameters, in ASCII; an error of it rolls the transaction back."""

    def meaning(self, error: psycopg.Error) -> Exception | None:
        """Return what an error at the transaction's end is raised as; None: it is not of this."""


# Drivers' connections in a ``rifl.transaction`` of a call, and what rides with its commit.
_riders: weakref.WeakKeyDictionary[Any, list[Rider]] = weakref.WeakKeyDictionary()


def takes_riders(connection: Any) -> bool:
    """Whether a driver's connection is in a ``rifl.transaction`` of a call, not yet at its end."""
    return connection in _riders


def ride(connection: Any, rider: Rider) -> None:
    """Have a statement travel with the commit."""
    _riders[connection].append(rider)


def begins(connection: Any) -> None:
    """Note that a transaction began."""
    _riders[connection] = []


def ends(connection: Any) -> list[Rider]:
    """Return what rides with the transaction, which takes no more; idempotent."""
    return _riders.pop(connection, [])


def last_statements(riders: Sequence[Rider]) -> str:
    """Return what is carried out between the record and the commit."""
    return "; ".join((_CHECKED, *(each.statement for each in riders)))


def meaning_of(error: psycopg.Error, riders: Sequence[Rider]) -> Exception | None:
    """Return what an error means to who rides, if it is theirs."""
    return next((found for each in riders if (found := each.meaning(error)) is not None), None)


# Transactions that SQLAlchemy commits, which are sent what rides by themselves: its sessions and
# connections, each with the driver's.
_others: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def begin_others(transaction: Any) -> None:
    """Note the beginning of a transaction of SQLAlchemy's, over psycopg."""
    _begin(transaction, driver_connection(transaction))


async def begin_others_async(transaction: Any) -> None:
    """The same for its asynchronous ones."""
    _begin(transaction, await driver_connection_async(transaction))


def _begin(transaction: Any, connection: Any) -> None:
    if isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
        _others[holder(transaction)] = connection
        begins(connection)


def end_others(transaction: Any) -> tuple[Any, list[Rider]]:
    """Return the driver's connection and what rides, which is let go of; idempotent."""
    connection = _others.pop(holder(transaction), None)
    return connection, [] if connection is None else ends(connection)


def send_riders(transaction: Any) -> None:
    """Carry out what rides, before the commit."""
    connection, riders = end_others(transaction)
    if riders:
        try:
            connection.execute(last_statements(riders).encode())
        except psycopg.Error as error:
            raise meaning_of(error, riders) or error from error


async def send_riders_async(transaction: Any) -> None:
    """The same for asynchronous ones."""
    connection, riders = end_others(transaction)
    if riders:
        try:
            if inspect.isawaitable(done := connection.execute(last_statements(riders).encode())):
                await done
        except psycopg.Error as error:
            raise meaning_of(error, riders) or error from error
