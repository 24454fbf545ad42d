"""Statements to one log in PostgreSQL, and what their failures mean."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import psycopg

from _rifl_ground.postgres.address import Pooler, PostgresAddress
from _rifl_ground.postgres.connections import Greeting, Pools, connect_as_ours
from _rifl_ground.postgres.poolers import check_pooler, is_pooled
from _rifl_ground.postgres.sessions import Sessions
from _rifl_ground.postgres.settings import SYNCED, check_durability, settings_with, weaknesses
from _rifl_ground.servers import Durability, told
from sharedlog._engines.checksums import damaged_key
from sharedlog._engines.owner import Owner, refused
from sharedlog._engines.postgres.schema import tables

Arguments: TypeAlias = Sequence[Any] | Mapping[str, Any]

# Gives the incarnation of a log: one that is there, or that it makes.
Begin: TypeAlias = Callable[[psycopg.Connection[Any]], str]
_OLDEST = 140000
# A wait for the standby that was cut short: "01000" by a cancel, "57P01" by a shutdown.
_CUT_SHORT = ("01000", "57P01")
_CALL = "SELECT * FROM {}.{}(%t, %t::int8, {})"
# Arguments that may be large go in binary, where an empty list has no type of its own.
_PLACES = {"bytea": "%b::bytea", "bodies": "%b::bytea[]"}
_MISSING = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.DataCorrupted,
    psycopg.errors.IndexCorrupted,
    # Of two entries with one LSN: they are numbered under the lock of the log's row.
    psycopg.errors.UniqueViolation,
)


class PostgresConnection:
    """One process's way to a log in PostgreSQL. Any thread.

    Invariants:

    1. Every statement names the log's incarnation and, where it writes, the highest tail
       that was seen here: a database that was restored, emptied, or promoted without what
       was acknowledged is ``corrupt``.
    2. No write counts whose commit did not wait for what the settings promise: weak
       settings are refused in the statement that would write, and a wait for a standby that
       was cut short is ``unavailable``.
    3. A server's history that does not go on from the one the log was written on stops the
       log for everyone, until an operator accepts the loss; here for good.
    """

    def __init__(
        self,
        address: PostgresAddress,
        owner: Owner,
        begin: Begin,
        *,
        read_only: bool = False,
    ) -> None:
        self.owner = owner
        self.closing = threading.Event()
        self.address = address
        self.schema = address.schema
        self.incarnation = ""
        # As the newest connection found it.
        self.durability = ""
        # A tool looks at a log that has stopped, too.
        self._read_only = read_only
        self._warn = address.durability is Durability.WARN
        self._stopped = ""
        self._seen = 0
        # Whether a standby had the last write of this process; None before the first.
        self._copied: bool | None = None
        self._history = ""
        self._moved = False
        with self._errors():
            pools = self.pools = Pools(address)
        self.sessions = Sessions(pools, address)
        try:
            with self._errors(), connect_as_ours(address) as connection:
                self._check(connection)
                self.incarnation = begin(connection)
                if not read_only:
                    self._continue(connection)
            # From now on, every connection is looked at before it is used.
            pools.greeting = Greeting(
                f"SELECT pg_backend_pid(), {self.schema}.history_1(), "
                f"{self.schema}.copied_1(), {settings_with(tables(self.schema))}, "
                "current_setting('synchronous_commit')".encode(),
                tuple,
                self._greeted,
            )
            with self._errors():
                self._rows("SELECT", ())
        except BaseException:
            self.sessions.close()
            raise

    def read(self, statement: str, arguments: Arguments) -> list[Any]:
        """Carry out a statement that writes nothing; its rows. Asked twice if need be."""
        with self._errors():
            self._follow_history()
            try:
                return self._rows(statement, arguments)
            except (psycopg.OperationalError, psycopg.InterfaceError):
                # The server may have restarted since the session was made.
                return self._rows(statement, arguments)

    def call_all(self, function: str, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        """Call one of our functions that write, in one transaction and round trip; the rows.

        Each call has types and arguments, those after incarnation and tail. Raises a ``LogError``.
        """
        with self._errors():
            self._follow_history()
            for again in (True, False):
                try:
                    return self._write(
                        [
                            (
                                self._statement(function, types),
                                (self.incarnation, self._seen, *each),
                            )
                            for types, each in calls
                        ]
                    )
                except psycopg.Error as error:
                    if error.sqlstate != "CURP1":
                        raise
                    facts = json.loads(error.diag.message_detail or "{}")
                    if facts["why"] != "history" or not again:
                        raise self.meaning(facts) from None
                # A session that outlived a promotion: its next answer may differ.
                self._moved = True
                self._follow_history()
            raise self._history_unknown()

    @property
    def warns(self) -> bool:
        """Whether a server that may forget is taken all the same."""
        return self._warn

    @property
    def history(self) -> str:
        """The server, and which of its histories this process writes on; empty if it is hidden."""
        return self._history

    def check_usable(self) -> None:
        """Raise what this handle raises where it may not be used any more."""
        with self._errors():
            pass

    def meaning(self, facts: dict[str, Any]) -> Exception:
        """Return what a refusal of one of our functions is raised as."""
        why = facts["why"]
        if why == "other":
            return self._lost()
        if why == "stopped":
            return self.owner.corrupt(self._told(facts["text"]))
        if why == "back":
            return self.owner.corrupt(
                f"the log went back: it ends at {facts['tail']}, not {self._seen}"
            )
        if why == "damaged":
            return damaged_key(facts["text"])
        if why == "weak":
            # Until that is mended: what runs waits, visibly.
            return self.owner.unavailable(
                f"{self.address} may forget what it acknowledges: {facts['text']}"
            )
        return self._history_unknown()

    @property
    def seen(self) -> int:
        """The highest tail that this server told of."""
        return self._seen

    def saw(self, tail: int, *, copied: bool | None = None) -> None:
        """Note a tail that this server told of, and whether a standby has it."""
        self._seen = max(self._seen, tail)
        if copied is not None:
            self._copied = copied

    def check_head(self, incarnation: str | None, tail: int, stopped: str, seen: int) -> None:
        """Judge the log's row as it was read (invariant 1); ``seen`` before that was asked."""
        if incarnation is None:
            raise self._lost()
        if stopped and not self._read_only:
            raise self.owner.corrupt(self._told(stopped))
        if tail < seen:
            raise self.owner.corrupt(f"the log went back: it is at {tail}, and {seen} was seen")
        self.saw(tail)

    def close(self) -> None:
        """Close the connections; idempotent."""
        self.closing.set()
        self.sessions.close()

    def _rows(self, statement: str, arguments: Arguments) -> list[Any]:
        def read(session: psycopg.Connection[Any]) -> list[Any]:
            return session.execute(statement.encode(), arguments, binary=True).fetchall()

        return self.sessions.use(read)

    def _statement(self, function: str, types: str) -> bytes:
        given = ", ".join(_PLACES.get(each, f"%t::{each}") for each in types.split())
        return _CALL.format(self.schema, function, given).encode()

    def _write(self, calls: Sequence[tuple[bytes, Sequence[Any]]]) -> list[Any]:
        notices: list[str | None] = []

        def note(diagnostic: psycopg.errors.Diagnostic) -> None:
            notices.append(diagnostic.sqlstate)

        def write(session: psycopg.Connection[Any]) -> list[Any]:
            session.add_notice_handler(note)
            try:
                if len(calls) == 1:
                    return [session.execute(*calls[0], binary=True).fetchone()]
                with session.pipeline(), session.transaction():
                    asked = [session.execute(*each, binary=True) for each in calls]
                    return [each.fetchone() for each in asked]
            finally:
                session.remove_notice_handler(note)

        found = self.sessions.use(write)
        if not self._warn and any(state in _CUT_SHORT for state in notices):
            raise self.owner.unavailable(f"{self.address}: the wait for a standby was cut short")
        return [list(row or ()) for row in found]

    def _lost(self) -> Exception:
        return self.owner.corrupt(
            f"{self.address} has lost the log, or has another one in its place"
        )

    def _history_unknown(self) -> Exception:
        return self.owner.unavailable(f"{self.address} does not tell its history")

    # What server this is.

    def _check(self, connection: psycopg.Connection[Any]) -> None:
        if not self._warn:
            # As all later sessions have it.
            connection.execute(SYNCED.format("false").encode())
        check_pooler(connection, self.address, self.owner.invalid)
        for setting, cost in check_durability(
            connection, self.address, tables(self.schema), self.owner.not_durable
        ):
            self.owner.events.warning(
                "log_not_durable", log=str(self.address), setting=setting, cost=cost
            )
        check_server(connection, self.address, self.owner)

    def _continue(self, connection: psycopg.Connection[Any]) -> None:
        """See that the log's history goes on; raises ``CorruptLog`` if it does not."""
        row = connection.execute(
            f"SELECT {self.schema}.continue_1(%s, %s, %s), {self.schema}.history_1()".encode(),
            (self.incarnation, self._copied, self._warn),
        ).fetchone()
        why, history = row or ("", "")
        if why and not self._warn:
            self._stop(why)
            raise self.owner.corrupt(self._stopped)
        if why:
            self.owner.events.critical("log_may_have_lost", log=str(self.address), reason=why)
        elif self._history and history != self._history:
            self.owner.events.warning(
                "log_failed_over", log=str(self.address), was=self._history, now=history
            )
        self._history = history

    def _follow_history(self) -> None:
        if self._moved:
            self.sessions.use(self._continue)
            self._moved = False

    def _greeted(self, connection: Any, rows: list[Any]) -> None:
        pid, history, copied, settings, synchronous = rows[0]
        if self.address.pooler is Pooler.NONE and is_pooled(connection, pid):
            self._stop("a pooler stands between by now, which may be in transaction mode")
        if history and self._history and history != self._history:
            # Judged before the next statement, by what the log says of itself.
            self._moved = True
        kept = (
            told(weaknesses(settings))
            or "an append is on the server's disk before it is acknowledged"
        )
        more = (
            "and a synchronous standby has it"
            if copied
            else "standbys get it later, and a failover to one that has not yet loses it: that "
            "stops the log until an operator accepts it"
        )
        waits = f"synchronous_commit={synchronous}"
        self.durability = f"PostgreSQL, {waits}: {kept}; {more}"

    def _not_permitted(self, error: Exception) -> Exception:
        # The statement was refused as a whole.
        return refused(
            self.owner.unavailable(
                f"{self.address}: the role may not do what a log does: {_line(error)}; "
                "have an administrator grant it"
            )
        )

    def _stop(self, why: str) -> None:
        if not self._stopped:
            self._stopped = self._told(why)
            self.owner.events.critical("log_stopped", log=str(self.address), reason=why)

    def _told(self, why: str) -> str:
        return told_lost(self.address, why, self.owner)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        if self.closing.is_set():
            raise self.owner.stopped("the log engine is closed")
        if self._stopped:
            raise self.owner.corrupt(self._stopped)
        try:
            yield
        except _MISSING as error:
            raise self.owner.corrupt(
                f"{self.address}: the log is lost or damaged: {_line(error)}"
            ) from error
        except psycopg.errors.DiskFull as error:
            raise self.owner.full(
                f"{self.address}: there is no room on the server's disk: {_line(error)}"
            ) from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise self._not_permitted(error) from error
        except (psycopg.Error, OSError) as error:
            if self.closing.is_set():
                raise self.owner.stopped("the log engine was closed") from error
            if self._stopped:
                raise self.owner.corrupt(self._stopped) from error
            raise self.owner.unavailable(f"{self.address}: {_line(error)}") from error


def told_lost(address: PostgresAddress, why: str, owner: Owner) -> str:
    """Return what is said of a log that stopped since it may have lost something."""
    return (
        f"{address} may have lost entries that it had acknowledged: {why}. Once that is "
        f"settled: {owner.remedy}"
    )


def check_server(
    connection: psycopg.Connection[Any], address: PostgresAddress, owner: Owner
) -> None:
    """Raise ``unavailable`` for a server that is too old, or cannot be written."""
    if connection.info.server_version < _OLDEST:
        raise owner.unavailable(f"{address}: PostgreSQL 14 or newer is needed")
    row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
    if row is None or row[0]:
        raise owner.unavailable(
            f"{address} is a standby, which cannot be written (target_session_attrs="
            "read-write finds the primary among several hosts)"
        )


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"
