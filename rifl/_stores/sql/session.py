"""A connection of the store's own: statements in transactions, and a pool of such connections."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from rifl._stores.shared.backend import NotCarriedOut, patience
from rifl._stores.sql.dialect import Dialect


@functools.lru_cache(1024)
def spelled(
    statement: str, prefix: str, written: str, are_bytes: tuple[bool, ...], style: Any = None
) -> str:
    """Return one of rifl's statements in the form that a driver takes.

    ``written``: how a parameter of bytes is written, in which ``%s`` stands for it. ``style``:
    of the driver's parameters, by their number; None for ``%s``.
    """
    first, *rest = statement.replace("@.", prefix).split("%s")
    mark: Callable[[int], str] = style or (lambda _: "%s")
    parts = [first]
    for number, (text, is_bytes) in enumerate(zip(rest, are_bytes, strict=True), 1):
        parts += [written.replace("%s", mark(number)) if is_bytes else mark(number), text]
    return "".join(parts)


class SqlSession:
    """One connection. Not thread-safe. Errors are the driver's."""

    def __init__(self, dialect: Dialect, connection: Any) -> None:
        self.dialect = dialect
        self.connection = connection

    def rows(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Carry out a statement that returns rows."""
        with contextlib.closing(self._execute(statement, arguments)) as cursor:
            return list(cursor.fetchall())

    def row(self, statement: str, *arguments: Any) -> tuple[Any, ...] | None:
        """Return the first row, None if there is none."""
        found = self.rows(statement, *arguments)
        return found[0] if found else None

    def run(self, statement: str, *arguments: Any) -> None:
        """Carry out a statement that returns nothing."""
        self._execute(statement, arguments).close()

    def _execute(self, statement: str, arguments: tuple[Any, ...]) -> Any:
        dialect = self.dialect
        are_bytes = tuple([isinstance(each, bytes) for each in arguments])
        text = spelled(statement, dialect.prefix, dialect.bytes_parameter, are_bytes)
        given = [
            dialect.bytes_argument(each) if is_bytes else each
            for each, is_bytes in zip(arguments, are_bytes, strict=True)
        ]
        cursor = self.connection.cursor()
        try:
            cursor.execute(text, given)
        except BaseException:
            cursor.close()
            raise
        return cursor


class Pool:
    """Connections, at most so many at a time. Any thread.

    ``greet`` looks at each new one before it is used.
    """

    def __init__(self, dialect: Dialect, greet: Callable[[SqlSession], None]) -> None:
        self._dialect = dialect
        self._greet = greet
        self._room = threading.BoundedSemaphore(dialect.max_connections)
        self._idle: deque[SqlSession] = deque()
        self._closed = False

    @contextlib.contextmanager
    def session(self, within_s: float | None = None) -> Iterator[SqlSession]:
        """Lend a connection; what a block that raises has left open is rolled back.

        Raises ``NotCarriedOut`` if none is free in time (``patience``), and the driver's errors.
        """
        timeout_s = patience(within_s, self._dialect.timeout_s)
        if not self._room.acquire(timeout=timeout_s):
            raise NotCarriedOut(f"no connection was free in {timeout_s:g} s")
        try:
            session = self._idle.pop() if self._idle else self._new(timeout_s)
            usable = True
            try:
                yield session
            except BaseException:
                usable = _rolled_back(session)
                raise
            finally:
                if usable and not self._closed:
                    self._idle.append(session)
                else:
                    discard(session)
        finally:
            self._room.release()

    def _new(self, timeout_s: float) -> SqlSession:
        session = SqlSession(self._dialect, self._dialect.connect(timeout_s))
        try:
            self._greet(session)
            session.connection.rollback()
            self._dialect.wait_at_most(session.connection, self._dialect.timeout_s)
        except BaseException:
            discard(session)
            raise
        return session

    def drop_idle(self) -> None:
        """Close the idle ones: the server may have restarted, or be another."""
        with contextlib.suppress(IndexError):
            while True:
                discard(self._idle.pop())

    def close(self) -> None:
        """Close them all, those that are used at the end of that."""
        self._closed = True
        self.drop_idle()


def _rolled_back(session: SqlSession) -> bool:
    """Roll back all that the connection has open; false if that did not work."""
    try:
        session.connection.rollback()
    except Exception:  # noqa: BLE001 - whatever a driver raises
        return False
    return True


def discard(session: SqlSession) -> None:
    """Close a connection, whatever state it is in."""
    with contextlib.suppress(Exception):
        session.connection.close()


class RetryPause:
    """A pause between tries, which grows and ends at a limit."""

    def __init__(self, limit_s: float, sleep: Callable[[float], object] = time.sleep) -> None:
        self._next_s, self._limit_s, self._sleep = 0.001, limit_s, sleep

    def wait(self) -> None:
        """Wait."""
        self._sleep(self._next_s)
        self._next_s = min(2 * self._next_s, self._limit_s)
