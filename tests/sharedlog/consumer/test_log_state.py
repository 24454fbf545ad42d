"""A consumer whose state is in the log (DESIGN-LOG §14, T4)."""

import itertools
import json
from contextlib import ExitStack, suppress
from datetime import timedelta

import pytest

import sharedlog
from sharedlog._cli import ExitCode, main
from sharedlog._consumer import carrying
from sharedlog._core.commit import Refused
from sharedlog._core.consumer import in_log, snapshots
from sharedlog._core.producers import OPEN
from sharedlog.testing import die, drain, driven, lose
from tests.helpers.sealing import seal, unseal
from tests.sharedlog.consumer.test_zombies import lapsed
from tests.sharedlog.consumer.world import LogWorld
from tests.sharedlog.places import url_of


@pytest.fixture
def small_appends(monkeypatch):
    """An append takes three messages: what a transaction has does not fit."""
    monkeypatch.setattr(carrying, "APPEND_ENTRIES", 3)


@pytest.fixture
def small_snapshots(monkeypatch):
    """A snapshot is taken after each change, and has a piece for each key."""
    monkeypatch.setattr(in_log, "_SINCE_BYTES", 1)
    monkeypatch.setattr(snapshots, "_PIECE_BYTES", 1)


@pytest.fixture(params=["one append", "pending", "snapshots"])
def deployed(request):
    """Settings of a world whose transactions are one append, or more, or behind snapshots."""
    if request.param == "pending":
        request.getfixturevalue("small_appends")
        return {"copies": 3, "orders": 2, "batch": 1, "substreams": 1}
    if request.param == "snapshots":
        request.getfixturevalue("small_snapshots")
        return {"orders": 2, "batch": 1, "substreams": 1}
    return {"orders": 3, "batch": 2}


@pytest.mark.parametrize("fault", [die, lose])
def test_effects_are_those_of_one_run_wherever_a_process_dies(deployed, fault):
    """Killed before each step, or with the answer to it lost: state, outputs, position (T4)."""
    for step in itertools.count(1):
        world = LogWorld(**deployed)
        named = {"before": step} if fault is die else {"of": step}
        met = fault(world.consumer(), **named)
        drain(world.consumer())
        world.check()
        assert not world.log._engine.scan(OPEN)
        if not met:
            break
    assert step > 12


@pytest.mark.usefixtures("small_snapshots")
def test_a_step_that_comes_late_once_more_changes_nothing():
    """Neither a checkpoint nor a snapshot goes back, under one and the same fence (T4)."""
    world = LogWorld(orders=3, batch=1, substreams=1, attempts=100)
    engine, commits, tries = world.log._engine, [], []
    original = engine.commit

    def remembered(commit):
        if any(put.key.startswith("state/") for put in commit.puts):
            commits.append(commit)
        return original(commit)

    def fails_once(order, _):
        tries.append(order["what"])
        if tries.count(order["what"]) < 2:
            raise OSError("not now")

    engine.commit = remembered
    world.looks = fails_once
    with driven(world.consumer()) as process:
        process.drain()
        world.order(1)
        process.drain()
        before = engine.scan("state/")
        for each in commits:
            with pytest.raises(Refused):
                original(each)
        assert engine.scan("state/") == before
    assert len(commits) > 10
    world.check()


def test_process_after_process_dies(deployed):
    """Each later than the one before it, so that all steps of a take-over are met, too (T1)."""
    world = LogWorld(**deployed, attempts=1000)
    for step in itertools.count(1):
        if not die(world.consumer(), before=step):
            break
    world.check()
    assert step > 5


def test_a_zombie_at_each_step_changes_nothing(deployed):
    """What it has begun is refused by the fence, in the step that would write it (T1, L4)."""
    for step in itertools.count(1):
        world = LogWorld(**deployed)
        met = False

        def overtaken(number, _, world=world, step=step):
            nonlocal met
            if number == step and not met:
                met = True
                lapsed(world)
                drain(world.consumer())
                world.check()
                world.order(1)

        with driven(world.consumer()) as zombie:
            zombie.before = overtaken
            zombie.drain()
        drain(world.consumer())
        world.check()
        if not met:
            break
    assert step > 12


