"""A look at a store in MariaDB or MySQL by the checks of its start; only reads."""

from __future__ import annotations

from functools import partial

import pymysql

from _rifl_ground.findings import Checkup, reached, what_to_do
from _rifl_ground.servers import Durability
from rifl._stores.errors import StoreCorrupt, StoreError
from rifl._stores.mysql.dialect import MySqlDialect
from rifl._stores.mysql.failures import number_of
from rifl._stores.mysql.store_address import MySqlStoreAddress
from rifl._stores.sql.dialect import SqlTable
from rifl._stores.sql.schema import TABLES, broken, checked, is_made, read_meta, stopped
from rifl._stores.sql.session import SqlSession, discard

_GUIDE = "docs/reference/stores-mysql.md"
_NEEDED = ("CREATE", "SELECT", "INSERT", "UPDATE", "DELETE")
# No right to the table, or to a column of it.
_DENIED = (1142, 1143)
_GRANTED = """
SELECT privilege_type FROM information_schema.user_privileges WHERE grantee = %s
UNION SELECT privilege_type FROM information_schema.schema_privileges
WHERE grantee = %s AND DATABASE() LIKE table_schema
"""
_ROOM = """
SELECT @@GLOBAL.max_connections, @@max_user_connections,
    (SELECT COUNT(*) FROM information_schema.processlist
     WHERE user = SUBSTRING_INDEX(USER(), '@', 1))
"""


def examine(url: str) -> Checkup:
    """Look at the store of a URL. Raises ``UnsupportedStore`` for the URL itself."""
    dialect = MySqlDialect(MySqlStoreAddress.parse(url))
    checkup = Checkup(dialect.place, StoreError)
    with reached(checkup, dialect.errors):
        session = SqlSession(dialect, dialect.connect())
        try:
            _look(checkup, session, dialect)
        finally:
            # Its transaction ends with it.
            discard(session)
    return checkup


def _look(checkup: Checkup, session: SqlSession, dialect: MySqlDialect) -> None:
    server = dialect.server(session.connection, TABLES)
    if server.refusal:
        checkup.error("server", server.refusal, f"Use a server as {_GUIDE} says.")
    checkup.weaknesses(server.weaknesses, dialect.durability)
    if _may_read(session) and is_made(session):
        _look_at_store(checkup, session, dialect, server.history)
    else:
        _look_at_making(checkup, session)
    session.connection.rollback()
    checkup.clock(lambda: float(session.rows(f"SELECT {dialect.now}")[0][0]))
    _look_at_room(checkup, session, dialect)


def _may_read(session: SqlSession) -> bool:
    if not session.dialect.is_there(session.connection, "meta"):
        return False
    return not _denied(session, "SELECT name FROM @.meta LIMIT 0")


def _look_at_store(
    checkup: Checkup, session: SqlSession, dialect: MySqlDialect, history: str
) -> None:
    notes = checkup.refused("store", partial(checked, read_meta(session), dialect))
    if notes is None:
        return
    if notes.stopped:
        checkup.error("store", stopped(dialect, notes.stopped), what_to_do(StoreCorrupt))
    elif why := broken(notes.history, history):
        if dialect.durability is Durability.REQUIRE:
            checkup.error("history", stopped(dialect, why), what_to_do(StoreCorrupt))
        else:
            checkup.warning("history", why, what_to_do(StoreCorrupt))
    lacks = [
        f"{right} on {dialect.prefix}{table.name}"
        for table in TABLES
        for right, statement in _statements(table)
        if _denied(session, statement)
    ]
    if lacks:
        checkup.error("rights", f"the user lacks {', '.join(lacks)}", "Grant that.")


def _statements(table: SqlTable) -> list[tuple[str, str]]:
    """Return statements that are explained, which wants their rights, and not carried out."""
    column, names = table.key[0], ", ".join(table.key)
    values = ", ".join(["NULL"] * len(table.key))
    return [
        ("SELECT", f"EXPLAIN SELECT {column} FROM @.{table.name} LIMIT 0"),
        ("INSERT", f"EXPLAIN INSERT INTO @.{table.name} ({names}) VALUES ({values})"),
        ("UPDATE", f"EXPLAIN UPDATE @.{table.name} SET {column} = {column} WHERE 1 = 0"),
        ("DELETE", f"EXPLAIN DELETE FROM @.{table.name} WHERE 1 = 0"),
    ]


def _denied(session: SqlSession, statement: str) -> bool:
    try:
        session.rows(statement)
    except pymysql.Error as error:
        if number_of(error) not in _DENIED:
            raise
        return True
    return False


def _look_at_making(checkup: Checkup, session: SqlSession) -> None:
    (user, role) = session.rows("SELECT CURRENT_USER(), CURRENT_ROLE()")[0]
    name, _, host = str(user).rpartition("@")
    grantee = f"'{name}'@'{host}'"
    granted = {str(right) for (right,) in session.rows(_GRANTED, grantee, grantee)}
    lacks = [right for right in _NEEDED if right not in granted]
    if lacks and role not in (None, "NONE"):
        checkup.note(
            "rights", f"whether the role {role} may {', '.join(lacks)} in the database is not seen"
        )
    elif lacks:
        checkup.error(
            "rights",
            f"rifl's tables are not made, or not the user's to read, and the user lacks "
            f"{', '.join(lacks)} on the database",
            f"Grant that, as {_GUIDE} says.",
        )
        return
    checkup.note("store", "there is none yet: the first server makes it")


def _look_at_room(checkup: Checkup, session: SqlSession, dialect: MySqlDialect) -> None:
    most, of_user, by_user = map(int, session.rows(_ROOM)[0])
    ((_, used), *_) = session.rows("SHOW GLOBAL STATUS LIKE 'Threads_connected'")
    # This one's own is free after it.
    free = most - int(used) + 1
    if of_user:
        free = min(free, of_user - by_user + 1)
    limit = f"max_connections is {most}"
    checkup.connections(
        dialect.max_connections, free, limit + (f", of the user {of_user}" if of_user else "")
    )
