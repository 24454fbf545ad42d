"""Players as operators have them: the command (DESIGN-LOG §15)."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

import sharedlog
from sharedlog._cli.command import main
from sharedlog._core.duty import Duty
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.player.deadletters import Whose, bury_skipped
from sharedlog._core.player.indexes import Unconfirmed
from sharedlog._core.player.stores import stores_of
from sharedlog._player.config import read_config
from sharedlog._player.player import Player
from sharedlog.metrics import PrometheusPlayerObserver
from sharedlog.v1.target_pb2 import DeliveryAnswer
from tests.helpers.waiting import until
from tests.sharedlog.player.conftest import declared
from tests.sharedlog.player.fake_target import Store, answer
from tests.sharedlog.player.test_player import CALL, in_order, publish


@pytest.fixture
def url(tmp_path):
    """Of the log."""
    return f"sqlite:///{tmp_path / 'log.db'}"


@pytest.fixture
def sharedlog_command(url, capsys):
    """Run a command, and return its exit code and what it printed as JSON."""

    def run(name, *arguments):
        capsys.readouterr()
        code = main([name, url, *arguments, "--json"])
        out = capsys.readouterr().out
        return code, [json.loads(line) for line in out.splitlines()]

    return run


def refusing(*bodies):
    """A handler that refuses some."""

    def handler(called):
        refused = called.body.decode() in bodies
        return answer(DeliveryAnswer.REFUSED, "it cannot be") if refused else None

    return handler


def test_a_target_is_paused_and_resumed(house, log, sharedlog_command):
    """By whom and why is told; meanwhile nothing is delivered to it."""
    fake = house.target()
    player = house.player(declared(fake))
    publish(log, 5)
    fake.store.wait_for(lambda: len(fake.store.done) == 5)
    house.wait_for_state(player, "N")
    why = ("--by", "ann", "--why", "a new disk")
    assert sharedlog_command("pause", "shop", *why)[0] == 0
    house.wait_for_state(player, "paused")
    publish(log, 5, 5)
    ((shown,),) = sharedlog_command("targets")[1]
    assert shown["paused"]["by"] == "ann"
    assert (shown["target"], shown["state"]) == ("shop", "paused")
    assert len(fake.store.done) == 5
    sharedlog_command("resume", "shop", *why)
    fake.store.wait_for(lambda: len(fake.store.done) == 10)
    assert in_order(log, fake.store)


def test_a_store_that_was_moved_is_adopted(house, log, sharedlog_command):
    """By an operator's word alone, who says why; by a plain resume it is not (P6)."""
    fake = house.target(store=Store("before"))
    player = house.player(declared(fake))
    publish(log, 5)
    fake.store.wait_for(lambda: len(fake.store.done) == 5)
    fake.stop()
    fake.store.name = "after"
    fake.start()
    found = house.wait_for_state(player, "stopped")
    assert (found.stopped.why, found.store) == ("WIPED", "after")
    publish(log, 5, 5)
    assert sharedlog_command("resume", "shop", "--adopt")[0] == 2
    connects = len(fake.connects)
    assert sharedlog_command("resume", "shop")[0] == 0
    house.wait_for(lambda: len(fake.connects) > connects)
    house.wait_for_state(player, "stopped")
    assert len(fake.store.done) == 5
    moved = ("resume", "shop", "--adopt", "--by", "ann", "--why", "a new disk")
    assert sharedlog_command(*moved)[0] == 0
    fake.store.wait_for(lambda: len(fake.store.done) == 10)
    kept = log._run(stores_of("player", "shop"))
    assert (kept.ids, kept.adopted[:2]) == ({0: "after"}, ("ann", "a new disk"))


