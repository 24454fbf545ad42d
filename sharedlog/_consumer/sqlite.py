"""A consumer's store in a SQLite file, which is the user's database."""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn, Self

from _rifl_ground.counting import Counts, by_sqlite, is_noted, noted
from _rifl_ground.loans import Loan
from _rifl_ground.sqlite import mark
from _rifl_ground.sqlite.failures import Replaced, Stopped
from _rifl_ground.sqlite.guard import FileGuard
from _rifl_ground.sqlite.lent import LentSqliteConnection
from _rifl_ground.sqlite.opening import Connection, connect
from _rifl_ground.sqlite.owned import Owned, is_legacy
from sharedlog._consumer.call_rows import CALLS, CallRows
from sharedlog._consumer.configuring import Configure, configure_by, refuse_settings
from sharedlog._consumer.joined_append import Together
from sharedlog._consumer.lending import handler_ended
from sharedlog._consumer.savepoints import sql_savepoint
from sharedlog._consumer.sqlalchemy import Alchemy
from sharedlog._consumer.tables import SQLITE, TABLE, Execute, Table
from sharedlog._core.consumer.asked import Failed, Unit
from sharedlog._core.consumer.calls import HandlerCall
from sharedlog._core.consumer.checkpoint import Checkpoint
from sharedlog._core.consumer.members import Gone
from sharedlog._core.consumer.one_file import InOneFile
from sharedlog._core.errors import (
    InvalidRequest,
    LogError,
    StoreAway,
    StoreStopped,
    StoreWentBack,
)
from sharedlog._core.position import Position
from sharedlog._engines.engine import Engine
from sharedlog._engines.sqlite import SqliteEngine

_BUSY_S = 5.0
# Not what handlers would write, whose statements are checked when they are prepared.
BEGIN, COMMIT, _ROLLBACK = (
    "BEGIN IMMEDIATE -- sharedlog",
    "COMMIT -- sharedlog",
    "ROLLBACK -- sharedlog",
)
# What handlers do to no row, and not to the table, of the consumers' own.
_WRITES = (
    sqlite3.SQLITE_INSERT,
    sqlite3.SQLITE_UPDATE,
    sqlite3.SQLITE_DELETE,
    sqlite3.SQLITE_DROP_TABLE,
    sqlite3.SQLITE_ALTER_TABLE,
)
_OF_ROWS = (
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
    *_WRITES[:3],
)
_OURS_TO_WRITE = {TABLE, CALLS, mark.TABLE}
# What outlives a transaction, and changes what a commit is, or whether there can be one.
_OURS_TO_SET = {
    "checkpoint_fullfsync",
    "fullfsync",
    "journal_mode",
    "locking_mode",
    "mmap_size",
    "query_only",
    "read_uncommitted",
    "synchronous",
    "writable_schema",
}
# What sqlite3 makes rows and texts by: ours are read so, whatever handlers want.
_PLAIN: tuple[Any, Any] = (None, str)
_VERSION = "PRAGMA data_version -- sharedlog"
_FOREIGN_KEYS = "PRAGMA foreign_keys = ON -- sharedlog"
_QUERY_ONLY, _QUERY_AND_WRITE = (
    "PRAGMA query_only = ON -- sharedlog",
    "PRAGMA query_only = OFF -- sharedlog",
)
_LOST = (
    "SQLite has rolled the transaction back, at a statement (OR ROLLBACK, RAISE(ROLLBACK)), an "
    "interrupt or a full disk: nothing more is done in it. Let what failed leave the handler"
)
_OURS = "the consumer begins, commits and closes what handlers write with (a savepoint is yours)"


