"""``Outbox`` for the tasks of an event loop."""

from __future__ import annotations

from typing import Any

from sharedlog._aio.log import Log
from sharedlog._core.catalog import Stream, name_of
from sharedlog._core.envelope import About, Value
from sharedlog._core.streams import check_name
from sharedlog._log.placing import Headers
from sharedlog._outbox.entry import New
from sharedlog._outbox.outbox import NAME, check_log, entry_of
from sharedlog._outbox.writing import write_aio

_DOOR = "sharedlog.aio.open"


class Outbox:
    """As ``sharedlog.Outbox``, on an asynchronous connection; a blocking one is used at once."""

    def __init__(self, connection: Any, log: Log, name: str) -> None:
        """Use ``sharedlog.aio.outbox``."""
        check_name(name, "outbox")
        check_log(log, Log, _DOOR)
        self._connection = connection
        self._log = log
        self._name = name

    async def publish(
        self,
        stream: str | Stream,
        value: Value,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        about: About | None = None,
    ) -> None:
        """Publish a message once if the transaction commits, and never if it does not."""
        log = self._log._inner
        placing, observers = log._placing, log._place.observers

        async def put(said: About | None) -> None:
            if not placing.knows(stream):
                await self._log._threads.run(placing.stream, stream)
            placed = placing.placed(stream, value, key, headers, said)
            await write_aio(self._connection, entry_of(log, self._name, placed))

        if observers is None:
            await put(about)
        else:
            await observers.published_aio(name_of(stream), about, put)


def outbox_aio(connection: Any, log: Log, name: str = NAME) -> Outbox:
    """Return an outbox in the database of a connection, for messages to ``log``.

    Of aiosqlite, psycopg's ``AsyncConnection``, SQLAlchemy's asynchronous ones over them, and
    what ``rifl.aio.transaction`` yields. ``sharedlog.relay`` relays it.
    """
    return Outbox(connection, log, name)


async def create_outbox_aio(connection: Any, log: Log, name: str = NAME) -> None:
    """Make an outbox for ``log`` in the database of a connection, in its transaction."""
    check_name(name, "outbox")
    check_log(log, Log, _DOOR)
    await write_aio(connection, New(name, log.incarnation))