def test_what_a_handler_raises_undoes_its_changes_of_state():
    """With those of the messages that shared its transaction (T5)."""
    world = LogWorld(orders=6, attempts=3, dead_letters="dead")
    world.log.stream("dead", 1)
    world.refused = {"c1"}

    def changes(order, effects):
        effects.state["count c0"] = effects.state.get("count c0", 0)
        if order["customer"] == "c1":
            effects.state["never"] = 1
            del effects.state["never"]
            effects.state["never"] = 2

    world.looks = changes
    drain(world.consumer())
    world.check()
    assert not any("never" in world.state(each) for each in range(2))
    assert len(world.log.read("dead", 0)) == 2


@pytest.mark.usefixtures("small_snapshots")
def test_what_is_behind_a_snapshot_is_trimmed():
    """The hold of the change log follows it, and nothing else is needed to recover (T4, L6)."""
    world = LogWorld(orders=0)
    for each in ("orders", "invoices", "copies"):
        world.log._place.run(_retention(each))
    world.order(6)
    drain(world.consumer())
    expected = world.bills()
    assert expected
    for _ in range(2):
        world.log.publish("invoices", b"{}")
    drain(world.consumer())
    outcome = world.log.trim()
    assert outcome.rows > 6
    assert world.bills() == expected
    world.order(3)
    drain(world.consumer())
    assert sum(map(len, world.bills().values())) > sum(map(len, expected.values()))


def _retention(name):
    from sharedlog._core.catalog import _written, find_stream
    from sharedlog._core.commit import Commit, Put

    stream = yield from find_stream(name)
    found = type(stream)(name, stream.substreams, timedelta(0))
    yield Commit((), (Put(f"stream/{name}", _written(found)),))


@pytest.mark.usefixtures("small_snapshots")
def test_pieces_of_older_snapshots_are_removed():
    """Those of one that was not finished, too (T4)."""
    world = LogWorld(orders=4, substreams=1, batch=1)
    with driven(world.consumer()) as process:

        def kill(number, _):
            if number == 14:
                process.die()

        process.before = kill
        process.drain()
    assert process.dead
    for _ in range(3):
        world.order(2)
        drain(world.consumer())
    keys = world.log._engine.scan("state/")
    newest = world.changelog(0).snapshot
    pieces = [key for key in keys if "/piece/" in key]
    assert pieces
    assert all(key.startswith(f"state/billing/orders/0/piece/{newest.id}/") for key in pieces)
    assert len(pieces) == newest.pieces
    assert "state/billing/orders/0/writing" not in keys


@pytest.mark.usefixtures("small_snapshots")
@pytest.mark.parametrize("lag", [1, 2, 3])
def test_a_step_that_comes_late_while_a_snapshot_is_written_has_it_begun_anew(lag):
    """It removes pieces of one that was not finished, whose numbers the next one's have (T4)."""
    writing = "state/billing/orders/0/writing"
    for step in itertools.count(1):
        world = LogWorld(orders=4, substreams=1, batch=1)
        assert die(world.consumer(), before=step)
        engine, commits = world.log._engine, []
        if engine.get((writing,))[writing]:
            break
    original = engine.commit

    def copied(commit):
        found = original(commit)
        commits.append(commit)
        if lag < len(commits) < 40:
            with suppress(Refused):
                original(commits[-1 - lag])
        return found

    engine.commit = copied
    for _ in range(3):
        world.order(2)
        drain(world.consumer())
    engine.commit = original
    drain(world.consumer())
    world.check()
    keys, newest = engine.scan("state/"), world.changelog(0).snapshot
    assert len([key for key in keys if "/piece/" in key]) == newest.pieces
    assert writing not in keys


def test_a_shard_that_changes_nothing_holds_nothing_back(monkeypatch):
    """Its snapshot is as of later moments; one that changed little has one after a while (L6)."""
    monkeypatch.setattr(in_log, "_ENTRIES", 40)
    monkeypatch.setattr(in_log, "_PER_ENTRY", 1000)
    world = LogWorld(orders=1)
    drain(world.consumer())
    changed, unchanged = (world.changelog(each) for each in ((1, 0) if world.state(1) else (0, 1)))
    assert (bool(changed.since), unchanged.since) == (True, 0)

    def held():
        holds = {each.tag: each.lsn for each in world.log.holds("@consumer:billing")}
        return holds[changed.tag], holds[unchanged.tag]

    def pass_time():
        for each in range(30):
            world.log.publish("invoices", json.dumps({"customer": "x", "number": each, "what": ""}))
        drain(world.consumer())

    before = held()
    pass_time()
    assert held()[0] == before[0]
    assert held()[1] >= world.log._engine.tail() - 1
    pass_time()
    assert held()[0] > before[0]
    assert world.state(0) | world.state(1) == {
        "count c0": 1,
        "c0 1": ["c0", 1, "order 1"],
    }


