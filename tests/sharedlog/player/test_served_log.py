"""A player of a log that a server has, over gRPC (DESIGN-LOG §15)."""

import itertools
import json
from contextlib import contextmanager, suppress
from datetime import timedelta

import pytest

import sharedlog
from sharedlog._cli.command import main
from sharedlog._core.commit import Commit, Condition, NewEntry, Put, Refused, Stamp
from sharedlog._core.entry import committed_bodies
from sharedlog._core.envelope import About, pack
from sharedlog._core.errors import InvalidRequest, LogForked, NoSuchStream, NotAllowed
from sharedlog._core.player.reach import Reach
from sharedlog._service.settings import (
    AccessRule,
    BadSettings,
    ServerLimits,
    ServerSettings,
    read_settings,
)
from tests.helpers.ports import free_port
from tests.helpers.processes import started
from tests.sharedlog.player.conftest import declared
from tests.sharedlog.player.test_command import refusing
from tests.sharedlog.player.test_player import in_order, publish
from tests.sharedlog.served import served

TOKENS = {"player": b"a token of the player's", "else": b"a token of somebody else"}
PLAYER, ELSE = TOKENS
RIGHTS = ServerSettings(
    allow=(
        AccessRule(token=PLAYER, play=("play*",), publish=("deadletters",)),
        AccessRule(token=ELSE),
    )
)


@pytest.fixture
def server(log):
    """One that has the log."""
    with served(log) as made:
        yield made


@pytest.fixture
def remote(server):
    """The log, over gRPC."""
    with sharedlog.open(f"grpc://{server.address}") as opened:
        yield opened


@pytest.fixture
def as_token(log, tmp_path):
    """Open a log that is served with rights, as who shows a token."""
    with served(log, settings=RIGHTS, tokens=TOKENS) as made:

        def opened(name):
            file = tmp_path / name
            file.write_bytes(TOKENS[name])
            return sharedlog.open(f"grpc://{made.address}?token_file={file}")

        yield opened


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "batches"])
def test_what_is_there_and_what_comes_is_delivered(house, log, remote, streams):
    """In order, once, and its holds follow (P1, P5)."""
    publish(log, 30)
    fake = house.target(streams=streams)
    house.player(declared(fake), log=remote)
    fake.store.wait_for(lambda: len(fake.store.done) == 30)
    publish(log, 30, 30)
    fake.store.wait_for(lambda: len(fake.store.done) == 60)
    assert in_order(log, fake.store)
    # Where there was nothing to do they are moved on.
    last = {number: log.read("orders", number)[-1].position.lsn for number in range(2)}
    house.wait_for(
        lambda: (
            [each.tag for each in log.holds("@player:player:shop:0") if each.position is not None]
            and all(
                each.lsn >= last[int(each.tag[-1])] for each in log.holds("@player:player:shop:0")
            )
        )
    )


def test_dead_letters_are_appended_through_the_server(house, log, remote):
    """Under the player's fence, once, and an operator does the rest over gRPC, too (P7)."""
    fake = house.target(refusing("3", "4"))
    player = house.player(declared(fake, refused="dead-letter"), log=remote)
    publish(log, 10)
    fake.store.wait_for(lambda: len(fake.store.done) == 8)
    house.told_that(player, lambda told: told.dead_letters == 2)
    found = [each for number in range(8) for each in log.read("deadletters", number)]
    assert sorted(each.key for each in found) == [b"3", b"4"]


def test_operators_reach_a_player_through_the_server(house, log, server, remote, capsys):
    """Each command that works where the log is works over gRPC, too (§15)."""
    fake = house.target(refusing("3"))
    player = house.player(declared(fake), log=remote)
    publish(log, 10)
    house.wait_for_state(player, "stopped")
    url = f"grpc://{server.address}"

    def run(name, *arguments):
        capsys.readouterr()
        code = main([name, url, *arguments, "--json"])
        return code, capsys.readouterr().out

    code, out = run("targets")
    assert (code, json.loads(out)[0]["why"]) == (0, "REFUSED")
    assert run("skip", "shop", "--why", "a bad order", "--yes")[0] == 0
    fake.store.wait_for(lambda: len(fake.store.done) == 9)
    house.wait_for(lambda: run("deadletters", "list")[1])
    (letter,) = map(json.loads, run("deadletters", "list")[1].splitlines())
    assert letter["reason"] == "a bad order"
    assert run("deadletters", "show", letter["dead_letter"])[0] == 0
    code, out = run("deadletters", "retry", letter["dead_letter"], "--to", "orders", "--yes")
    again = json.loads(out)["position"]
    house.told_that(player, lambda told: told.state == "stopped" and told.about == again)
    assert run("pause", "shop", "--why", "a look")[0] == 0
    house.told_that(player, lambda told: (told.state, told.why) == ("paused", "REFUSED"))
    assert run("skip", "shop", "--why", "again", "--yes")[0] == 0
    assert run("resume", "shop")[0] == 0
    house.wait_for_state(player, "N")
    assert run("replay", "shop", "--after", "1h", "--yes")[0] == 0
    house.told_that(player, lambda told: told.number == 1)


