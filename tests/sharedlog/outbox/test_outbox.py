"""An outbox in the application's database, and its relay to a log elsewhere (DESIGN-LOG §12)."""

import asyncio
import threading
from contextlib import closing, suppress

import aiosqlite
import psycopg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

import sharedlog
import sharedlog.aio
from sharedlog._cli import ExitCode, main
from sharedlog._core.errors import LogUnavailable
from sharedlog._core.named import forget
from sharedlog._core.outbox import Mark
from sharedlog._core.restoring import restore
from sharedlog._outbox.box_database import open_database
from tests.helpers.waiting import until
from tests.sharedlog.outbox.conftest import SqliteDatabase
from tests.sharedlog.served import served


def texts(log):
    """What readers get."""
    return [message.text for message in log.read("orders", 0)]


def publish(database, log, *names, name="outbox"):
    """Effects and events, in one transaction."""
    with closing(database.connect()) as connection, connection:
        box = sharedlog.outbox(connection, log, name)
        for each in names:
            connection.execute(f"INSERT INTO orders VALUES ('{each}')")  # noqa: S608 - our own
            box.publish("orders", each, key="customer")


def relay_all(database, log):
    """Relay what waits."""
    with closing(sharedlog.relay(database.url, log)) as relay:
        return relay.round()


def box_of(database, name="outbox"):
    """The outbox as a relay sees it."""
    with closing(open_database(database.url)) as opened:
        return opened.look(name, 100)


def test_what_commits_is_relayed_once_and_removed(database, log):
    """In the order of the commits; what is rolled back never was (§12)."""
    publish(database, log, "a", "b")
    with closing(database.connect()) as connection:
        sharedlog.outbox(connection, log).publish("orders", "never")
        connection.rollback()
    publish(database, log, "c")
    assert texts(log) == []
    assert [message.seq for message in box_of(database).waiting] == [1, 2, 3]
    assert relay_all(database, log) == 3
    assert relay_all(database, log) == 0
    assert texts(log) == ["a", "b", "c"]
    box = box_of(database)
    assert (box.head, list(box.waiting)) == (box.done, [])
    publish(database, log, "d")
    assert relay_all(database, log) == 1
    assert texts(log) == ["a", "b", "c", "d"]


def test_savepoints_take_their_messages_along(database, log):
    """Numbers stay dense: the head goes back with them."""
    with closing(database.connect()) as connection:
        box = sharedlog.outbox(connection, log)
        box.publish("orders", "before", headers={"source": "shop"})
        connection.execute("SAVEPOINT mine")
        box.publish("orders", "undone")
        connection.execute("ROLLBACK TO mine")
        box.publish("orders", "behind")
        connection.commit()
    assert relay_all(database, log) == 2
    assert texts(log) == ["before", "behind"]
    assert log.read("orders", 0)[0].headers == {"source": b"shop"}


def test_a_relay_that_dies_before_it_says_so_doubles_nothing(database, log, monkeypatch):
    """The log has the name's highest: the next one goes on behind that (L3)."""
    publish(database, log, "a", "b")
    relay = sharedlog.relay(database.url, log)

    def die(*_):
        raise LogUnavailable("killed")

    monkeypatch.setattr(relay._database, "done", die)
    with pytest.raises(LogUnavailable):
        relay.round()
    relay.close()
    publish(database, log, "c")
    assert relay_all(database, log) == 1
    assert texts(log) == ["a", "b", "c"]


def test_writers_that_meet_have_one_order(database, log):
    """Each message once, each writer's in its order, while a relay works (§12)."""

    def work(writer):
        for number in range(10):
            publish(database, log, f"{writer}.{number}")

    threads = [threading.Thread(target=work, args=(each,)) for each in range(3)]
    with sharedlog.relay(database.url, log) as relay:
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        until(lambda: len(texts(log)) == 30, "all are there")
        assert relay.error is None
    for writer in range(3):
        mine = [each for each in texts(log) if each.startswith(f"{writer}.")]
        assert mine == [f"{writer}.{number}" for number in range(10)]


def test_a_relay_is_entered_once(database, log):
    """Within itself, and when it was closed; the first one goes on (§12)."""
    with sharedlog.relay(database.url, log) as relay:
        with pytest.raises(sharedlog.InvalidRequest, match="once"):
            relay.__enter__()
        publish(database, log, "a")
        until(lambda: texts(log) == ["a"], "it relays")
    unused = sharedlog.relay(database.url, log)
    unused.close()
    for closed in (relay, unused):
        with pytest.raises(sharedlog.InvalidRequest, match="once"), closed:
            pass


