"""Operators' commands for a consumer, and their answers (DESIGN-LOG §14, T1, T5, T6)."""

import itertools
import json
import sqlite3
from contextlib import closing

import pytest

import rifl
import sharedlog
from sharedlog._cli import ExitCode, main
from sharedlog._consumer import working
from sharedlog._core.consumer.operating import reset
from sharedlog.testing import die, drain, driven
from tests.echo import METHOD, served
from tests.helpers.log_servers import shared_postgres, shared_redis
from tests.sharedlog.consumer.test_redis import RedisWorld
from tests.sharedlog.consumer.world import PostgresDatabase, World

__all__ = ["shared_postgres", "shared_redis"]


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'log.db'}"


@pytest.fixture
def command(url, capsys):
    """Run ``sharedlog consumers`` on the test's log; what it prints, in JSON."""

    def run(*arguments, code=ExitCode.DONE):
        assert main(["consumers", url, *arguments, "--json"]) == code
        printed = capsys.readouterr().out
        return json.loads(printed) if code == ExitCode.DONE else None

    return run


def emptied(world):
    with closing(world.connect()) as connection, connection:
        connection.execute("DELETE FROM bill")


def test_a_paused_consumer_does_nothing_until_it_is_resumed(tmp_path, url, command):
    """Who has its substreams lets them go, and nobody takes them; attempts stay counted (T1)."""
    world = World(tmp_path, orders=3, url=url)
    with driven(world.consumer()) as process:
        process.drain()
        assert command("--pause", "billing") == {"paused": ["orders/0", "orders/1"]}
        process.round()
        assert process.shards == []
        world.order(3)
        assert process.drain() == 0
        assert {each["state"] for each in command()} == {"paused"}
        assert command("--pause", "billing") == {"paused": []}
        assert command("--resume", "billing") == {"resumed": ["orders/0", "orders/1"]}
        process.drain()
    world.check()
    command("--pause", "nobody", code=ExitCode.NOT_FOUND)
    world.log.close()


def test_a_stopped_substream_is_told_through_where_it_is_done(tmp_path, url, command, monkeypatch):
    """Its hold is moved as it stops: what came before can be trimmed (T1, T5)."""
    world = World(tmp_path, orders=3, url=url, substreams=1, attempts=1)
    world.refused = {"c2"}
    # All of it takes less time than holds are moved after.
    monkeypatch.setattr(working, "_HELD_S", float("inf"))
    with driven(world.consumer()) as process:
        process.drain()
        (row,) = command()
    orders = [each.position for each in world.log.read("orders", 0)]
    done = sum(len(each) for each in world.bills().values())
    assert (row["state"], row["position"]) == ("stopped", str(orders[done - 1]))
    world.log.close()


@pytest.mark.parametrize("step", [-2, -1], ids=["its-hold", "its-stop"])
def test_a_log_that_is_away_as_a_substream_stops_is_asked_again(
    tmp_path, url, command, monkeypatch, step
):
    """The process goes on, and the function does not run again for the message (T1, T5)."""
    monkeypatch.setattr(working, "_HELD_S", float("inf"))
    ran, steps = [], []
    for away in (False, True):
        (directory := tmp_path / str(away)).mkdir()
        world = World(
            directory, orders=3, url=f"sqlite:///{directory}/log.db", substreams=1, attempts=1
        )
        world.refused = {"c2"}
        runs = []
        world.looks = lambda order, effects, runs=runs: runs.append(order["customer"])
        with driven(world.consumer()) as process:

            def strike(number, _):
                if number == steps[0] + 1 + step:
                    steps[0] = 0
                    raise sharedlog.LogUnavailable("no answer")

            if away:
                process.before = strike
            process.drain()
            steps[:] = steps or [len(process.steps)]
            assert process.shards == []
        ran.append(runs)
        assert main(["consumers", f"sqlite:///{directory}/log.db"]) == ExitCode.DONE
        world.log.close()
    assert steps == [0]
    assert ran[0] == ran[1]


def test_the_command_tells_attempts_errors_and_dead_letters(tmp_path, url, command, capsys):
    """Of each substream, also once nobody runs it (T5)."""
    world = World(tmp_path, orders=2, url=url, substreams=1, attempts=3, dead_letters="dead")
    world.log.stream("dead", substreams=1)
    world.refused = {"c0"}
    with driven(world.consumer()) as process:
        process.round()
        process.round()
        (row,) = command()
        assert (row["attempts"], row["dead_letters"]) == (1, 0)
        assert "c0 is not billed" in row["error"]
        process.drain()
    (row,) = command()
    assert (row["attempts"], row["error"], row["dead_letters"]) == (0, "", 1)
    assert main(["consumers", url]) == ExitCode.DONE
    assert "dead letters" in capsys.readouterr().out
    # What another process counts goes on from there.
    world.order(2)
    drain(world.consumer())
    assert command()[0]["dead_letters"] == 2
    world.log.close()


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def new_world(request, tmp_path, url):
    def make(**settings):
        if request.param == "redis":
            return RedisWorld(request.getfixturevalue("shared_redis"), False, **settings)
        if request.param == "postgres":
            server = request.getfixturevalue("shared_postgres")
            return World(PostgresDatabase(server), **settings)
        return World(tmp_path / f"{next(count)}", **settings)

    count = itertools.count()
    return make