def test_one_message_is_skipped_by_an_operator(house, log, sharedlog_command):
    """It becomes a dead letter that says who and why; the target goes on behind it (P7)."""
    fake = house.target(refusing("3"))
    player = house.player(declared(fake))
    publish(log, 10)
    found = house.wait_for_state(player, "stopped")
    assert (found.stopped.why, "it cannot be" in str(found.stopped)) == ("REFUSED", True)
    arguments = ("skip", "shop", "--by", "ann", "--why", "a bad order")
    assert sharedlog_command(*arguments)[0] == 2
    assert sharedlog_command(*arguments, "--yes")[0] == 0
    fake.store.wait_for(lambda: len(fake.store.done) == 9)
    house.wait_for(lambda: sharedlog_command("deadletters", "list")[1])
    (letter,) = sharedlog_command("deadletters", "list")[1]
    assert (letter["target"], letter["by"], letter["reason"]) == ("shop", "ann", "a bad order")
    assert datetime.fromisoformat(letter["at"]).tzinfo
    code, (shown,) = sharedlog_command("deadletters", "show", letter["dead_letter"])
    assert (code, shown["message"]["value"], shown["message"]["method"]) == (0, "3", CALL)
    assert sharedlog_command("deadletters", "list", "--of", "mail")[1] == []


def test_skips_that_were_ordered_while_no_player_led_are_all_done(house, log, sharedlog_command):
    """Of one substream and of others, in whatever order they were said (P7)."""
    fake = house.target(refusing("3"))
    player = house.player(declared(fake))
    publish(log, 10)
    house.wait_for_state(player, "stopped")
    player.close()
    waiting = [
        (each, tag)
        for tag in range(2)
        for each in log.read("orders", tag)
        if each.value.decode() not in fake.store.bodies()
    ]
    skipped = [*waiting[::-2], *waiting[-2::-2]]
    assert len(skipped) > len({tag for _, tag in skipped})
    for each, tag in skipped:
        where = ("--position", str(each.position), "--substream", f"orders/{tag}")
        for _ in range(2):
            assert sharedlog_command("skip", "shop", *where, "--why", "x", "--yes")[0] == 0
    taken = len(fake.store.done)
    player = house.player(declared(fake))
    house.told_that(player, lambda told: told.dead_letters == len(skipped) and not told.lag)
    assert len(fake.store.done) == taken
    assert len(sharedlog_command("deadletters", "list")[1]) == len(skipped)


def test_an_order_that_would_do_nothing_is_refused(house, log, sharedlog_command):
    """To skip what was taken or cannot be, and to begin at a time that has not come (§15)."""
    fake = house.target()
    player = house.player(declared(fake))
    publish(log, 5)
    fake.store.wait_for(lambda: len(fake.store.done) == 5)
    house.told_that(player, lambda told: told.lag == 0 and len(told.indexes) == 2)
    at = str(log.read("orders", 0)[0].position)
    where = ("--position", at, "--substream", "orders/0")
    assert sharedlog_command("skip", "shop", *where, "--why", "x", "--yes")[0] == 2
    log.stream("others", 1)
    end = log.publish("others", b"x")
    for where, code in (
        (("--position", str(end), "--substream", "others/0"), 2),
        (("--position", str(end), "--substream", "orders/0"), 4),
        (("--position", str(end), "--substream", "orders/7"), 2),
    ):
        assert sharedlog_command("skip", "shop", *where, "--why", "x", "--yes")[0] == code
    later = ("--after", "2999-01-01T00:00:00Z", "--yes")
    assert sharedlog_command("replay", "shop", *later)[0] == 2
    ((shown,),) = sharedlog_command("targets")[1]
    assert (shown["number"], shown["latest"]) == (0, None)


def test_a_dead_letter_is_published_again_once(house, log, sharedlog_command):
    """However often that is said; to a stream that is named, or to its own."""
    fake = house.target(refusing("3"))
    house.player(declared(fake, refused="dead-letter"))
    log.stream("again", 1)
    publish(log, 10)
    fake.store.wait_for(lambda: len(fake.store.done) == 9)
    house.wait_for(lambda: sharedlog_command("deadletters", "list")[1])
    (letter,) = sharedlog_command("deadletters", "list")[1]
    retry = ("deadletters", "retry", letter["dead_letter"], "--to", "again")
    assert sharedlog_command(*retry)[0] == 2
    first, second = (sharedlog_command(*retry, "--yes") for _ in range(2))
    assert first == second
    (found,) = log.read("again", 0)
    assert (found.text, found.key, found.method) == ("3", b"3", CALL)