def test_who_stands_by_takes_over_with_a_warm_state():
    """It has read what its neighbour committed, and reads no more than what is new (T4)."""
    world = LogWorld(orders=30, substreams=2)
    with ExitStack() as stack:
        first = stack.enter_context(driven(world.consumer()))
        second = stack.enter_context(driven(world.consumer()))
        first.drain()
        for _ in range(3):
            second.round()
            first.round()
        assert len(first.shards) == len(second.shards) == 1
        (lost,) = first.shards
        warm = second._work.sharing.standbys.of(lost)
        through, table = warm.through, dict(warm.table)
        assert table == world.changelog(int(lost[-1])).table
        first._work.abandon()
        lapsed(world)
        second.round()
        assert lost in second.shards
        assert second._work.sharing.standbys.of(lost) is warm
        assert warm.through >= through
        world.order(6)
        for _ in range(5):
            second.round()
    drain(world.consumer())
    world.check()


def test_a_process_that_was_stopped_reads_what_its_successor_has_committed():
    """Also if it reads on in the stream before it learns that the shard is another's (T1, T4)."""
    world = LogWorld(orders=2, substreams=1)
    with driven(world.consumer()) as zombie:
        zombie.drain()
        shard = zombie._work._own["orders/0"].shard
        lapsed(world)
        world.order(2)
        drain(world.consumer())
        world.log._place.run(shard.keeper.pass_by(0, world.log._place.engine.tail()))
        world.order(2)
        zombie.drain()
        assert zombie.shards == ["orders/0"]
    world.check()


@pytest.mark.usefixtures("small_snapshots")
def test_who_stood_by_and_was_stopped_begins_with_the_newest_snapshot():
    """What it had read no further than is trimmed since: it is no error (T4, L6)."""
    world = LogWorld(orders=0, substreams=1)
    for each in ("orders", "invoices", "copies"):
        world.log._place.run(_retention(each))
    world.order(3)
    drain(world.consumer())
    stopped = world.changelog(0)
    assert stopped.snapshot.pieces
    stopped._through, stopped._reader = stopped.snapshot.through, None
    before = stopped.through
    world.order(3)
    drain(world.consumer())
    drain(world.consumer())
    assert world.log.trim().trimmed.whole > before + 1
    while world.log._place.run(stopped.read()):
        pass
    assert stopped.table == world.changelog(0).table


def test_no_standby_keeps_what_it_does_not_own():
    """Where a process is told so its memory has its own substreams alone (T4)."""
    world = LogWorld(orders=10, substreams=2, standby=False)
    with ExitStack() as stack:
        first = stack.enter_context(driven(world.consumer()))
        second = stack.enter_context(driven(world.consumer()))
        for _ in range(4):
            first.round()
            second.round()
        assert len(first.shards) == len(second.shards) == 1
        assert list(first._work.sharing.standbys._logs) == first.shards
    drain(world.consumer())
    world.check()


def test_the_state_is_a_mapping_of_what_is_json_or_bytes():
    """Values are copies; what is neither is the handler's error, and so is what is too large."""
    world = LogWorld(orders=0, substreams=1)
    world.log.publish("orders", b'{"customer": "c0", "what": "it"}', key="c0")
    refused = []

    def looks(_, effects):
        state = effects.state
        assert (len(state), list(state), "a" in state, 7 in state) == (0, [], False, False)
        state.update({"a": {"b": [1, None, "x"]}, "b": b"\x00raw", "c": 1.5})
        state["a"]["b"].append("not in it")
        assert state["a"] == {"b": [1, None, "x"]}
        assert (state["b"], state.pop("c"), len(state)) == (b"\x00raw", 1.5, 2)
        assert sorted(state) == ["a", "b"]
        del state["a"]
        for key, value in [
            ("", 1),
            ("k" * 513, 1),
            ("k", bytes(300_000)),
            ("k", {1, 2}),
            ("k", float("nan")),
            (7, 1),
        ]:
            with pytest.raises(sharedlog.InvalidRequest):
                state[key] = value
            refused.append(key)
        with pytest.raises(KeyError):
            del state["a"]
        with pytest.raises(sharedlog.InvalidRequest, match=r"effects\.state"):
            _ = effects.connection
        world.kept = state

    world.looks = looks
    drain(world.consumer())
    assert len(refused) == 6
    assert world.state(0)["b"] == b"\x00raw"
    assert "a" not in world.state(0)
    with pytest.raises(sharedlog.InvalidRequest, match="has ended"):
        world.kept["a"] = 1