class SqliteLane:
    """A store in SQLite. The file has one writer: a transaction blocks others while it runs."""

    def __init__(
        self,
        path: Path,
        name: str,
        *,
        foreign_keys: bool = False,
        configure: Configure | None = None,
        guard: FileGuard | None = None,
    ) -> None:
        """``name``: the consumer's. The table is made where there is none.

        ``foreign_keys``: they are enforced. ``configure``: called with each new connection.
        ``guard``: of the file, by default its own.
        """
        self._path = path
        self._foreign_keys = foreign_keys
        self._configure = configure
        # What handlers' rows and texts are made by, as it was configured.
        self._factories = _PLAIN
        self._table = Table(name, SQLITE)
        # Where a handler uses it.
        self._alchemy: Alchemy | None = None
        self._connection: HandlersConnection | None = None
        # What the handler that runs was lent.
        self._lent: LentSqliteConnection | None = None
        self._guard = guard or FileGuard(path)
        self._owned = _Owned()
        # A service is called: the file is others' to write meanwhile. What handlers' rows and
        # texts are made by, until then.
        self._suspended: tuple[Any, Any] | None = None
        # Of the file, as the transaction that runs has seen it.
        self._version = 0
        self._calls = CallRows(name, SQLITE)
        # Shards that have calls whose messages are not done.
        self._calling: set[str] = set()
        try:
            with self._transaction() as execute:
                execute(self._table.create, ())
                execute(self._calls.create, ())
        except BaseException:
            # No other code uses it: an interrupt may have left it in a transaction.
            self.close()
            raise

    def lane(self) -> None:
        """Return None: the file has one writer."""

    def joined(self, engine: Engine) -> Together | None:
        """Return how this and the log of an engine commit together; None: they do not."""
        if not isinstance(engine, SqliteEngine) or not engine.is_in(self._path):
            return None
        carry_in = engine.carry_in
        return Together(
            lambda _, append: self._within(lambda connection: carry_in(connection, append)),
            InOneFile,
            alone=True,
        )

    def take(self, tag: str, number: int, *, gone: Gone, anew: bool) -> Checkpoint:
        """Raise the shard's fence to the number, and return the checkpoint."""
        with self._transaction() as execute:
            return self._table.take(execute, tag, number, gone=gone, anew=anew)

    def note(self, tag: str, number: int, attempts: int) -> None:
        """Note attempts, durably, if the fence has the number."""
        with self._transaction() as execute:
            self._table.note(execute, tag, number, attempts)

    def rewind(self, tag: str, number: int, epoch: int, position: Position | None) -> None:
        """Set the position in a new epoch, if the fence has the number."""
        with self._transaction() as execute:
            self._table.rewind(execute, tag, number, epoch, position)
            self._calls.forget(execute, tag)

    def calls(self, tag: str) -> Sequence[HandlerCall]:
        """Return the kept calls of a shard, by their serials (T6)."""
        with self._transaction() as execute:
            found = self._calls.read(execute, tag)
        self._calling.discard(tag)
        if found:
            self._calling.add(tag)
        return found

    def intend(self, tag: str, number: int, call: HandlerCall) -> None:
        """Keep a call, durably, apart from the transaction that runs."""
        self._calling.add(tag)
        with self._transaction() as execute:
            if not self._calls.intend(execute, tag, number, call):
                raise self._table.fenced(execute, tag, number)

    def answered(self, tag: str, number: int, call: HandlerCall) -> None:
        """Keep a call's answer, durably, if the fence has the number."""
        with self._transaction() as execute:
            if not self._calls.answered(execute, tag, number, call):
                raise self._table.fenced(execute, tag, number)

    def written(self) -> int:
        """Return a number that grows as handlers write; None: calls may be made at any time."""
        return self._opened().total_changes + self._owned.others

    def suspend(self) -> None:
        """Let other writers in while a service is called."""
        self._owned.free()
        with self._errors():
            connection = self._opened()
            self._suspended = connection.row_factory, connection.text_factory
            connection.row_factory, connection.text_factory = _PLAIN
            if connection.in_transaction:
                connection.execute(_ROLLBACK)
            connection.execute(_QUERY_ONLY)

    def resume(self, *, read: bool) -> None:
        """Go on with the transaction after a service was called."""
        before, factories = self._version, self._suspended or _PLAIN
        self.rollback()
        self.begin()
        connection = self._opened()
        connection.row_factory, connection.text_factory = factories
        if read and before != self._version:
            raise Failed(
                "others have written the database while a service was called, after the handler "
                "had read it",
                counts=False,
            )

    def begin(self) -> None:
        """Begin a transaction."""
        with self._errors():
            connection = self._opened()
            connection.execute(BEGIN)
            connection.lost_by = None
            self._guard.begun(connection)
            (self._version,) = connection.cursor().execute(_VERSION).fetchone()
        self._owned.lend(connection)

    def lend(self, loan: Loan) -> Any:
        """Return the connection that a handler uses, until the loan is over."""
        self._lent = LentSqliteConnection(self._opened(), loan)
        self._lent.row_factory, self._lent.text_factory = self._factories
        return self._lent

    def take_back(self) -> None:
        """End the loan. Nothing is in flight: only its own thread uses a connection."""
        lent, self._lent = self._lent, None
        if lent is not None:
            lent.loan.over = True
            self._end_alchemy()
            if self._connection is not None:
                self._connection.close_lent()
                self._connection.row_factory, self._connection.text_factory = _PLAIN

    def sqlalchemy(self) -> Any:
        """Return a ``sqlalchemy.Connection`` of the transaction, until ``take_back``."""
        connection, lent = self._opened(), self._lent
        if lent is None:
            raise handler_ended()
        if self._alchemy is None or not self._alchemy.connection.is_of(connection):
            others = self._owned.others
            self._alchemy = Alchemy("sqlite", LentSqliteConnection(connection, lent.loan))
            given = self._alchemy.begin(lent.loan)
            # What it asks first writes nothing.
            self._owned.others = others
            return given
        return self._alchemy.begin(lent.loan)

    def savepoint(self) -> AbstractContextManager[object]:
        """Return a context manager that rolls its block back if an exception leaves it."""
        return sql_savepoint(self._lent)

    def intact(self) -> None:
        """Raise ``Failed`` if a handler has ended the transaction."""
        try:
            connection = self._opened()
            begun = connection.in_transaction
        except sqlite3.ProgrammingError as error:
            raise Failed("the handler has closed the connection", counts=True) from error
        if not begun:
            lost = connection.lost_by
            why = "the transaction was undone while the handler ran"
            raise Failed(why, counts=lost is None or by_sqlite(lost)) from lost

    def _within(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """Run the library's own work in the handlers' transaction, before it commits."""
        self._owned.free()
        self._end_alchemy()
        with self._errors():
            work(self._opened())

    def commit(self, tag: str, checkpoint: Checkpoint, _: Sequence[Unit] = ()) -> None:
        """Commit with the checkpoint, if the fence has its number."""
        self._owned.free()
        self._end_alchemy()
        with self._transaction() as execute:
            self._table.move(execute, tag, checkpoint)
            if tag in self._calling and checkpoint.position is not None:
                self._calls.passed(execute, tag, checkpoint.position)

    def rollback(self) -> None:
        """Roll back the transaction, if there is one; does not fail."""
        self._owned.free()
        self._end_alchemy()
        suspended, self._suspended = self._suspended, None
        connection = self._connection
        if connection is None:
            return
        try:
            connection.close_lent()
            if connection.in_transaction:
                connection.execute(_ROLLBACK)
            if suspended:
                connection.execute(_QUERY_AND_WRITE)
        except sqlite3.Error:
            self.close()

    def judge(self, error: BaseException) -> Counts:
        """Return whether a handler's error counts as an attempt."""
        if not isinstance(error, sqlite3.Error):
            return True
        if not is_noted(error):
            # Another database's; or of a cursor's rows, which are not looked at.
            return None
        # A sync can fail in a handler's statement, too: nothing is begun after that.
        self._guard.met(error)
        return by_sqlite(error)

    def close(self) -> None:
        """Close the store; idempotent."""
        connection, self._connection = self._connection, None
        self._owned.free()
        self._suspended = None
        self._guard.closed()
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                Connection.close(connection)

    def _end_alchemy(self) -> None:
        if self._alchemy is not None:
            self._alchemy.end()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Execute]:
        """Work in the transaction that was begun, or in one of its own, and commit it."""
        with self._errors():
            connection = self._opened()
            try:
                if self._suspended:
                    connection.execute(_QUERY_AND_WRITE)
                if not connection.in_transaction:
                    connection.execute(BEGIN)
                    self._guard.begun(connection)
                cursor = connection.cursor()
                cursor.row_factory = None
                yield cursor.execute
                raised = self._guard.mark.write(connection)
                self._commit(connection)
                self._guard.committed(raised)
                if self._suspended:
                    connection.execute(_QUERY_ONLY)
            except BaseException:
                self.rollback()
                raise

    def _commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute(COMMIT)
        except sqlite3.Error as error:
            if not connection.in_transaction:
                # It is unknown what is on the disk.
                raise
            self._guard.met(error)
            raise Failed(_line(error), counts=by_sqlite(error)) from error

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (LogError, Failed):
            raise
        except sqlite3.Error as error:
            stopped = self._guard.met(error)
            self.close()
            if stopped is not None:
                raise _told(self._path, stopped) from error
            why = f"the store {self._path}: {_line(error)}"
            raise noted(StoreAway(why)) from error

    def _opened(self) -> HandlersConnection:
        if self._connection is None:
            # One that was there, and is not: an empty one is not made in its place.
            with self._errors():
                self._guard.check_main()
                connection = self._connected()
                connection.owned = self._owned
                self._connection = connection
                try:
                    self._guard.opened(connection)
                    if self._foreign_keys:
                        connection.execute(_FOREIGN_KEYS)
                    connection.set_authorizer(self._owned)
                    if self._configure is not None:
                        self._configured(connection, self._configure)
                except InvalidRequest:
                    self.close()
                    raise
        return self._connection

    def _connected(self) -> HandlersConnection:
        """Return a new connection to the file."""
        return connect(
            self._path,
            HandlersConnection,
            busy_s=_BUSY_S,
            create=not self._guard.known,
            any_thread=False,
        )

    def _configured(self, connection: HandlersConnection, configure: Configure) -> None:
        """Have the user's function see a new connection, which begins no transaction by it."""
        self._owned.configuring = True
        try:
            configure_by(
                configure, lambda loan: LentSqliteConnection(connection, loan), sqlite3.Error
            )
        finally:
            self._owned.configuring = False
        connection.close_lent()
        # It may have set another one.
        connection.set_authorizer(self._owned)
        if connection.isolation_level is not None or not is_legacy(connection):
            raise refuse_settings("changed isolation_level or autocommit")
        self._factories = connection.row_factory, connection.text_factory
        connection.row_factory, connection.text_factory = _PLAIN


