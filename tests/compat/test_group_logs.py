"""Groups' logs of released formats open, and move to the newest one (DESIGN §7)."""

from __future__ import annotations

import secrets
from contextlib import closing
from pathlib import Path

import pytest

from curp.log import open_engine
from curp.log._addresses import etcd_address
from curp.log._commits import CommitLog
from curp.log._copying import copy_log
from curp.log._creation import log_id, new_log
from curp.log._engine import NewEntry
from curp.log._errors import LogExists, LogMoved
from curp.log._opening import group_of, open_new
from curp.log._owner import GROUPS
from sharedlog._engines.etcd.calls import STATUS
from sharedlog._engines.etcd.client import Client
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb
from tests.compat import group_logs
from tests.compat.group_logs import CURRENT, LOG_ID, SCHEMA, check

_HERE = Path(__file__).parent


@pytest.fixture
def url(request, tmp_path):
    """A log as an earlier release left it."""
    name = request.param
    text, store = (_HERE / name).read_text(), name.split("_")[1]
    if store == "sqlite":
        path = tmp_path / "log.db"
        group_logs.load_sqlite(path, text)
        return f"sqlite:///{path}?group=bank"
    server = request.getfixturevalue(f"shared_{store}")
    group = f"bank-{secrets.token_hex(4)}"
    if store == "redis":
        with server.client() as client:
            group_logs.load_redis(client, text, group)
    elif store == "postgres":
        with server.connect() as connection:
            for schema in (SCHEMA, f"{SCHEMA}_2"):
                connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
            group_logs.load_postgres(connection, text)
        return server.url(group="bank", schema=SCHEMA)
    else:
        base = server.url(group=group).partition("?")[0]
        with closing(Client(etcd_address(base, {}), GROUPS)) as client:
            status = client.call(STATUS, pb.StatusRequest(), again=True)
            group_logs.load_etcd(client, text, group, status.header.cluster_id)
    return server.url(group=group)


def _logs(layout):
    return [name for name in sorted(CURRENT) if f"_{layout}." in name]


@pytest.mark.parametrize("url", _logs(1), indirect=True)
def test_a_log_of_an_earlier_format_is_served_from_and_moved(url, tmp_path):
    """With all that it holds; under the newest format it has its id still (DESIGN §7)."""
    with closing(open_engine(url)) as engine:
        assert not isinstance(engine, CommitLog)
        check(engine)
    with pytest.raises(LogExists):
        open_new(url, new_log())
    target = f"sqlite:///{tmp_path}/newest.db?group={group_of(url)}"
    assert copy_log(url, target).log == LOG_ID
    with closing(open_engine(target)) as engine:
        assert isinstance(engine, CommitLog)
        check(engine)
        assert log_id(engine) == LOG_ID
        number = engine.take_leadership("r1", "127.0.0.1:1", term_s=60.0)
        assert number > 2
    with pytest.raises(LogMoved):
        open_engine(url)


@pytest.mark.parametrize("url", _logs(2), indirect=True)
def test_a_log_of_the_newest_format_goes_on(url):
    """As the release that introduced it left it: all is there, and what follows it (DESIGN §7)."""
    with closing(open_engine(url)) as engine:
        assert isinstance(engine, CommitLog)
        check(engine)
        number = engine.take_leadership("r2", "127.0.0.1:2", term_s=60.0)
        assert number == 2
        named = {"configuration": number, "expected_tail": 7, "append_id": bytes(16)}
        assert engine.append([NewEntry(b"more", ("t",))], **named) == 8
    with pytest.raises(LogExists):
        open_new(url, new_log())
    with closing(open_engine(url)) as engine:
        assert [entry.lsn for entry in engine.read(2, tag="t")] == [3, 4, 5, 6, 8]