def test_effects_in_a_database_have_no_state(tmp_path):
    """And say where they are."""
    world = sharedlog.create("memory:")
    world.stream("orders", 1)
    world.publish("orders", b"1")
    consumer = sharedlog.Consumer(world, "a", ["orders"], f"sqlite:///{tmp_path / 'a.db'}")
    errors = []

    @consumer.on("orders", bytes)
    def look(_, effects):
        with pytest.raises(sharedlog.InvalidRequest, match=r"effects\.connection") as caught:
            _ = effects.state
        errors.append(caught)

    drain(consumer)
    assert errors


def test_a_sealed_log_has_its_states_sealed():
    """Changes and snapshots, as its messages; without the key nothing is guessed (T4)."""

    place = "memory:sealed-states"
    with sharedlog.create(place, seal=seal, unseal=unseal) as log:
        log.stream("orders", 1)

        def consumer(of):
            made = sharedlog.Consumer(of, "a", ["orders"], "log")

            @made.on("orders", str)
            def count(order, effects):
                effects.state[order] = "plain text"

            return made

        for each in range(3):
            log.publish("orders", f"order {each}")
        drain(consumer(log))
        rows = log._engine.read(0, 100)
        assert not any(b"plain text" in each.body for each in rows.rows)
        with sharedlog.open(place) as other, pytest.raises(sharedlog.SealedMessage):
            drain(consumer(other))


def test_a_log_that_was_restored_has_its_states_with_it(tmp_path):
    """Nothing is anywhere else: it goes on at once, from where the backup was (T4)."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    world = LogWorld(orders=3, url=url)
    drain(world.consumer())
    world.check()
    world.log.close()
    assert main(["restored", url, "--yes"]) == ExitCode.DONE
    world.log = sharedlog.open(url)
    world.order(3)
    drain(world.consumer())
    world.check()
    assert main(["verify", url]) == ExitCode.DONE
    world.log.close()


def test_operators_see_substreams_and_no_change_logs(tmp_path, capsys):
    """``sharedlog consumers`` lists what is consumed."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    world = LogWorld(orders=3, url=url)
    drain(world.consumer())
    world.log.close()
    assert main(["consumers", url, "--json"]) == ExitCode.DONE
    rows = json.loads(capsys.readouterr().out)
    assert [each["substream"] for each in rows] == ["orders/0", "orders/1"]


@pytest.mark.usefixtures("small_snapshots")
def test_a_consumer_that_is_forgotten_begins_anew(tmp_path):
    """By the documented commands: its states are gone, and what they took in the log (T4)."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    world = LogWorld(orders=3, url=url)
    drain(world.consumer())
    bills = world.bills()
    for substream in range(2):
        name = f"@consumer:billing:orders/{substream}"
        assert main(["forget", url, name, "--yes"]) == ExitCode.DONE
    assert not world.log._engine.scan("state/")
    with pytest.raises(sharedlog.StoreWentBack):
        drain(world.consumer())
    assert main(["holds", url, "--forget", "@consumer:billing", "--yes"]) == ExitCode.DONE
    drain(world.consumer())
    assert world.bills() == bills
    world.log.close()


@pytest.mark.usefixtures("small_appends", "small_snapshots")
@pytest.mark.parametrize("engine", ["redis", "etcd", "postgres"])
def test_every_engine_keeps_states(engine, tmp_path, request):
    """Appends, markers, snapshots, and what a process that dies leaves (T4)."""
    world = LogWorld(
        orders=2, copies=3, substreams=1, url=url_of(engine, tmp_path, request.getfixturevalue)
    )
    for step in (8, 12):
        die(world.consumer(), before=step)
    drain(world.consumer())
    world.check()
    world.order(1)
    drain(world.consumer())
    world.check()
    assert world.changelog(0).snapshot.pieces
    world.log.close()
