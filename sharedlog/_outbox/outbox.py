"""``Outbox``: what a transaction of the application's publishes by, to a log elsewhere."""

from __future__ import annotations

from typing import Any

from sharedlog._core.arguments import shown
from sharedlog._core.catalog import Stream, name_of
from sharedlog._core.envelope import About, Value
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.outbox import content_of
from sharedlog._core.publishing import Placed
from sharedlog._core.streams import check_name
from sharedlog._log.append_in import check_size
from sharedlog._log.log import Log
from sharedlog._log.placing import Headers
from sharedlog._outbox.entry import New, OutboxEntry
from sharedlog._outbox.writing import write

NAME = "outbox"


class Outbox:
    """An outbox: messages commit with a connection's transaction; a relay appends them to a log.

    For one transaction after the other of that connection, whose thread rules apply.
    """

    def __init__(self, connection: Any, log: Log, name: str) -> None:
        """Use ``sharedlog.outbox``."""
        check_name(name, "outbox")
        check_log(log, Log)
        self._connection = connection
        self._log = log
        self._name = name

    def publish(
        self,
        stream: str | Stream,
        value: Value,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        about: About | None = None,
    ) -> None:
        """Publish a message once if the transaction commits, and never if it does not.

        The arguments are those of ``Log.publish``. Messages get into the log in the order in which
        their transactions commit. Call it last: other publishers of this outbox then wait for the
        transaction's end. In a handler's ``rifl.transaction`` over PostgreSQL it travels with the
        commit.

        Raises ``NoSuchOutbox``, ``NoSuchStream``, ``InvalidRequest``, and ``LogForked`` for an
        outbox of another log. Raises ``WrongTransaction`` for a connection in autocommit, or whose
        commits do not wait for the disk. Raises the driver's errors if the database refuses. After
        an error nothing of it will be in the log.
        """
        log = self._log

        def put(said: About | None) -> None:
            placed = log._placing.placed(stream, value, key, headers, said)
            write(self._connection, entry_of(log, self._name, placed))

        if log._place.observers is None:
            put(about)
        else:
            log._place.observers.published(name_of(stream), about, put)


def outbox(connection: Any, log: Log, name: str = NAME) -> Outbox:
    """Return an outbox in the database of ``connection``, for messages to ``log``.

    ``connection``: of sqlite3 or psycopg, SQLAlchemy's over one, or what ``rifl.transaction``
    yields. ``create_outbox`` makes the outbox, once; ``relay`` appends its messages to the log.
    """
    return Outbox(connection, log, name)


def create_outbox(connection: Any, log: Log, name: str = NAME) -> None:
    """Make an outbox for ``log`` in the database of ``connection``, in its transaction.

    Its tables begin with ``sharedlog_outbox``. Does nothing if the outbox exists; raises
    ``LogForked`` if that is for another log.
    """
    check_name(name, "outbox")
    check_log(log, Log)
    write(connection, New(name, log.incarnation))


def check_log(log: object, kind: type, door: str = "sharedlog.open") -> None:
    """Raise ``InvalidRequest`` unless this is a log of the kind that ``door`` opens."""
    if not isinstance(log, kind):
        raise InvalidRequest(f"log={shown(log)}: it is no log that was opened by {door}")


def entry_of(log: Log, name: str, placed: Placed) -> OutboxEntry:
    """Return what is put into the database for a message; raises ``InvalidRequest``."""
    check_size(log._place, placed)
    content = content_of(placed.tag, placed.envelope)
    return OutboxEntry(name, log.incarnation, placed.tag, placed.envelope, content)
