"""A PostgreSQL role that may not do everything: told what is missing (DESIGN-LOG §12)."""

import contextlib
import re
import secrets

import pytest

from sharedlog._core.commit import Commit, NewEntry, Put
from sharedlog._core.errors import LogUnavailable
from sharedlog._engines.opening import create_engine, open_engine
from tests.helpers.pages import page

_TEXT = page("log-engines.md").read_text("utf-8")


def documented():
    """The statements of the page that give a role its rights, by what they are about."""
    found = re.findall(
        r"^(GRANT .* ON (?:SCHEMA |sharedlog\.)(\w+) TO) relay;$", _TEXT, re.MULTILINE
    )
    return {of: statement for statement, of in found}


RIGHTS = documented()


def grant(connection, name, *, without=None):
    """Give a role the documented rights in the schema of its name, but for one."""
    for of, statement in RIGHTS.items():
        if of != without:
            connection.execute(f"{statement.replace('sharedlog', name)} {name}")


@pytest.fixture
def role(shared_postgres):
    """A log in a schema of its own, and a role that has no right there; they go afterwards."""
    name = f"r{secrets.token_hex(4)}"
    url = shared_postgres.url(schema=name, log="one")
    create_engine(url, {"k": b"v"}).close()
    with shared_postgres.connect(autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN")
        yield name, connection
        connection.execute(f"DROP SCHEMA {name} CASCADE")
        connection.execute(f"DROP OWNED BY {name}")
        connection.execute(f"DROP ROLE {name}")


def use(server, name):
    """Open the log as the role, and do everything that a log does."""
    url = server.url(schema=name, log="one", user=name)
    with contextlib.closing(open_engine(url)) as engine:
        engine.commit(Commit(puts=(Put("k", None),), entries=(NewEntry(b"a", ("t",)),) * 2))
        assert engine.get(("k",)) == {"k": None}
        engine.remove(1)
        assert len(engine.read(1, 10, "t").rows) == 1


def test_a_role_needs_no_more_than_these_rights(shared_postgres, role):
    """It neither owns the schema nor is it a superuser (§12)."""
    name, connection = role
    grant(connection, name)
    use(shared_postgres, name)


@pytest.mark.parametrize("missing", RIGHTS)
def test_a_right_that_is_missing_is_named(shared_postgres, role, missing):
    """Nothing of it is in the log, and the operator learns what to grant (§12)."""
    name, connection = role
    grant(connection, name, without=missing)
    what = missing.replace("sharedlog", name)
    with pytest.raises(LogUnavailable, match=f"permission denied for [a-z]+ {what}") as caught:
        use(shared_postgres, name)
    assert caught.value.appended is False
    with contextlib.closing(open_engine(shared_postgres.url(schema=name, log="one"))) as engine:
        assert engine.tail() == 0