def test_a_dead_letter_is_published_again_to_its_own_stream(house, log, sharedlog_command):
    """Where no other is named: behind what is there, and its targets are called with it (P7)."""
    refused = ["3"]
    fake = house.target(lambda called: refusing(*refused)(called))
    house.player(declared(fake, refused="dead-letter"))
    publish(log, 10)
    fake.store.wait_for(lambda: len(fake.store.done) == 9)
    house.wait_for(lambda: sharedlog_command("deadletters", "list")[1])
    (letter,) = sharedlog_command("deadletters", "list")[1]
    refused.clear()
    retry = ("deadletters", "retry", letter["dead_letter"], "--yes")
    first, second = (sharedlog_command(*retry) for _ in range(2))
    assert first == second == (0, first[1])
    fake.store.wait_for(lambda: len(fake.store.done) == 10)
    assert fake.store.bodies()[-1] == "3"
    texts = [each.text for number in range(2) for each in log.read("orders", number)]
    assert sorted(texts) == sorted(["3", *(str(each) for each in range(10))])


def test_a_target_takes_a_log_anew_from_a_time(house, log, sharedlog_command):
    """What was appended since is called again, and nothing from before (§15)."""
    fake = house.target()
    player = house.player(declared(fake))
    publish(log, 5)
    fake.store.wait_for(lambda: len(fake.store.done) == 5)
    house.wait_for_state(player, "N")
    until(lambda: datetime.now(UTC) > latest(log), "the clock is behind what there is")
    moment = datetime.now(UTC)
    publish(log, 5, 5)
    fake.store.wait_for(lambda: len(fake.store.done) == 10)
    assert sharedlog_command("replay", "shop", "--after", moment.isoformat(), "--yes")[0] == 0
    house.told_that(player, lambda told: (told.number, told.state) == (1, "N"))
    fake.store.wait_for(lambda: len(fake.store.done) == 15)
    assert sorted(fake.store.bodies()[10:]) == [f"{number}" for number in range(5, 10)]


def test_a_target_begins_at_a_time(house, log):
    """It was never there: what was appended before is not its (§15)."""
    publish(log, 5)
    until(lambda: datetime.now(UTC) > latest(log), "the clock is behind what there is")
    moment = datetime.now(UTC)
    publish(log, 5, 5)
    fake = house.target()
    player = house.player(declared(fake, start=moment))
    fake.store.wait_for(lambda: len(fake.store.done) == 5)
    house.told_that(player, lambda told: (told.state, told.lag) == ("N", 0))
    assert sorted(fake.store.bodies()) == [f"{number}" for number in range(5, 10)]


def latest(log):
    """When the newest message was appended."""
    return max(each.append_time for number in range(2) for each in log.read("orders", number))


def test_a_target_takes_a_log_anew(house, log, sharedlog_command):
    """From a position on, with its whole commit, into an index of another number."""
    fake = house.target()
    player = house.player(declared(fake))
    publish(log, 20)
    fake.store.wait_for(lambda: len(fake.store.done) == 20)
    house.wait_for_state(player, "N")
    from_there = log.read("orders", 0)[3]
    assert sharedlog_command("replay", "shop", "--after", str(from_there.position))[0] == 2
    again = ("replay", "shop", "--after", str(from_there.position), "--yes")
    assert sharedlog_command(*again)[1] == [{"target": "shop", "order": "replay", "number": 1}]
    behind = [
        each
        for number in range(2)
        for each in log.read("orders", number)
        if each.position.lsn >= from_there.position.lsn
    ]
    fake.store.wait_for(lambda: len(fake.store.done) == 20 + len(behind))
    assert sorted(fake.store.bodies()[20:]) == sorted(each.text for each in behind)
    house.wait_for(lambda: {each.name for each in log.holds()} == {"@player:player:shop:1"})