def name_of(world):
    return getattr(world, "name", "billing")


def reset_to(world, start):
    log = world.log
    tags = [f"orders/{at}" for at in range(world.substreams)]
    starts = start if isinstance(start, dict) else dict.fromkeys(tags, start)
    return log._run(reset(name_of(world), starts, log.incarnation, 0, 10**12))


def test_a_reset_reads_anew_from_where_it_says_wherever_a_process_dies(new_world):
    """Once, in a step of the store; outputs come again, as their effects do (T1)."""
    for step in range(1, 200):
        world = new_world(orders=2, substreams=1)
        drain(world.consumer())
        once = [what for rows in world.bills().values() for _, what in rows]
        assert reset_to(world, "beginning") == 1
        died = die(world.consumer(), before=step)
        drain(world.consumer())
        assert [what for rows in world.bills().values() for _, what in sorted(rows)].count(
            once[0]
        ) == 2
        assert sum(map(len, world.invoices().values())) == 4
        if not died:
            break
        world.log.close()
    assert step > 5


def test_a_reset_to_a_position_or_the_end_goes_on_behind_it(new_world):
    """And a second reset has a higher epoch."""
    world = new_world(orders=0, substreams=1)
    positions = [
        world.log.publish("orders", json.dumps({"customer": "c0", "what": f"order {at}"}), key="c0")
        for at in range(4)
    ]
    drain(world.consumer())
    assert reset_to(world, positions[1]) == 1
    drain(world.consumer())
    names = [what for _, what in world.bills()["c0"]]
    assert names == [f"order {at}" for at in (0, 1, 2, 3, 2, 3)]
    world.order(1)
    assert reset_to(world, "end") == 2
    drain(world.consumer())
    assert len(world.bills()["c0"]) == 6


def test_a_reset_repeats_the_calls(new_world, monkeypatch):
    """Under the new epoch they are other calls (T6)."""
    monkeypatch.setenv("RIFL_SESSION_SECRET", "known to the tests")
    ran = []
    with (
        rifl.Deduplicator("memory:") as dedup,
        served(dedup, lambda request, _: ran.append(request) or b"") as target,
    ):
        world = new_world(orders=1, substreams=1)
        world.looks = lambda _, effects: effects.channel(target).unary_unary(METHOD)(b"once")
        drain(world.consumer())
        reset_to(world, "beginning")
        drain(world.consumer())
        drain(world.consumer())
    assert len(ran) == 2


def test_the_command_resets_what_nobody_runs(tmp_path, url, command):
    """By a time, too; where a process has it the command says so, and does nothing."""
    world = World(tmp_path, orders=2, url=url)
    with driven(world.consumer()) as process:
        process.drain()
        code = main(["consumers", url, "--reset", "billing", "--to", "beginning"])
        assert code != ExitCode.DONE
    emptied(world)
    assert command("--reset", "billing", "--to", "1h") == {"reset": "billing", "epoch": 1}
    drain(world.consumer())
    assert world.bills() == world.expected()
    command("--reset", "billing", code=ExitCode.USAGE)
    command("--to", "end", code=ExitCode.USAGE)
    world.log.close()


def test_a_change_of_code_reads_anew_under_another_name(tmp_path, url):
    """The new consumer's effects are those of one run of the new code, beside the old one's."""
    world = World(tmp_path, orders=3, url=url)
    drain(world.consumer())
    with closing(sqlite3.connect(world.database.file)) as connection, connection:
        connection.execute("CREATE TABLE total (customer TEXT PRIMARY KEY, orders INTEGER)")
    other = sharedlog.Consumer(world.log, "billing-2", ["orders"], world.database.url)

    @other.on("orders", json.loads)
    def count(order, effects):
        effects.connection.execute(
            "INSERT INTO total VALUES (?, 1) ON CONFLICT DO UPDATE SET orders = orders + 1",
            (order["customer"],),
        )

    drain(other)
    with closing(world.connect()) as connection:
        totals = dict(connection.execute("SELECT * FROM total"))
    assert totals == {customer: len(rows) for customer, rows in world.expected().items()}
    world.check()
    world.log.close()


def test_a_consumer_whose_state_is_in_the_log_is_not_reset(tmp_path):
    """Its changes would be made to a state that has them: another name begins with none."""
    world = World(tmp_path, orders=1)
    consumer = sharedlog.Consumer(world.log, "billing", ["orders"], "log")

    @consumer.on("orders", bytes)
    def count(_, effects):
        effects.state["count"] = b"1"

    drain(consumer)
    with pytest.raises(sharedlog.InvalidRequest, match="another name"):
        reset_to(world, "beginning")
