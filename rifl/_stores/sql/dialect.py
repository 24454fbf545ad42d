"""The dialect of a database: the little that the generic backend does not know of it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from _rifl_ground.servers import Durability, Weakness


class Failure(enum.Enum):
    """What an error of a driver says of the transaction that it ended."""

    # Rolled back for the sake of another transaction, or a row was there first: begin anew.
    AGAIN = "again"
    # Another transaction holds a lock for too long; all of this one must be rolled back.
    LOCKED = "locked"
    # The connection broke, by itself or as the server stopped.
    LOST = "lost"
    # The server did not answer in time; the connection is of no more use.
    SILENT = "silent"
    # The tables are not there.
    MISSING = "missing"
    OTHER = "other"


class SqlTable(NamedTuple):
    """A table: its columns with their types, its primary key, its indexes.

    Types: ``int`` of 64 bits, ``float`` of 64, ``blob``, and ``bytes`` of a number at most. All may
    be null but the primary key.
    """

    name: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    indexes: tuple[tuple[str, ...], ...] = ()


class SqlServer(NamedTuple):
    """The present state of a server.

    ``refusal``: why it is not to be used at all, empty if it may be. ``weaknesses``: settings, of
    it and of our tables, that may lose commits. ``history``: which server it is, and on which of
    its histories; empty: it does not tell.
    """

    refusal: str
    weaknesses: list[Weakness]
    history: str


class Dialect(Protocol):
    """Everything is bytes and numbers in our tables: no collation, time zone or charset counts.

    Our statements have ``%s`` for parameters and ``@.`` before the names of our tables. Methods
    that are given a connection run in a transaction that the caller ends.
    """

    # The server and database, for people.
    place: str
    # What the names of tables begin with.
    prefix: str
    durability: Durability
    timeout_s: float
    max_connections: int
    # Of our largest statement; a record has to fit into one.
    max_record_bytes: int
    # The server's clock when a statement begins, in seconds since the epoch, as SQL.
    now: str
    # What ends a SELECT that keeps its rows as they are until the transaction ends.
    share: str
    # By which number ``end_holder`` ends a session, as SQL.
    session_id: str
    # How a parameter of bytes is written, and given.
    bytes_parameter: str
    # What the driver raises.
    errors: tuple[type[Exception], ...]

    def bytes_argument(self, value: bytes) -> Any:
        """Return bytes as a driver is given them for ``bytes_parameter``."""

    def connect(self, within_s: float | None = None) -> Any:
        """Connect, with all that our statements need set; a DB-API connection, not autocommit.

        ``within_s``: how long each reply may take (see ``wait_at_most``); None: ``timeout_s``.
        It is READ COMMITTED, and a statement waits for a lock for a part of ``timeout_s``.
        """

    def failure(self, error: Exception) -> Failure:
        """Say what an error of the driver means."""

    def tables(self, tables: Sequence[SqlTable]) -> list[str]:
        """Return the statements that make tables which are not there."""

    def lock_schema(self, connection: Any) -> None:
        """Wait for others that make the tables; they wait until the connection is closed."""

    def is_there(self, connection: Any, table: str) -> bool:
        """Whether there is such a rifl table."""

    def server(self, connection: Any, tables: Sequence[SqlTable]) -> SqlServer:
        """Look at the server, and at these tables of rifl's, if they are there."""

    def run(self, connection: Any) -> bytes:
        """Return what changes when the server is started anew."""

    def about(self, connection: Any, table: str) -> int:
        """Return about how many rows a rifl table has, without counting them."""

    def size_bytes(self, connection: Any, tables: Sequence[SqlTable]) -> int:
        """Return about how much the tables take."""

    def wait_at_most(self, connection: Any, limit_s: float) -> None:
        """Give up a reply on this connection after so long, and a grace beyond the server's own."""

    def end_holder(self, connection: Any, identity: tuple[int, int, bytes]) -> bool:
        """End the session whose open transaction has recorded a call; false if it cannot."""