def test_what_a_player_removes_is_told(house, log, sharedlog_command):
    """The holds of an index that is over (DESIGN §9)."""
    fake = house.target()
    player = house.player(declared(fake))
    publish(log, 2)
    fake.store.wait_for(lambda: len(fake.store.done) == 2)
    house.wait_for_state(player, "N")
    with capture_logs() as told:
        assert sharedlog_command("replay", "shop", "--yes")[0] == 0
        house.wait_for(lambda: any(each["event"] == "operator_acted" for each in told))
    (act,) = (each for each in told if each["event"] == "operator_acted")
    assert (act["verb"], act["object"]) == ("remove", "@player:player:shop:0")
    assert act["caller"].startswith("player player of ")


def test_what_is_not_there_is_said(house, log, sharedlog_command):
    """In a line, and by the exit code."""
    assert sharedlog_command("targets") == (0, [[]])
    assert sharedlog_command("targets", "--player", "nobody")[0] == 4
    assert sharedlog_command("pause", "shop")[0] == 4
    assert sharedlog_command("deadletters", "list") == (0, [])
    place = log.publish("orders", b"x")
    assert sharedlog_command("deadletters", "show", str(place))[0] == 4


@contextmanager
def playing(url, config):
    """A player in a process of its own, once it plays."""
    command = [sys.executable, "-m", "sharedlog", "play", "--log", url, "--config", str(config)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)
        process.stdout.close()


def test_play_reads_its_targets_again(house, log, url, tmp_path):
    """When the file changes, and at SIGHUP; what it cannot read changes nothing."""
    one, two = house.target(), house.target()
    config = tmp_path / "player.toml"

    def write(*fakes):
        parts = ["takeover = 30"] + [
            f'[[target]]\nname = "{name}"\naddress = "{fake.address}"\nstreams = ["orders"]\n'
            for name, fake in fakes
        ]
        config.write_text("\n".join(parts))

    write(("one", one))
    publish(log, 10)
    with playing(url, config) as process:
        assert process.stdout.readline() == "player plays 1 target\n"
        one.store.wait_for(lambda: len(one.store.done) == 10, 60)
        write(("one", one), ("two", two))
        two.store.wait_for(lambda: len(two.store.done) == 10, 60)
        config.write_text("no toml")
        os.kill(process.pid, signal.SIGHUP)
        publish(log, 10, 10)
        for each in (one, two):
            each.store.wait_for(lambda store=each.store: len(store.done) == 20, 60)
        assert len(one.connects) == 1
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[target]]\nname = 'a'\naddress = 'h:1'\n", "^target 'a' has no streams: each"),
        ("[[target]]\nname = 'a'\nstreams = ['s']\n", "^target 'a' has no address: each"),
        ("[[target]]\naddress = 'h:1'\n", r"^target '\?' has no name and no streams: each"),
        ("[[target]]\nname = 'a.b'\naddress = 'h:1'\nstreams = ['s']", "cannot name"),
        ("[[target]]\nname = 'a'\naddress = 'h:1'\nstreams = []", "no stream"),
        (
            "[[target]]\nname = 'a'\naddress = 'h:1'\nstreams = ['s']\nfailed = 'again'",
            "'stop', 'dead-",
        ),
        ("[[target]]\nname = 'a'\naddress = 'h:1'\nstreams = ['s']\nfailed = 'x'", "'x'"),
        ("[[target]]\nname = 'a'\naddress = 'h:1'\nstreams = ['s']\npatience = '1'", "seconds"),
        ("[[target]]\nname = 'a'\naddress = 'h:1'\nstreams = ['s']\ncolour = 1", "colour"),
        ("[[target]]\nname = 'a'\naddress = 'h:1'\nstreams = {s = 'x'}", "no method"),
        ("[[target]]\nname = 'a'\naddress = 'h:1'\nstreams = ['s']\ntries = 0", "tries = 0"),
        ("[[target]]\nname = 'a'\naddress = 'h:1'\nstreams = ['s']\ntries = '3'", "whole number"),
        ("[[target]]\nname = 'a'\naddress = 'h:1'\nstreams = ['s']\npatience = 0", "patience"),
        (
            "[[target]]\nname = 'a'\naddress = 'h:1'\nstreams = ['s']\nlinger = inf",
            "than there are",
        ),
        ("[[target]]\nname = 'a'\naddress = 'h:1'\nstreams = ['s']\nlinger = -1", "linger"),
        ("[[target]]\nname = 'a'\naddress = 'h:1'\nstreams = ['s']\ntoken = 1", "a text"),
        ("[[target]]\nname = 'a'\naddress = 'h:1'\nstreams = ['s']\nstart = 5", "no valid start"),
        (
            "[[target]]\nname = 'a'\naddress = 'h:1'\nstreams = ['s']\nstart = 2026-01-01",
            "no valid start",
        ),
        ("[[target]]\nname = 'a'\naddress = 'h'\nstreams = ['s']", "HOST:PORT"),
        ("", "there is no target"),
        ("colour = 1", "colour"),
        ("target = 1", "tables"),
        ("x", "TOML"),
    ],
)
def test_what_cannot_be_declared_is_refused(text, said):
    """With the name of what is wrong, before anything is sent."""
    with pytest.raises(InvalidRequest, match=said):
        read_config(text)