def test_another_player_takes_over(house, log, server, remote):
    """One of them over gRPC, one where the log is (P5)."""
    fake = house.target()
    first = house.player(declared(fake), log=remote)
    house.wait_for(lambda: first.leads)
    second = house.player(declared(fake), takeover=timedelta(seconds=10))
    publish(log, 10)
    fake.store.wait_for(lambda: len(fake.store.done) == 10)
    assert not second.leads
    first.close()
    publish(log, 10, 10)
    fake.store.wait_for(lambda: len(fake.store.done) == 20)
    assert in_order(log, fake.store)


def test_a_served_log_that_restarts_again_and_again(house, log, server, remote):
    """Deliveries go on, none is lost and none comes twice (P1, P5)."""
    one, two = house.target(), house.target(streams=False)
    house.player(declared(one, "one"), declared(two, "two"), log=remote)
    for at in range(4):
        publish(log, 25, 25 * at)
        one.store.wait_for(lambda wanted=25 * at + 10: len(one.store.done) >= wanted)
        server.stop()
        server.start()
    for fake in (one, two):
        fake.store.wait_for(lambda fake=fake: len(fake.store.done) == 100, 60)
        assert in_order(log, fake.store)


@pytest.mark.slow
def test_a_served_log_that_is_killed_again_and_again(house, tmp_path):
    """Its server's process by SIGKILL, beside publishers over gRPC (P1, P7)."""
    url = f"sqlite:///{tmp_path / 'killed.db'}"
    sharedlog.create(url).close()
    listen = f"127.0.0.1:{free_port()}"

    @contextmanager
    def serving():
        command = ("serve", "--log", url, "--listen", listen)
        with started("sharedlog", *command, log=tmp_path / "errors") as process:
            assert process.line() == listen
            yield process

    fake = house.target(refusing("33"))
    with serving() as process:
        log = house.opened(f"grpc://{listen}")
        log.stream("orders", 2)
        house.player(declared(fake, refused="dead-letter"), log=log)
        publish(log, 20)
        process.kill()
    for at in (20, 40, 60):
        with serving() as process:
            wanted = len(fake.store.done) + 5
            publish(log, 20, at)
            fake.store.wait_for(lambda wanted=wanted: len(fake.store.done) >= wanted, 60)
            process.kill()
    with serving(), sharedlog.open(url) as there:
        fake.store.wait_for(lambda: len(fake.store.done) == 79, 60)
        house.wait_for(lambda: any(each.name == "deadletters" for each in there.streams()))
        house.wait_for(
            lambda: sum(len(there.read("deadletters", number)) for number in range(8)) == 1
        )
        for number in range(2):
            expected = [each.text for each in there.read("orders", number) if each.text != "33"]
            assert fake.store.bodies(f"orders/{number}") == expected
        house.close()


def letters_of(log):
    """The keys of the dead letters that there are."""
    with suppress(NoSuchStream):
        return sorted(each.key for number in range(8) for each in log.read("deadletters", number))
    return []