def test_one_relay_works_and_another_takes_over(database, log):
    """By a fence of the log's (§12, L4)."""
    publish(database, log, "a")
    first, second = (sharedlog.relay(database.url, log) for _ in range(2))
    with closing(first), closing(second):
        assert (first.round(), first.works) == (1, True)
        publish(database, log, "b")
        assert (second.round(), second.works) == (0, False)
        first.close()
        assert (second.round(), second.works) == (1, True)
    assert texts(log) == ["a", "b"]


def test_a_cron_job_takes_over_from_who_is_gone_and_from_nobody_else(database, log, monkeypatch):
    """Each is a new process, which has seen nothing before: it looks long enough (§12, L4)."""
    publish(database, log, "a")
    killed, mine = (sharedlog.relay(database.url, log) for _ in range(2))
    with closing(killed), closing(mine):
        assert killed.round() == 1
        publish(database, log, "b")
        monkeypatch.setattr(mine._rounds._duty, "_patience_s", 0.2)
        assert (mine.once(), mine.works) == (1, True)
    monkeypatch.setattr("sharedlog._outbox.relay._WORK_S", 0.0)
    with sharedlog.relay(database.url, log) as working:
        until(lambda: working.works, "it works")
        with closing(sharedlog.relay(database.url, log)) as other:
            assert (other.once(), other.works) == (0, False)
    assert texts(log) == ["a", "b"]


def test_what_the_predecessor_notes_late_is_no_restored_database(database, log, monkeypatch):
    """It lost its duty between its append and its note, which its successor meets (L4)."""
    publish(database, log, "a", "b")
    first, second = (sharedlog.relay(database.url, log) for _ in range(2))
    with closing(first), closing(second):
        noting = []
        monkeypatch.setattr(first._database, "done", lambda *given: noting.append(given))
        monkeypatch.setattr(first, "_stops", lambda: bool(noting))
        assert first.round() == 2
        first._rounds._leave()
        monkeypatch.undo()
        publish(database, log, "c")
        look = second._database.look

        def look_before_the_note(*given):
            found = look(*given)
            while noting:
                first._database.done(*noting.pop())
            return found

        monkeypatch.setattr(second._database, "look", look_before_the_note)
        assert second.round() == 1
    assert texts(log) == ["a", "b", "c"]


def test_a_relay_that_stopped_for_good_stands_for_its_duty_no_more(database, log):
    """A healthy relay takes over at once, and the stopped one says why again (L4)."""
    publish(database, log, "a")
    relay_all(database, log)
    copy = database.copy()
    publish(database, log, "b")
    relay_all(database, log)
    newest = database.copy()
    database.restore(copy)
    first, second = (sharedlog.relay(database.url, log) for _ in range(2))
    with closing(second), first:
        until(lambda: first.error is not None and not first.works, "it gave its duty up")
        database.restore(newest)
        publish(database, log, "c")
        assert (second.round(), second.works) == (1, True)
        with pytest.raises(sharedlog.OutboxWentBack):
            first.round()
    assert texts(log) == ["a", "b", "c"]


@pytest.mark.parametrize("since", [[], ["other"], ["other"] * 5])
def test_a_database_that_was_restored_is_noticed(database, log, since):
    """It ends below what the log has, there, or above, with other messages: stop (§12)."""
    publish(database, log, "a")
    relay_all(database, log)
    copy = database.copy()
    publish(database, log, "lost")
    relay_all(database, log)
    database.restore(copy)
    for each in since:
        publish(database, log, each)
    with (
        closing(sharedlog.relay(database.url, log)) as relay,
        pytest.raises(sharedlog.OutboxWentBack) as caught,
    ):
        relay.round()
    assert caught.value.appended is False
    assert texts(log) == ["a", "lost"]


def test_a_database_that_is_restored_under_a_relay_stops_it(database, log):
    """The thread relays nothing more, and says why."""
    found = []
    publish(database, log, "a")
    relay_all(database, log)
    copy = database.copy()
    with sharedlog.relay(database.url, log, told=found.append) as relay:
        publish(database, log, "b")
        until(lambda: 1 in found, "it is there, and acknowledged")
        database.restore(copy)
        publish(database, log, "other")
        until(lambda: relay.error in found, "it stops, and says so")
        assert isinstance(relay.error, sharedlog.OutboxWentBack)
    assert texts(log) == ["a", "b"]


