"""``sharedlog relay``, killed at a point of its work (DESIGN-LOG §12, L3, L4)."""

import json
from contextlib import closing

import pytest

import sharedlog
from sharedlog._cli import ExitCode, main
from tests.helpers.processes import started
from tests.sharedlog.outbox.conftest import SqliteDatabase

pytestmark = pytest.mark.faults


@pytest.mark.slow
@pytest.mark.parametrize(("point", "appended"), [("before", []), ("after", ["a", "b"])])
def test_a_relay_that_is_killed_loses_and_doubles_nothing(
    point, appended, tmp_path, monkeypatch, capsys
):
    """Before its append, and behind it before that is noted: a cron job goes on from there."""
    # Of the one that goes on, and takes the killed one for gone soon.
    monkeypatch.setattr("sharedlog._outbox.relay._PATIENCE_S", 0.2)
    url, database = f"sqlite:///{tmp_path / 'log.db'}", SqliteDatabase(tmp_path / "app.db")

    def publish(*texts):
        with closing(database.connect()) as connection, connection:
            for each in texts:
                sharedlog.outbox(connection, log).publish("orders", each)

    def left():
        with closing(database.connect()) as connection:
            return connection.execute("SELECT count(*) FROM sharedlog_outbox_message").fetchone()[0]

    def texts():
        return [each.text for each in log.read("orders", 0)]

    def relayed():
        assert main([*command, "--once", "--json"]) == ExitCode.DONE
        return json.loads(capsys.readouterr().out)["relayed"]

    command = ["relay", url, "--from", database.url]
    with sharedlog.create(url) as log:
        log.stream("orders", substreams=1)
        with closing(database.connect()) as connection, connection:
            sharedlog.create_outbox(connection, log)
        publish("a", "b")
        module = "tests.sharedlog.outbox.stopping"
        with started(module, point, *command, log=tmp_path / "errors") as process:
            assert process.line() == "here"
            process.kill()
        assert (texts(), left()) == (appended, 2)
        publish("c")
        assert relayed() == 3 - len(appended)
        assert (texts(), left()) == (["a", "b", "c"], 0)
        assert relayed() == 0
