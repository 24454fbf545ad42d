"""``effects.savepoint()``: a part of what a handler does, which is undone as a whole."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, Self

from sharedlog._consumer.lending import handler_ended
from sharedlog._core.errors import InvalidRequest

# The newest of the name is meant: they nest.
_SAVEPOINT, _UNDO, _RELEASE = (
    "SAVEPOINT sharedlog_effects",
    "ROLLBACK TO SAVEPOINT sharedlog_effects",
    "RELEASE SAVEPOINT sharedlog_effects",
)


@contextlib.contextmanager
def sql_savepoint(connection: Any) -> Iterator[None]:
    """Undo by SQL what a block that an exception leaves has done on a lent connection."""
    if connection is None:
        raise handler_ended()
    connection.execute(_SAVEPOINT)
    try:
        yield
    except BaseException:
        if not connection.loan.over:
            connection.execute(_UNDO)
            connection.execute(_RELEASE)
        raise
    connection.execute(_RELEASE)


class Savepoint:
    """A block of a handler, for ``with`` and ``async with``; used once."""

    def __init__(
        self,
        open_ones: list[Savepoint],
        parts: Callable[[], Sequence[AbstractContextManager[object]]],
    ) -> None:
        """``open_ones``: of the handler. ``parts``: what undoes the database, and the rest."""
        self._open = open_ones
        self._parts = parts
        self._entered = ExitStack()
        self._by: object = None

    def __enter__(self) -> Self:
        """Begin; raises ``InvalidRequest`` while another task or thread is in one."""
        self._by = _caller()
        if any(each._by is not self._by for each in self._open):
            raise InvalidRequest(
                "another task or thread of the handler is in an effects.savepoint(): to undo that "
                "would undo this one, too. Enter them one after the other"
            )
        with ExitStack() as entered:
            for part in self._parts():
                entered.enter_context(part)
            self._entered = entered.pop_all()
        self._open.append(self)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Keep what was done, or undo it where an exception leaves the block."""
        self._open.remove(self)
        self._entered.__exit__(exc_type, exc, traceback)

    async def __aenter__(self) -> Self:
        """Enter the block, as ``with`` does."""
        return self.__enter__()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the block, as ``with`` does."""
        self.__exit__(exc_type, exc, traceback)


def _caller() -> object:
    """Return the task that runs, or the thread."""
    with contextlib.suppress(RuntimeError):
        if (task := asyncio.current_task()) is not None:
            return task
    return threading.current_thread()