def test_the_same_messages_again_after_a_restore_are_found(database, log):
    """Restored to before the acknowledgement only: the log has what waits (L3)."""
    publish(database, log, "a", "b")
    copy = database.copy()
    relay_all(database, log)
    database.restore(copy)
    publish(database, log, "c")
    assert relay_all(database, log) == 1
    assert texts(log) == ["a", "b", "c"]


def test_a_log_that_lacks_what_it_acknowledged_is_noticed(database, log):
    """It was restored, or somebody forgot the name: nothing is appended behind a gap (L3)."""
    publish(database, log, "a")
    relay_all(database, log)
    log._run(forget(box_of(database).producer))
    publish(database, log, "b")
    with pytest.raises(sharedlog.PredecessorMismatch):
        relay_all(database, log)
    assert texts(log) == ["a"]


def test_an_outbox_of_another_log_is_refused(database, log):
    """By its incarnation: to publish, to relay, to make it again."""
    with closing(database.connect()) as connection, sharedlog.create("memory:") as other:
        other.stream("orders", substreams=1)
        with pytest.raises(sharedlog.LogForked):
            sharedlog.outbox(connection, other).publish("orders", "lost")
        connection.rollback()
        with pytest.raises(sharedlog.LogForked):
            sharedlog.create_outbox(connection, other)
        connection.rollback()
        with pytest.raises(sharedlog.LogForked):
            sharedlog.relay(database.url, other)
        sharedlog.create_outbox(connection, log)
        connection.commit()
    publish(database, log, "a")
    with closing(sharedlog.relay(database.url, log)) as relay:
        log._run(restore("0123456789abcdef"))
        with pytest.raises(sharedlog.LogForked):
            relay.round()


def test_outboxes_have_names(database, log):
    """Each an order of its own; one that is not there is not made by using it."""
    with closing(database.connect()) as connection:
        with pytest.raises(sharedlog.NoSuchOutbox):
            sharedlog.outbox(connection, log, "audit").publish("orders", "lost")
        connection.rollback()
        sharedlog.create_outbox(connection, log, "audit")
        connection.commit()
    with pytest.raises(sharedlog.NoSuchOutbox):
        sharedlog.relay(database.url, log, "none")
    with pytest.raises(sharedlog.InvalidRequest):
        sharedlog.outbox(None, log, "it's")
    publish(database, log, "a")
    publish(database, log, "b", name="audit")
    with closing(sharedlog.relay(database.url, log, "audit")) as relay:
        assert relay.round() == 1
    assert texts(log) == ["b"]


def test_what_could_not_commit_with_the_effect_is_refused(database, log):
    """Autocommit, no connection at all, a message that is too large: nothing waits (§12)."""
    with closing(database.connect()) as connection:
        box = sharedlog.outbox(connection, log)
        with pytest.raises(sharedlog.InvalidRequest):
            box.publish("orders", b"x" * (1 << 20))
        with pytest.raises(sharedlog.NoSuchStream):
            box.publish("nothing", b"x")
        if isinstance(connection, psycopg.Connection):
            connection.autocommit = True
        else:
            connection.isolation_level = None
        with pytest.raises(sharedlog.WrongTransaction) as caught:
            box.publish("orders", "lost")
        assert caught.value.appended is False
    with pytest.raises(sharedlog.WrongTransaction):
        sharedlog.outbox(object(), log).publish("orders", "lost")
    assert list(box_of(database).waiting) == []


def test_a_message_that_was_changed_is_not_relayed(database, log):
    """The chain tells what was published; one that is missing stops the relay, too."""
    publish(database, log, "a", "b", "c")
    with closing(database.connect()) as connection, connection:
        connection.execute("DELETE FROM sharedlog_outbox_message WHERE seq = 2")
    with pytest.raises(sharedlog.CorruptLog):
        relay_all(database, log)
    assert texts(log) == []


