"""The end of a block that is cut short: what was not seen to be rolled back may be committed."""

import sqlite3

import pytest

import rifl
from rifl._stores.sqlite.transactions import SqliteTransactions
from tests.helpers.raw import RawClient
from tests.helpers.servers import generic, serve


class Alarm(Exception):
    """What a signal's handler, or a time-out, raises."""


@pytest.mark.parametrize("flavor", ["sync", "aio"])
@pytest.mark.parametrize("cut_short", [False, True])
def test_a_rollback_that_is_cut_short_is_not_known(tmp_path, monkeypatch, flavor, cut_short):
    """The call is unknown, and not executed only where the rollback was seen to its end (§6)."""
    file = tmp_path / "s.db"

    def act(request, context):
        connection = sqlite3.connect(file)
        with rifl.transaction(context, connection):
            raise ValueError("of the handler")

    async def act_async(request, context):
        connection = sqlite3.connect(file)
        async with rifl.aio.transaction(context, connection):
            raise ValueError("of the handler")

    def alarmed(*_):
        raise Alarm

    async def alarmed_async(*_):
        raise Alarm

    if cut_short:
        monkeypatch.setattr(SqliteTransactions, "rollback", alarmed)
        monkeypatch.setattr(SqliteTransactions, "rollback_async", alarmed_async)
    handlers = [generic("test.T", {"Act": act if flavor == "sync" else act_async})]
    with (
        rifl.Deduplicator(f"sqlite:///{file}", methods={"/test.T/Act": "atomic"}) as dedup,
        serve(flavor, handlers, dedup=dedup) as served,
        RawClient(served.address) as client,
    ):
        reply = client.call("/test.T/Act", b"", 1)
    assert reply.outcome == ("unknown" if cut_short else "not-executed")