def test_what_is_declared_is_read():
    """Times are seconds; a stream may have a method for what says none."""
    text = """
        dead_letters = "lost"
        takeover = 5
        [[target]]
        name = "mail"
        address = "h:1"
        streams = {orders = "/a.B/C"}
        tries = 3
        failed = "dead-letter"
        unknown = "again"
        patience = 2.5
    """
    (target,), options = read_config(text)
    assert options == {"dead_letters": "lost", "takeover": timedelta(seconds=5)}
    assert (target.methods, target.patience) == ({"orders": "/a.B/C"}, timedelta(seconds=2.5))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"linger": 5}, "timedelta"),
        ({"patience": 1.0}, "timedelta"),
        ({"start": datetime(2026, 1, 1)}, "zone"),
        ({"start": 5}, "no valid start"),
        ({"token": b"secret"}, "a text"),
    ],
)
def test_a_target_of_another_kind_of_value_is_refused(given, said):
    """When it is declared, by a typed error, and not when a player comes to it (§15)."""
    with pytest.raises(InvalidRequest, match=said):
        sharedlog.Target(name="a", address="h:1", streams=["s"], **given)


def test_a_player_of_a_closed_log_does_not_begin(log, tmp_path):
    """It is told so: it would end at once, without a word (§15)."""
    with sharedlog.open(f"sqlite:///{tmp_path / 'log.db'}") as other:
        player = sharedlog.Player(
            other, [sharedlog.Target(name="a", address="h:1", streams=["orders"])]
        )
    with pytest.raises(sharedlog.LogStopped):
        player.start()
    with pytest.raises(InvalidRequest, match="timedelta"):
        sharedlog.Player(log, takeover=2)


def _replaced(url):
    file = url.removeprefix("sqlite:///")
    shutil.copy(file, f"{file}.copy")
    os.replace(f"{file}.copy", file)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        pytest.param(lambda log, url: log.close(), "the log was closed", id="closed"),
        pytest.param(lambda log, url: _replaced(url), "another file", id="replaced"),
    ],
)
def test_a_player_whose_log_is_of_no_use_any_more_says_so(house, url, end, said):
    """`run` and `check` raise it, and an event has it once; nothing is sent any more (§15)."""
    other = house.opened(url)
    with capture_logs() as written:
        soon = timedelta(seconds=1)
        player = house.player(declared(house.target()), log=other, takeover=soon)
        with ThreadPoolExecutor(1) as pool:
            running = sharedlog.Player(other, name="second")
            ran = pool.submit(running.run)
            house.wait_for(lambda: player.leads and running.leads)
            player.check()
            end(other, url)
            with pytest.raises(sharedlog.LogStopped, match=said):
                ran.result(60)
        house.wait_for(lambda: not player.leads)
        player.close()
        with pytest.raises(sharedlog.LogStopped, match=said):
            player.check()
    told = [each for each in written if each["event"] == "player_stopped"]
    assert sorted(each["player"] for each in told) == ["player", "second"]


