"""Riders: what other libraries do as the last of a ``rifl.transaction``, before its commit."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import psycopg

from _rifl_ground.postgres.owned import TransactionMark


class Rider(Protocol):
    """A statement behind the completion record, in one message with the commit over psycopg.

    For what must be locked last, and not for long.
    """

    @property
    def statement(self) -> str:
        """SQL without parameters, in ASCII; an error of it rolls the transaction back."""

    def meaning(self, error: psycopg.Error) -> Exception | None:
        """Return what an error at the transaction's end is raised as; None: it is not of this."""


class Begun(NamedTuple):
    """A ``rifl.transaction`` of a call, not yet at its end: its mark, and what rides with it."""

    mark: TransactionMark | None
    riders: list[Rider]


# By the driver's connection.
_begun: weakref.WeakKeyDictionary[Any, Begun] = weakref.WeakKeyDictionary()


def takes_riders(connection: Any) -> bool:
    """Whether a driver's connection is in a ``rifl.transaction`` of a call, not yet at its end."""
    return connection in _begun


def ride(connection: Any, rider: Rider) -> None:
    """Have a statement travel with the commit."""
    _begun[connection].riders.append(rider)


def begins(connection: Any, begun: Begun) -> None:
    """Note that a transaction began, or goes on."""
    _begun[connection] = begun


def begun_on(connection: Any) -> Begun:
    """Return what was begun on a driver's connection."""
    return _begun.get(connection) or Begun(None, [])


def ends(connection: Any) -> Begun:
    """Return what was begun, which takes no more riders; idempotent."""
    return _begun.pop(connection, None) or Begun(None, [])


def last_statements(riders: Sequence[Rider]) -> str:
    """Return what is carried out between the record and the commit.

    Deferred constraints are checked by then (``TransactionMark.check``): what rides locks what
    many need.
    """
    return "; ".join(each.statement for each in riders)


def meaning_of(error: psycopg.Error, riders: Sequence[Rider]) -> Exception | None:
    """Return what an error means to who rides, if it is theirs."""
    return next((found for each in riders if (found := each.meaning(error)) is not None), None)
