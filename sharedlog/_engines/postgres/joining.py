"""Appends in transactions of the application's, in the database that holds the log."""

from __future__ import annotations

import json
import secrets
import time
import zlib
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import tuple_row

from _rifl_ground.drivers import unwrapped, unwrapped_aio
from _rifl_ground.postgres.riders import ride, takes_riders
from sharedlog._core.commit import LSN_BYTES, Condition
from sharedlog._core.errors import LogError, LogFull, LogUnavailable, WrongTransaction
from sharedlog._core.fences import check_fence, condition_of
from sharedlog._core.incarnation import condition_of_incarnation, forked
from sharedlog._core.named import named_key
from sharedlog._core.within import NAME, Within, bodies_of
from sharedlog._engines.checksums import crc_of_name, expected, values_of
from sharedlog._engines.postgres.applications import check_begun, literal
from sharedlog._engines.postgres.connection import PostgresConnection
from sharedlog._engines.turns import Turns

# For how long the client of a transaction that has the log's row may say nothing.
HANG_MS = 5000
# Of what is kept under the name of these appends, without its checksum: seq, content, LSN.
_KEPT_BYTES = 8 + 16 + LSN_BYTES
_CHECKED = "SET CONSTRAINTS ALL IMMEDIATE"
_REFUSED = "CURP1"
_WHY = {
    "isolation": "at this isolation level the log cannot be judged: READ COMMITTED is wanted",
    "read only": "the transaction is read-only",
    "other": "the log is not in the database of this connection: sharedlog.outbox is for a log "
    "that lives elsewhere",
}
_NOT_HERE = ("42883", "3F000", "42P01", "42501")
_FAILED = ("25P02", "25006")
_DISK_FULL = "53100"
_Any = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]


class ServerTransactions:
    """Appends on connections of the application's.

    The log's row is locked by each until its transaction ends. In a ``rifl.transaction`` of a
    call the append travels with the commit, behind the call's record. Else the server ends a
    session whose client says nothing for ``HANG_MS`` meanwhile.
    """

    def __init__(self, log: PostgresConnection, channel: str) -> None:
        self._log = log
        self._channel = channel
        # Before psycopg's own lock, which does not know its owner.
        self._turns = Turns()

    def append(self, given: Any, within: Within) -> None:
        """Append in the transaction of a psycopg connection, or SQLAlchemy's over one."""
        connection = unwrapped(given)
        with self._turns.of(connection):
            self._use(connection, within)

    def _use(self, connection: Any, within: Within) -> None:
        self._check(connection, psycopg.Connection)
        riding = takes_riders(connection)
        append = self._append(within, secrets.token_hex(8) if riding else "")
        try:
            with connection.cursor(row_factory=tuple_row) as cursor:
                if riding:
                    self._joined(cursor.execute(append.joining).fetchone())
                else:
                    cursor.execute(f"{_CHECKED}; {append.statement}")
        except psycopg.Error as error:
            raise append.refusal(error) or error from error
        if riding:
            ride(connection, append)

    async def append_aio(self, given: Any, within: Within) -> None:
        """The same for an asynchronous one, or a blocking one."""
        connection = await unwrapped_aio(given)
        if not isinstance(connection, psycopg.AsyncConnection):
            self.append(connection, within)
            return
        self._check(connection, psycopg.AsyncConnection)
        riding = takes_riders(connection)
        append = self._append(within, secrets.token_hex(8) if riding else "")
        try:
            async with connection.cursor(row_factory=tuple_row) as cursor:
                if riding:
                    await cursor.execute(append.joining)
                    self._joined(await cursor.fetchone())
                else:
                    await cursor.execute(f"{_CHECKED}; {append.statement}".encode())
        except psycopg.Error as error:
            raise append.refusal(error) or error from error
        if riding:
            ride(connection, append)

    def _append(self, within: Within, name: str) -> _Append:
        log = self._log
        log.check_usable()
        return _Append(log, within, name, self._channel)

    def _check(self, connection: Any, kind: type[_Any]) -> None:
        if not isinstance(connection, kind):
            raise WrongTransaction(
                "a psycopg connection, or SQLAlchemy's over one, is wanted, not a "
                f"{type(connection).__qualname__}: asynchronous ones need sharedlog.aio"
            )
        check_begun(connection)

    def _joined(self, row: Any) -> None:
        why = row[0] if row else "other"
        if why:
            raise WrongTransaction(_WHY[why])