def test_a_player_that_is_closed_before_its_log_ends_without_a_word(house, url):
    """As it was asked to (§15)."""
    other = house.opened(url)
    with capture_logs() as written, sharedlog.Player(other) as player:
        house.wait_for(lambda: player.leads)
        player.close()
        other.close()
        player.check()
    assert "player_stopped" not in [each["event"] for each in written]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (sharedlog.Target(name="a", address="h:1", streams=["orders"]), "not target 'a' itself"),
        (None, "a list of sharedlog.Target"),
        (["h:1"], "a list of sharedlog.Target"),
        ("h:1", "a list of sharedlog.Target"),
    ],
)
def test_what_is_no_list_of_targets_is_refused(house, log, given, said):
    """One target alone, say: in a sentence, also when they are declared anew (§15)."""
    with pytest.raises(InvalidRequest, match=said):
        sharedlog.Player(log, given)
    with pytest.raises(InvalidRequest, match=said):
        house.player().reload(given)


def test_two_targets_of_one_name_are_refused(log):
    """Their indexes would be one (§15)."""
    one = sharedlog.Target(name="a", address="h:1", streams=["orders"])
    with pytest.raises(sharedlog.InvalidRequest, match="two targets"):
        sharedlog.Player(log, [one, one])


def test_nobody_follows_the_dead_letters_of_its_own_player(house, log):
    """They would be made of each other; at start, and when targets are read again (P7)."""
    loops = sharedlog.Target(name="a", address="h:1", streams=["orders", "deadletters"])
    with pytest.raises(sharedlog.InvalidRequest, match="another player"):
        sharedlog.Player(log, [loops])
    player = house.player()
    with pytest.raises(sharedlog.InvalidRequest, match="another player"):
        player.reload([loops])
    sharedlog.Player(log, [loops], dead_letters="others")


@pytest.mark.parametrize(
    ("given", "said"),
    [({"streams": ["nowhere"]}, "no stream 'nowhere'"), ({"token_file": "/no/file"}, "/no/file")],
)
def test_what_is_not_there_is_told_at_the_start(house, log, given, said):
    """A stream, a token's file: before anything is sent, and when targets are read again (§15)."""
    fake = house.target()
    player = sharedlog.Player(log, [declared(fake, **given)])
    with pytest.raises(sharedlog.InvalidRequest, match=said):
        player.start()
    with pytest.raises(sharedlog.InvalidRequest, match=said):
        house.player().reload([declared(fake, **given)])