class _Owned(Owned):
    """What handlers' statements may do: nothing to the consumers' own rows and tables."""

    def __init__(self) -> None:
        super().__init__()
        self._process = os.getpid()
        # ``configure`` runs.
        self.configuring = False
        # What was written that SQLite does not count: it is not rows.
        self.others = 0

    def __call__(self, action: int, first: str | None, second: str | None, *more: Any) -> int:
        """Judge a part of a statement, as SQLite asks."""
        if self.configuring:
            ends = action == sqlite3.SQLITE_TRANSACTION
            return sqlite3.SQLITE_DENY if ends else self.judge(action, first, second)
        judged = super().__call__(action, first, second, *more)
        self.others += judged == sqlite3.SQLITE_OK and action not in _OF_ROWS
        return judged

    def judge(self, action: int, first: str | None, second: str | None) -> int:
        """Judge what does not end the transaction."""
        if action == sqlite3.SQLITE_PRAGMA and second is not None:
            ours = (first or "").lower() in _OURS_TO_SET
            return sqlite3.SQLITE_DENY if ours else sqlite3.SQLITE_OK
        if (action in _WRITES and _OURS_TO_WRITE & {first, second}) or os.getpid() != self._process:
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK


class _Cursor(sqlite3.Cursor):
    """What handlers execute by: nothing runs once SQLite has rolled the transaction back."""

    # What it is a cursor of for its handler; None: it is the consumer's own.
    lent: LentSqliteConnection | None = None

    @property
    def connection(self) -> Any:
        return self.lent or self.made_by

    @property
    def made_by(self) -> HandlersConnection:
        """The consumer's connection."""
        made_by: Any = super().connection
        return made_by  # type: ignore[no-any-return]

    def execute(self, *given: Any) -> Self:
        self._check()
        try:
            return super().execute(*given)
        except sqlite3.Error as error:
            self.made_by.raised(error)
            raise

    def executemany(self, *given: Any) -> Self:
        self._check()
        try:
            return super().executemany(*given)
        except sqlite3.Error as error:
            self.made_by.raised(error)
            raise

    def executescript(self, *_: Any) -> NoReturn:
        raise InvalidRequest(f"executescript commits: {_OURS}")

    def _check(self) -> None:
        if self.lent is not None:
            self.lent.loan.check()
        self.made_by.check()