class _Append(NamedTuple):
    """One append, as SQL without parameters, and what its errors mean."""

    log: PostgresConnection
    within: Within
    # What the end of the transaction knows it by; empty: it is done at once.
    name: str
    channel: str

    @property
    def joining(self) -> bytes:
        """What is sent now, where the append travels with the commit."""
        log = self.log
        called = _called(log.incarnation, log.history, self.name)
        return f"SELECT {log.schema}.join_1({called})".encode()

    @property
    def statement(self) -> str:
        """The append."""
        log, within = self.log, self.within
        messages = within.messages
        conditions = self.conditions
        bodies = bodies_of(messages, 0)
        tags = [[tag.encode() for tag in each.tags] for each in messages]
        joined = [b"\n".join(each) for each in tags]
        tagged = [(tag, n) for n, each in enumerate(tags, 1) for tag in dict.fromkeys(each)]
        called = _called(
            log.incarnation,
            log.history,
            log.seen,
            self.name,
            0 if self.name else HANG_MS,
            [each.key.encode() for each in conditions],
            [expected(*each) or b"" for each in conditions],
            named_key(NAME).encode(),
            crc_of_name(named_key(NAME), _KEPT_BYTES),
            within.content,
            time.time_ns() // 1000,
            joined,
            [zlib.crc32(body, zlib.crc32(text)) for body, text in zip(bodies, joined, strict=True)],
            bodies,
            [tag for tag, _ in tagged],
            [n for _, n in tagged],
            self.channel,
        )
        return f"SELECT {log.schema}.append_in_1({called})"

    @property
    def conditions(self) -> list[Condition]:
        """What has to hold when it is carried out."""
        found = [condition_of_incarnation(self.within.incarnation)]
        if self.within.fence is not None:
            found.append(condition_of(self.within.fence))
        return found

    def meaning(self, error: psycopg.Error) -> Exception | None:
        """Return what refused it, where the append itself did."""
        if error.sqlstate != _REFUSED:
            return None
        facts = json.loads(error.diag.message_detail or "{}")
        if facts["why"] in _WHY:
            return WrongTransaction(_WHY[facts["why"]])
        if facts["why"] == "found":
            return self._changed(facts["text"].split(","))
        found = self.log.meaning(facts)
        if isinstance(found, LogUnavailable):
            found.appended = False
        return found

    def refusal(self, error: psycopg.Error) -> Exception | None:
        """Return what an error of a statement in the transaction means, but for the driver's."""
        if (found := self.meaning(error)) is not None:
            return found
        if error.sqlstate in _NOT_HERE:
            return WrongTransaction(
                f"{_WHY['other']} (or its role may not write it: {_line(error)})"
            )
        if error.sqlstate in _FAILED:
            return WrongTransaction(_line(error))
        if isinstance(error, psycopg.OperationalError):
            kind = LogFull if error.sqlstate == _DISK_FULL else LogUnavailable
            unavailable = kind(_line(error))
            unavailable.appended = False
            return unavailable
        # Of the application's own constraints, which are checked before.
        return None

    def _changed(self, held: list[str]) -> LogError:
        """Return which of the conditions refused it, by what their keys hold."""
        values = [None if each == "-" else bytes.fromhex(each) for each in held]
        asked = [each.key for each in self.conditions]
        try:
            found = values_of(dict(zip(asked, values, strict=True)))
            if self.within.fence is not None:
                check_fence(self.within.fence, found[asked[1]])
        except LogError as error:
            return error
        return forked((found[asked[0]] or b"none").decode(), self.within.incarnation)


def _called(*arguments: Any) -> str:
    return ", ".join(map(literal, arguments))


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"