def test_dead_letters_beyond_a_quota_wait(house, log):
    """Their target says so, and gets nothing behind them; later each is there once (P7, L8)."""
    limits = ServerLimits(stream_bytes_per_s=1.0)
    with served(log, settings=ServerSettings(limits)) as server:
        short = house.opened(f"grpc://{server.address}", timeout=timedelta(seconds=0.5))
        fake = house.target(refusing("3", "4", "5"))
        player = house.player(declared(fake, refused="dead-letter"), log=short)
        publish(log, 10)
        told = house.told_that(player, lambda told: "QuotaExceeded" in told.error)
        assert told.state in ("S", "ASKED")
        # What nothing is owed for is taken.
        assert len(letters_of(log)) == 1
        server.stop()
        server.options = server.options._replace(settings=ServerSettings())
        server.start()
        fake.store.wait_for(lambda: len(fake.store.done) == 7, 60)
        house.wait_for(lambda: len(letters_of(log)) == 3)
        house.close()
    assert letters_of(log) == [b"3", b"4", b"5"]
    for number in range(2):
        there = [each.text for each in log.read("orders", number) if each.text not in "345"]
        assert fake.store.bodies(f"orders/{number}") == there


@pytest.mark.slow
def test_a_player_that_may_have_one_call_under_way_delivers(house, log):
    """It is refused again and again, and asks again: slower, and once all the same (P1, L8)."""
    fake = house.target()
    with served(log, settings=ServerSettings(ServerLimits(caller_unanswered=1))) as server:
        remote = house.opened(f"grpc://{server.address}")
        house.player(declared(fake), log=remote, takeover=timedelta(seconds=10))
        publish(log, 60)
        fake.store.wait_for(lambda: len(fake.store.done) == 60, 60)
        house.close()
    assert in_order(log, fake.store)


def test_who_may_play_is_said_in_the_rights(house, log, as_token):
    """Others are told so before anything is sent (L8)."""
    log.stream("deadletters")
    fake = house.target(refusing("3"))
    publish(log, 5)
    with as_token("else") as other:
        player = sharedlog.Player(other, [declared(fake)])
        with pytest.raises(NotAllowed, match="'player' is not for else"):
            player.start()
    with as_token("player") as mine:
        with pytest.raises(NotAllowed, match="'shop' is not for player"):
            sharedlog.Player(mine, [declared(fake)], name="shop").start()
        house.player(declared(fake, refused="dead-letter"), log=mine)
        fake.store.wait_for(lambda: len(fake.store.done) == 4)
        house.wait_for(lambda: any(log.read("deadletters", number) for number in range(8)))
        house.close()
    assert fake.store.bodies("orders/0") + fake.store.bodies("orders/1")


def test_a_right_to_play_is_read_from_the_file():
    """As patterns; anything else is said."""
    found = read_settings('[[allow]]\ntoken = "p"\nplay = ["shop*"]\n')
    assert found.allow == (AccessRule(token=PLAYER[:1], play=("shop*",)),)
    with pytest.raises(BadSettings, match="play"):
        read_settings('[[allow]]\nplay = "shop"\n')


FENCE = ("fence/*player/shop", (5).to_bytes(8, "big"))
LETTER = "@deadletters:store/log/0/orders/0"


def letter(name=LETTER, tags=("deadletters/0", "deadletters/*"), producer=0):
    (body,) = committed_bodies([pack(b"x", None, About(), 1)], producer, 1, name)
    return NewEntry(body, tags)


def buried(*entries, conditions=(FENCE, (f"named/{LETTER}", None)), puts=()):
    named = Put(f"named/{LETTER}", b"x" * 24, Stamp.LAST)
    return Commit(tuple(Condition(*each) for each in conditions), (named, *puts), entries)


@pytest.mark.parametrize(
    "commit",
    [
        Commit((), (Put("player/other/told/a", b"x"),)),
        Commit((), (Put("player/shopper/told/a", b"x"),)),
        Commit((), (Put("hold/@player:shopper:a:0/orders/0", b"x"),)),
        Commit((), (Put("producer/1", b"x"),)),
        Commit((), (Put("trimmed", b"x"),)),
        Commit((), (Put("player/shop/told/a", b"x", term_s=1.0),)),
        Commit((), (Put("player/shop/told/a", b"x", Stamp.LAST),)),
        Commit((), (Put("holds", (7).to_bytes(8, "big")),)),
        Commit((Condition("holds", (7).to_bytes(8, "big")),), (Put("holds", b"\0" * 8),)),
        Commit((Condition(*FENCE),), (Put(FENCE[0], (4).to_bytes(8, "big")),)),
        Commit((Condition(*FENCE),), (Put(FENCE[0], (7).to_bytes(8, "big")),)),
        Commit((Condition("stream/a", b"x"),), (Put("stream/a", b"y"),)),
        Commit((Condition("producer/1", None),)),
        Commit((), (), (letter(),)),
        Commit((Condition(*FENCE),), (), (letter(),)),
        buried(letter(), conditions=((f"named/{LETTER}", None),)),
        buried(),
        buried(letter("@deadletters:other")),
        buried(letter(producer=3)),
        buried(NewEntry(b"\xff", ("deadletters/0",))),
        buried(letter(), puts=(Put("named/@deadletters:b", b"x", Stamp.LAST),)),
        buried(letter(), puts=(Put("named/mine", b"x", Stamp.LAST),)),
    ],
)
def test_a_step_beyond_a_players_reach_is_refused(commit):
    """Other players' rows, holds and fences, producers, and what is no dead letter (§15)."""
    with pytest.raises(NotAllowed, match="not for player 'shop'"):
        Reach("shop").check_commit(commit)


