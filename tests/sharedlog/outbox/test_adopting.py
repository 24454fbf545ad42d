"""An outbox goes on with a log that was restored, by an operator's word (DESIGN-LOG §12)."""

import logging
from contextlib import closing

import pytest

import sharedlog
from sharedlog._cli import ExitCode, main
from sharedlog._core.named import forget
from sharedlog._core.outbox import relayed
from sharedlog._core.restoring import restore
from sharedlog._outbox import adopting
from tests.sharedlog.outbox.conftest import SqliteDatabase
from tests.sharedlog.outbox.test_outbox import box_of, publish, relay_all, texts
from tests.sharedlog.served import served


@pytest.fixture
def restored():
    """What a log is after its restore: the streams, and what its backup has of the outbox."""
    with sharedlog.create("memory:") as made:
        made.stream("orders", substreams=1)
        yield made


def relay_through(database, log, restored, *names):
    """Have both logs have these, as the backup does."""
    publish(database, log, *names)
    box = box_of(database)
    relay_all(database, log)
    if names:
        fence = restored.raise_fence("backup")
        restored._run(relayed(box, box.waiting, fence))


def test_what_waits_is_relayed_to_the_log_that_adopts_it(database, log, restored, caplog):
    """Once, in its order; which rows are in, the log's highest decides (L3)."""
    relay_through(database, log, restored, "a", "b")
    publish(database, log, "c", "d")
    with pytest.raises(sharedlog.LogForked, match="adopt"):
        sharedlog.relay(database.url, restored)
    with caplog.at_level(logging.WARNING):
        assert sharedlog.adopt_outbox(database.url, restored) == sharedlog.Adopted(2, None)
    assert "outbox_adopted" in caplog.text
    assert relay_all(database, restored) == 2
    assert texts(restored) == ["a", "b", "c", "d"]
    publish(database, restored, "e")
    with pytest.raises(sharedlog.LogForked):
        publish(database, log, "lost")
    assert relay_all(database, restored) == 1
    assert sharedlog.adopt_outbox(database.url, restored) == sharedlog.Adopted(0, None)
    assert texts(restored) == ["a", "b", "c", "d", "e"]


def test_what_the_log_has_and_the_outbox_never_heard_of_is_not_doubled(database, log, restored):
    """A relay died behind its append, and before its note; the backup was made then (L3)."""
    publish(database, log, "a", "b")
    copy = database.copy()
    relay_through(database, log, restored)
    box = box_of(database)
    assert box.head == box.done
    database.restore(copy)
    box = box_of(database)
    restored._run(relayed(box, box.waiting, restored.raise_fence("backup")))
    publish(database, log, "c")
    assert sharedlog.adopt_outbox(database.url, restored) == sharedlog.Adopted(1, None)
    assert relay_all(database, restored) == 1
    assert texts(restored) == ["a", "b", "c"]


def test_what_the_log_lacks_is_passed_over_by_who_says_so_only(
    database, log, restored, monkeypatch
):
    """It is told which, and told again where the operator's program died on its way (L3)."""
    relay_through(database, log, restored, "a")
    publish(database, log, "lost", "gone")
    relay_all(database, log)
    publish(database, log, "d")
    with pytest.raises(sharedlog.PredecessorMismatch, match="2 to 3") as caught:
        sharedlog.adopt_outbox(database.url, restored)
    assert caught.value.found == 1
    assert box_of(database).incarnation == log.incarnation

    def die(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(adopting, "pass_over", die)
    with pytest.raises(KeyboardInterrupt):
        sharedlog.adopt_outbox(database.url, restored, accept_loss=True)
    monkeypatch.undo()
    with pytest.raises(sharedlog.PredecessorMismatch):
        relay_all(database, restored)
    adopted = sharedlog.adopt_outbox(database.url, restored, accept_loss=True)
    assert adopted == sharedlog.Adopted(1, (2, 3))
    assert relay_all(database, restored) == 1
    assert texts(restored) == ["a", "d"]
    assert sharedlog.adopt_outbox(database.url, restored) == sharedlog.Adopted(0, None)


def test_a_log_that_has_more_than_the_outbox_does_not_adopt_it(database, log):
    """The database went back, too: which messages these are nobody knows (§12)."""
    publish(database, log, "a")
    copy = database.copy()
    publish(database, log, "b")
    relay_all(database, log)
    database.restore(copy)
    log._run(restore("0123456789abcdef"))
    with pytest.raises(sharedlog.OutboxWentBack):
        sharedlog.adopt_outbox(database.url, log, accept_loss=True)
    assert texts(log) == ["a", "b"]


def test_the_command_adopts(tmp_path, capsys):
    """With --yes, after a restore; and says what was lost (issue 17)."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    database = SqliteDatabase(tmp_path / "app.db")
    with sharedlog.create(url) as log:
        log.stream("orders", substreams=1)
        with closing(database.connect()) as connection, connection:
            connection.execute("CREATE TABLE orders (name)")
            sharedlog.create_outbox(connection, log)
        publish(database, log, "a")
        relay_all(database, log)
        log._run(forget(box_of(database).producer))
        publish(database, log, "b")
        with served(log) as server:
            command = ["relay", f"grpc://{server.address}", "--from", database.url, "--adopt"]
            assert main([*command, "--yes"]) == ExitCode.USAGE
    assert main(["restored", url, "--yes"]) == ExitCode.DONE
    relay = ["relay", url, "--from", database.url]
    assert main([*relay, "--once"]) == ExitCode.GONE
    assert "--adopt" in capsys.readouterr().err
    assert main([*relay, "--adopt"]) == ExitCode.USAGE
    capsys.readouterr()
    assert main([*relay, "--adopt", "--yes", "--json"]) == ExitCode.DONE
    assert capsys.readouterr().out == '{"waiting": 1, "lost": [1, 1]}\n'
    assert main([*relay, "--once", "--json"]) == ExitCode.DONE
    assert capsys.readouterr().out == '{"relayed": 1}\n'