@functools.cache
def _cursors_of(factory: type[sqlite3.Cursor]) -> type[sqlite3.Cursor]:
    """Return a class of a handler's cursors, of the class that it wants."""
    if issubclass(factory, _Cursor):
        return factory
    return type(factory.__name__, (_Cursor, factory), {})


class HandlersConnection(Connection):
    """What the consumer lends: it begins the transactions, ends them, and closes this."""

    # None is lent before it has its own.
    owned = _Owned()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # What SQLite has rolled the handlers' transaction back for.
        self.lost_by: sqlite3.Error | None = None
        # Cursors and blobs of handlers.
        self._lent: weakref.WeakSet[Any] = weakref.WeakSet()

    def cursor(self, factory: Any = None) -> Any:
        if isinstance(factory, type):
            factory = _cursors_of(factory)
        cursor = super().cursor(factory or _Cursor)
        if self.owned.lent or self.owned.configuring:
            self._lent.add(cursor)
        return cursor

    def blobopen(self, *given: Any, **named: Any) -> Any:
        blob = super().blobopen(*given, **named)
        self._lent.add(blob)
        return blob

    def close_lent(self) -> None:
        """Close cursors and blobs of handlers: SQLite commits behind none that has rows left."""
        if self._lent:
            for each in list(self._lent):
                each.close()
            self._lent.clear()

    def execute(self, *given: Any) -> Any:
        # sqlite3's own does not ask the cursor's.
        return self.cursor().execute(*given)

    def executemany(self, *given: Any) -> Any:
        return self.cursor().executemany(*given)

    def check(self) -> None:
        """Raise ``InvalidRequest`` if a statement would commit by itself."""
        if self.owned.lent and not self.in_transaction:
            raise InvalidRequest(_LOST) from self.lost_by

    def raised(self, error: sqlite3.Error) -> None:
        """Note what a statement raised; ``InvalidRequest`` if it was refused by us."""
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_AUTH:
            raise InvalidRequest(f"{_OURS}, and writes its table ({error})") from error
        noted(error)
        if self.owned.lent and not self.in_transaction and self.lost_by is None:
            self.lost_by = error

    def executescript(self, *_: Any) -> NoReturn:
        raise InvalidRequest(f"executescript commits: {_OURS}")

    def __enter__(self) -> NoReturn:
        raise InvalidRequest(f"'with connection' commits: {_OURS}")

    def commit(self) -> NoReturn:
        raise InvalidRequest(_OURS)

    def rollback(self) -> NoReturn:
        raise InvalidRequest(_OURS)

    def close(self) -> NoReturn:
        raise InvalidRequest(_OURS)


def _told(path: Path, stopped: Stopped) -> LogError:
    if isinstance(stopped, Replaced):
        return StoreWentBack(
            f"the store was removed, or replaced by another file, while it was open: {stopped}"
        )
    return StoreStopped(f"the store {path} is not used any more: {stopped}")


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