def test_play_opens_a_log_that_is_sealed(log, url, tmp_path, monkeypatch):
    """With the keys that its sisters take (§15)."""
    (tmp_path / "players_keys.py").write_text("def seal(x, at):\n    return x\nunseal = seal\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = tmp_path / "player.toml"
    config.write_text("[[target]]\nname = 'a'\naddress = 'h:1'\nstreams = ['nowhere']\n")
    opened = []
    real = Player.__init__

    def made(player, log, *arguments, **options):
        opened.append(log._place.seals)
        real(player, log, *arguments, **options)

    monkeypatch.setattr(Player, "__init__", made)
    assert main(["play", "--log", url, "--config", str(config), "--keys", "players_keys"]) == 2
    assert opened[0].unseal(b"x", b"s/0") == b"x"


def test_which_process_leads_is_told(house, log, sharedlog_command):
    """By its host and its number there (§15)."""
    player = house.player(declared(house.target()))
    house.wait_for_state(player, "N")
    ((shown,),) = sharedlog_command("targets")[1]
    assert shown["process"] == f"{socket.gethostname()}:{os.getpid()}"


def test_those_who_watch_see_targets(house, log):
    """States, lags and what was taken, by player and target (§15)."""
    registry = CollectorRegistry()
    fake = house.target(refusing("5"))
    player = house.player(
        declared(fake, refused="dead-letter"), observer=PrometheusPlayerObserver(registry)
    )
    publish(log, 10)
    fake.store.wait_for(lambda: len(fake.store.done) == 9)
    labels = {"player": "player", "target": "shop"}

    def value(name, **more):
        return registry.get_sample_value(f"sharedlog_target_{name}", labels | more)

    house.wait_for(lambda: value("dead_letters_total") == 1)
    house.wait_for(lambda: value("state", state="N") == 1)
    assert value("troubles_total", cause="REFUSED") == 1
    assert value("taken_total") > 0
    player.close()
    assert value("lag_entries") is None


def test_a_skip_is_of_the_index_that_it_was_said_of(house, log, sharedlog_command):
    """A replay takes everything anew, also what was skipped, and behind a restart, too (P7)."""
    refused = {"3"}
    fake = house.target(
        lambda called: (
            answer(DeliveryAnswer.REFUSED, "no") if called.body.decode() in refused else None
        )
    )
    player = house.player(declared(fake))
    publish(log, 10)
    house.wait_for_state(player, "stopped")
    assert sharedlog_command("skip", "shop", "--why", "a bad order", "--yes")[0] == 0
    fake.store.wait_for(lambda: len(fake.store.done) == 9)
    house.told_that(player, lambda told: told.dead_letters == 1)
    player.close()
    refused.clear()
    assert sharedlog_command("replay", "shop", "--yes")[0] == 0
    player = house.player(declared(fake))
    house.told_that(player, lambda told: (told.number, told.state) == (1, "N"))
    fake.store.wait_for(lambda: len(fake.store.done) == 19)
    assert sorted(fake.store.bodies()[9:]) == [f"{number}" for number in range(10)]
    assert len(sharedlog_command("deadletters", "list")[1]) == 1


def test_who_ordered_what_and_why_is_kept(house, log, url, capsys, sharedlog_command):
    """A pause and a skip have a reason; the last order is told with the target (§15)."""
    player = house.player(declared(house.target(refusing("3"))))
    publish(log, 5)
    found = house.wait_for_state(player, "stopped")
    assert [sharedlog_command(*each)[0] for each in (("pause", "shop"), ("skip", "shop"))] == [2, 2]
    assert sharedlog_command("pause", "shop", "--by", "ann", "--why", "a disk")[0] == 0
    told = house.wait_for_state(player, "paused")
    assert (told.why, told.about) == ("REFUSED", found.about)
    ((shown,),) = sharedlog_command("targets")[1]
    assert [shown["latest"][name] for name in ("what", "by", "why")] == ["pause", "ann", "a disk"]
    assert main(["targets", url]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert (" paused " in row, row.endswith("by ann: a disk")) == (True, True)
    assert sharedlog_command("replay", "shop", "--by", "bob", "--why", "mended", "--yes")[0] == 0
    ((shown,),) = sharedlog_command("targets")[1]
    assert [shown["latest"][name] for name in ("what", "by", "why")] == ["replay", "bob", "mended"]


def test_a_dead_letter_of_a_message_that_is_gone_says_so(log, sharedlog_command):
    """It was trimmed meanwhile, or is not there: where it stood and why is kept (P7)."""
    place = log.publish("orders", b"x", key="1")
    other = f"orders/{1 - place.substream}"
    skipped = Unconfirmed(place, 1, "why", "ann", 1)
    fence = log._run(Duty("player/player", b"12345678", 1.0).take(0.0))
    whose = Whose("player", "shop", "store", "log", 0)
    for _ in range(2):
        log._run(bury_skipped("deadletters", whose, other, skipped, fence, None))
    ((shown,),) = [sharedlog_command("deadletters", "list")[1]]
    assert (shown["position"], shown["reason"], shown["by"]) == (str(place), "why", "ann")
    show = sharedlog_command("deadletters", "show", shown["dead_letter"])
    assert show[1][0]["message"] == {"position": str(place)}
    assert sharedlog_command("deadletters", "retry", shown["dead_letter"], "--yes")[0] == 3
