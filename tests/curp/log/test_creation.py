"""Logs are created explicitly; a lost one does not start over (DESIGN §7)."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

import curp
from curp._cli.command import main
from curp.log import create_log, open_engine
from curp.log._creation import LOG_ID_KEY, log_id
from curp.log._errors import LogExists, NoSuchLog
from tests.curp.log.conformance import Writer
from tests.curp.logs import created


@pytest.fixture(params=["sqlite", "redis", "postgres", "etcd"])
def url(request, tmp_path):
    """Where a log may be, of each engine."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/log.db?group=bank"
    server = request.getfixturevalue(f"shared_{request.param}")
    return server.url(group=request.getfixturevalue("group"))


def test_nothing_but_init_creates_a_log(url):
    """Opened, looked at or served from, what is not there is NoSuchLog, and stays so (§7)."""
    for _ in range(2):
        with pytest.raises(NoSuchLog, match="curp init"):
            open_engine(url)
        with pytest.raises(NoSuchLog, match="curp init"):
            open_engine(url, read_only=True)
        with pytest.raises(NoSuchLog, match="curp init"):
            curp.Replica(url, name="r1", address="127.0.0.1:1")


def test_a_log_is_created_once(url):
    """Asked again it is LogExists, and what the log holds stays (DESIGN §7)."""
    drawn = create_log(url)
    with contextlib.closing(open_engine(url)) as engine:
        assert log_id(engine) == drawn != 0
        Writer(engine).append(b"a")
    with pytest.raises(LogExists):
        create_log(url)
    with contextlib.closing(open_engine(url)) as engine:
        assert (log_id(engine), engine.tail()) == (drawn, 1)
        assert engine.all_metadata() == {LOG_ID_KEY: drawn.to_bytes(8)}


def test_two_logs_have_two_ids(url):
    """The groups of one file or server do not mix either (DESIGN §7)."""
    assert create_log(url) != create_log(url.replace("?group=", "?group=other-"))


def test_the_command_creates_and_refuses(url, capsys):
    """``curp init`` says the id; on a log that is there it changes nothing, and is 1 (§7)."""
    base, _, group = url.partition("?group=")
    group, _, more = group.partition("&")
    base += f"?{more}" if more else ""
    assert main(["init", "--log", base, "--group", group]) == 0
    with contextlib.closing(open_engine(url)) as engine:
        assert f"{log_id(engine):016x}" in capsys.readouterr().out
    assert main(["init", "--log", url]) == 1
    assert "already" in capsys.readouterr().err
    assert main(["init", "--log", url, "--group", "another"]) == 1
    assert "two groups" in capsys.readouterr().err


def test_a_lost_log_is_an_error_that_names_what_to_do(tmp_path, capsys):
    """The file went: no replica starts over an empty one, and none is made (DESIGN §7)."""
    url = created(f"sqlite:///{tmp_path}/log.db?group=bank")
    with contextlib.closing(open_engine(url)) as engine:
        Writer(engine).append(b"a")
    (tmp_path / "log.db").unlink()
    served = ["serve", "examples.replicated_bank.bank:MemoryBank", "--engine", url]
    assert main([*served, "--name", "r1", "--listen", "127.0.0.1:0"]) == 1
    error = capsys.readouterr().err
    assert "lost" in error
    assert "curp init" in error
    assert not (tmp_path / "log.db").exists()


def test_an_empty_database_in_the_place_of_a_log(tmp_path):
    """An empty volume, and a file without our tables, are no logs (DESIGN §7)."""
    path = tmp_path / "log.db"
    for make in (path.touch, lambda: sqlite3.connect(path).execute("CREATE TABLE a (b)")):
        make()
        with pytest.raises(NoSuchLog):
            open_engine(f"sqlite:///{path}?group=bank")
