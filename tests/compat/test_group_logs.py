"""Groups' logs of this format open and go on, and those of a newer one are refused (DESIGN §7)."""

from __future__ import annotations

import secrets
from contextlib import closing

import pytest

from curp.log import open_engine
from curp.log._addresses import etcd_address
from curp.log._creation import new_log
from curp.log._errors import LogExists, NewerFormat
from curp.log._opening import open_new
from curp.log._owner import GROUPS
from curp.log._values import NewLogEntry
from sharedlog._engines.etcd.calls import STATUS
from sharedlog._engines.etcd.client import Client
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb
from tests.compat import group_logs
from tests.compat.group_logs import SCHEMA, STORES, check, file_of

# The number 1 in each file, and what the next format has in its place.
_NUMBERS = {
    "sqlite": ("'format',1", "'format',2"),
    "redis": (f'"{b"format".hex()}": "{b"1".hex()}"', f'"{b"format".hex()}": "{b"2".hex()}"'),
    "postgres": ("'format', '1'", "'format', '2'"),
    "etcd": (b'"format": 1'.hex(), b'"format": 2'.hex()),
}


@pytest.fixture(params=STORES)
def store(request):
    """Where a log is."""
    return request.param


@pytest.fixture
def load(store, request, tmp_path):
    """Write the text of a log's file into the store; the log's URL."""

    def write(text):
        if store == "sqlite":
            group_logs.load_sqlite(tmp_path / "log.db", text)
            return f"sqlite:///{tmp_path}/log.db?group=bank"
        server = request.getfixturevalue(f"shared_{store}")
        group = f"bank-{secrets.token_hex(4)}"
        url = server.url(group=group)
        if store == "redis":
            with server.client() as client:
                group_logs.load_redis(client, text, group)
        elif store == "postgres":
            with server.connect() as connection:
                connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
                group_logs.load_postgres(connection, text)
            url = server.url(group="bank", schema=SCHEMA)
        else:
            with closing(Client(etcd_address(url.partition("?")[0], {}), GROUPS)) as client:
                status = client.call(STATUS, pb.StatusRequest(), again=True)
                group_logs.load_etcd(client, text, group, status.header.cluster_id)
        return url

    return write


def test_a_log_goes_on(store, load):
    """As its file has it: all is there, and new entries follow it (DESIGN §7)."""
    url = load(file_of(store).read_text())
    with closing(open_engine(url)) as engine:
        check(engine)
        number = engine.take_leadership("r2", "127.0.0.1:2", term_s=60.0)
        assert number == 2
        named = {"configuration": number, "expected_tail": 7, "append_id": bytes(16)}
        assert engine.append([NewLogEntry(b"more", ("t",))], **named) == 8
    with pytest.raises(LogExists):
        open_new(url, new_log())
    with closing(open_engine(url)) as engine:
        assert [entry.lsn for entry in engine.read(2, tag="t")] == [3, 4, 5, 6, 8]


def test_a_log_of_a_newer_format_is_refused(store, load):
    """By each store, to those who only look, too; and no log is made beside it (DESIGN §7)."""
    this, newer = _NUMBERS[store]
    text = file_of(store).read_text()
    assert this in text
    url = load(text.replace(this, newer))
    for read_only in (False, True):
        with pytest.raises(NewerFormat, match="format 2, written by a newer release"):
            open_engine(url, read_only=read_only)
    with pytest.raises((LogExists, NewerFormat)):
        open_new(url, new_log())