def test_a_database_that_vanishes_is_waited_for(database, log, monkeypatch):
    """The thread goes on when it is back; what it says meanwhile is unavailable."""
    nowhere = "postgresql://127.0.0.1:1/none"
    with pytest.raises(sharedlog.LogUnavailable):
        sharedlog.relay(nowhere if "postgresql" in database.url else f"{database.url}_", log)
    with pytest.raises(sharedlog.InvalidRequest):
        sharedlog.relay("mysql://nobody", log)
    found = []
    relay = sharedlog.relay(database.url, log, told=found.append)
    connect = relay._database._connect
    relay._database.close()
    monkeypatch.setattr(relay._database, "_connect", lambda: 1 / 0)
    with relay:
        until(lambda: any(isinstance(each, LogUnavailable) for each in found), "it says so")
        monkeypatch.setattr(relay._database, "_connect", connect)
        publish(database, log, "a")
        until(lambda: texts(log) == ["a"], "it goes on")


def test_asynchronous_connections(database, log):
    """aiosqlite's, psycopg's, and SQLAlchemy's over them."""

    async def work():
        mine = sharedlog.aio.Log(log, None)
        if database.url.startswith("sqlite"):
            connecting = aiosqlite.connect(database.path)
        else:
            connecting = await psycopg.AsyncConnection.connect(database.url)
        async with connecting as connection:
            await sharedlog.aio.create_outbox(connection, mine, "second")
            await sharedlog.aio.outbox(connection, mine).publish("orders", "aio")
            await connection.commit()
            await sharedlog.aio.outbox(connection, mine).publish("orders", "undone")
            await connection.rollback()
        engine = create_async_engine(database.aio_url)
        async with engine.begin() as connection:
            await sharedlog.aio.outbox(connection, mine).publish("orders", "alchemy")
        await engine.dispose()
        with closing(database.connect()) as connection, connection:
            await sharedlog.aio.outbox(connection, mine).publish("orders", "blocking")

    log.streams()
    publish(database, log, "known")
    asyncio.run(work())
    relay_all(database, log)
    assert texts(log) == ["known", "aio", "alchemy", "blocking"]
    assert box_of(database, "second").head == Mark(0, bytes(16))


def test_a_failed_transaction_is_refused(database, log):
    """Nothing of it is relayed."""
    with closing(database.connect()) as connection:
        with suppress(Exception):
            connection.execute("SELECT nonsense FROM nowhere")
        if isinstance(connection, psycopg.Connection):
            with pytest.raises(sharedlog.WrongTransaction):
                sharedlog.outbox(connection, log).publish("orders", "lost")
        connection.rollback()
    assert relay_all(database, log) == 0


def test_a_command_relays(tmp_path, capsys):
    """Once, for a cron job; what stops it is an exit code and a line (§12)."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    database = SqliteDatabase(tmp_path / "app.db")
    with sharedlog.create(url) as log:
        log.stream("orders", substreams=1)
        with closing(database.connect()) as connection, connection:
            connection.execute("CREATE TABLE orders (name)")
            sharedlog.create_outbox(connection, log)
        publish(database, log, "a", "b")
        assert main(["relay", url, "--from", database.url, "--once", "--json"]) == 0
        assert capsys.readouterr().out == '{"relayed": 2}\n'
        assert texts(log) == ["a", "b"]
        copy = database.copy()
        publish(database, log, "c")
        assert main(["relay", url, "--from", database.url, "--once"]) == 0
        database.restore(copy)
        assert main(["relay", url, "--from", database.url, "--once"]) == ExitCode.GONE
        assert "restored" in capsys.readouterr().err
    command = ["relay", url, "--from", database.url, "--outbox", "none", "--once"]
    assert main(command) == ExitCode.NOT_FOUND


def test_programs_over_grpc_publish_and_the_relay_is_beside_the_log(tmp_path):
    """``append_in`` and relays want the log itself, and say so (§12)."""
    database = SqliteDatabase(tmp_path / "app.db")
    with (
        sharedlog.create(f"sqlite:///{tmp_path / 'log.db'}") as log,
        served(log) as server,
        sharedlog.open(f"grpc://{server.address}") as remote,
    ):
        log.stream("orders", substreams=1)
        with closing(database.connect()) as connection, connection:
            connection.execute("CREATE TABLE orders (name)")
            sharedlog.create_outbox(connection, remote)
            with pytest.raises(sharedlog.WrongTransaction, match="outbox"):
                remote.append_in(connection, "orders", "lost")
        publish(database, remote, "a")
        with pytest.raises(sharedlog.InvalidRequest, match="beside"):
            sharedlog.relay(database.url, remote)
        assert relay_all(database, log) == 1
        assert texts(remote) == ["a"]