def test_what_a_player_writes_is_in_its_reach():
    """Its rows, its duty, holds of its names, streams that are new, and dead letters (§15)."""
    reach = Reach("shop")
    assert reach.check_commit(buried(letter())).entries[0][0] == ("deadletters/0", "deadletters/*")
    counted = [(7).to_bytes(8, "big"), (8).to_bytes(8, "big")]
    conditions = [Condition("holds", counted[0]), Condition(*FENCE), Condition("stream/a", None)]
    puts = [
        *(Put("player/shop/told/a", b"x"), Put("hold/@player:shop:a:0/orders/0", b"x")),
        *(Put("duty/player/shop", None), Put("holds", counted[1]), Put(*FENCE)),
        Put("stream/a", b"x"),
    ]
    assert reach.check_commit(Commit(tuple(conditions), tuple(puts))).streams == ["a"]
    for keys in (["producer/1"], ["player/other/wish/a"], ["named/mine"], ["open/1"]):
        with pytest.raises(NotAllowed):
            reach.check_get(keys)
    for prefix in ("", "player/", "player/sho", "producer/", "hold/", "hold/shop", "named/"):
        with pytest.raises(NotAllowed):
            reach.check_scan(prefix)
    with pytest.raises(NotAllowed, match="who is no player"):
        Reach("").check_get(["player/shop/wish/a"])
    with pytest.raises(InvalidRequest):
        Reach("a/b")


def test_steps_are_judged_by_the_server(log, remote, as_token):
    """By the caller's rights to streams, too; another log's incarnation is refused (L8)."""
    log.stream("deadletters", 1)
    conditions = (Condition("named/" + LETTER, None), Condition(FENCE[0], None))
    good = buried(letter(), conditions=conditions)
    with as_token("player") as mine:
        steps = mine._place.of_player("player").engine
        fence = Condition("fence/*player/player", None)
        good = good._replace(conditions=(conditions[0], fence))
        for tags in (("deadletters/0",), ("orders/0", "orders/*"), ("deadletters/0", "orders/*")):
            with pytest.raises((NotAllowed, InvalidRequest)):
                steps.commit(good._replace(entries=(letter(tags=tags),)))
        with pytest.raises(NotAllowed, match="administer"):
            steps.commit(Commit((Condition("stream/new", None),), (Put("stream/new", b"x"),)))
        assert steps.commit(good).last == steps.tail() == log._engine.tail()
        with pytest.raises(Refused) as refused:
            steps.commit(good)
        assert len(refused.value.found[conditions[0].key]) == 32
        assert [each.tags for each in steps.read(0, 10).rows] == [
            ("deadletters/0", "deadletters/*")
        ]
        with pytest.raises(NotAllowed):
            mine._place.of_player("").engine.scan("player/")
    assert remote._place.of_player("").engine.scan("player/") == {}
    other = remote._engine.steps("player")
    other._whose["incarnation"] = "0" * 16
    with pytest.raises(LogForked):
        other.first()


def test_rows_are_read_in_pieces_that_fit(log, remote):
    """Of large messages as many as one reply has, and all of them at last (L5)."""
    for _ in range(12):
        log.publish("orders", b"x" * 1_000_000, key="1")
    steps, after, found = remote._place.of_player("player").engine, 0, []
    for _ in itertools.count():
        rows = steps.read(after, 100)
        if not rows.rows:
            break
        found += [each.lsn for each in rows.rows]
        assert rows.through >= found[-1]
        after = rows.through
    assert found == list(range(1, 13))
