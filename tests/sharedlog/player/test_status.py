"""The status page of a player, as who reads it over HTTP has it (DESIGN-LOG §15)."""

import http.client
import json
import select
import socket
import time
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

import sharedlog
from sharedlog._core.errors import LogUnavailable
from sharedlog._core.player.headline import headline
from sharedlog._core.player.rows import Order, TargetState, Wish
from sharedlog._player.overview import Overview
from sharedlog._player.status_page import StatusPage
from sharedlog.v1.target_pb2 import DeliveryAnswer
from tests.sharedlog.player.conftest import declared
from tests.sharedlog.player.fake_target import answer
from tests.sharedlog.player.test_command import refusing
from tests.sharedlog.player.test_player import publish

NOW = 10**15
HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>"


def get(url, path="/status.json", method="GET", **headers):
    """Ask; return the status, the headers and the body."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def shown(player):
    """What the page of a player says, by target."""
    status, _, body = get(player.status_url)
    assert status == 200
    found = json.loads(body)
    return found, {each["name"]: each for each in found["targets"]}


def test_the_status_page_says_how_targets_are(house, log):
    """State, index, lag over time, rate, last error, dead letters, who paused it and why."""
    fake, other = house.target(refusing("3")), house.target()
    player = house.player(
        declared(fake, refused="dead-letter"), declared(other, "mail"), status="0"
    )
    assert player.status_url.startswith("http://127.0.0.1:")
    publish(log, 10)
    fake.store.wait_for(lambda: len(fake.store.done) == 9)
    seen = []

    def settled():
        seen.append(shown(player))
        shop = seen[-1][1].get("shop", {})
        return [shop.get(name) for name in ("dead_letters", "state", "lag")] == [1, "N", 0]

    house.wait_for(settled)
    found, targets = seen[-1]
    assert (found["player"], found["leads"], found["error"]) == ("player", True, "")
    shop = targets["shop"]
    # Where there was nothing to do it is moved on.
    last = min(log.read("orders", number)[-1].position.lsn for number in range(2))
    assert last <= shop["index"] <= log._engine.tail()
    assert (shop["address"], shop["lag"], shop["paused"]) == (fake.address, 0, None)
    assert "it cannot be" in shop["error"]
    assert all(len(each) == 3 for each in shop["samples"])
    assert (targets["mail"]["dead_letters"], targets["mail"]["error"]) == (0, "")
    # What it says is no more than that: no message, no key, no token.
    assert set(shop) - set(targets["mail"]) == set()
    player.close()
    assert player.status_url is None


def test_the_count_of_dead_letters_outlives_the_player(house, log):
    """It is that of the index, not of what one process has seen (P7)."""
    fake = house.target(refusing("3", "5"))
    first = house.player(declared(fake, refused="dead-letter"))
    publish(log, 10)
    fake.store.wait_for(lambda: len(fake.store.done) == 8)
    house.told_that(first, lambda told: told.dead_letters == 2)
    first.close()
    second = house.player(declared(fake, refused="dead-letter"))
    publish(log, 10, 10)
    fake.store.wait_for(lambda: len(fake.store.done) == 18)
    house.told_that(second, lambda told: told.dead_letters == 2)


def test_a_page_is_read_only_and_of_its_own(house):
    """It changes nothing, loads nothing from elsewhere, and other pages cannot read it."""
    player = house.player(status="0")
    url = player.status_url
    status, headers, body = get(url, "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["Access-Control-Allow-Origin"] is None
    assert b"http" not in body.replace(b"http://www.w3.org/2000/svg", b"").replace(b"HTTP ", b"")
    assert get(url, "/", "HEAD")[0::2] == (200, b"")
    assert [get(url, "/", method)[0] for method in ("POST", "PUT", "DELETE")] == [501] * 3
    assert [get(url, path)[0] for path in ("/x", "/../pyproject.toml")] == [404] * 2
    # A name of somebody else's that leads here.
    port = urlsplit(url).port
    assert get(url, Host=f"evil.example:{port}")[0] == 421
    assert get(url, Host="127.0.0.1.evil.example")[0] == 421
    assert [get(url, Host=each)[0] for each in (f"localhost:{port}", "[::1]:1")] == [200, 200]


def test_connections_that_say_nothing_keep_no_reader_out():
    """For one more the oldest is hung up on: a reader is answered at once (§15)."""
    page = StatusPage("0", lambda: {"so": "it is"})
    address = ("127.0.0.1", urlsplit(page.url).port)
    held = [socket.create_connection(address, 20) for _ in range(40)]
    try:
        assert [each.recv(1) for each in held[:24]] == [b""] * 24
        assert json.loads(get(page.url)[2]) == {"so": "it is"}
    finally:
        for each in held:
            each.close()
        page.close()


def test_a_request_that_comes_byte_by_byte_has_a_total_time(monkeypatch):
    """Each byte is in time, and all of them are not (§15)."""
    monkeypatch.setattr("sharedlog._player.status_page._PATIENCE_S", 0.3)
    page = StatusPage("0", dict)
    with socket.create_connection(("127.0.0.1", urlsplit(page.url).port), 20) as slow:
        began_s = time.monotonic()
        while not select.select([slow], [], [], 0.02)[0]:
            assert time.monotonic() - began_s < 20
            slow.sendall(b"x")
        with suppress(ConnectionResetError):
            assert slow.recv(1) == b""
    page.close()


@pytest.mark.parametrize("listen", ["x", "127.0.0.1:", "127.0.0.1:70000", "no.such.invalid:0"])
def test_a_page_that_cannot_be_is_refused_at_the_start(house, log, listen):
    """Before anything is sent."""
    player = sharedlog.Player(log, [declared(house.target())], status=listen)
    with pytest.raises(sharedlog.InvalidRequest, match="status page"):
        player.start()
    player.close()


def test_a_port_that_is_taken_is_said(house, log):
    """By whom is not known; which one is."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        player = sharedlog.Player(log, status=f"{port}")
        with pytest.raises(sharedlog.InvalidRequest, match=f"{port}"):
            player.start()
        player.close()


class _Place:
    """A log that answers with what a test says."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def run(self, rule):
        rule.close()
        found = self.answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


def test_an_overview_keeps_what_it_saw_while_the_log_is_away():
    """It says that, since when, and goes on; of targets that are no more nothing is kept."""
    clock = iter(range(100, 1000))
    told = TargetState("N", lag=7, rate=1.5)
    place = _Place({"a": told, "b": told}, {}, LogUnavailable("away"), {"a": told}, {})
    seen = Overview(place, "player", lambda: False, clock=lambda: next(clock))
    assert seen.shown()["error"] == "nothing was read yet"
    seen.look()
    seen.look()
    found = seen.shown()
    assert (found["error"], len(found["targets"])) == ("LogUnavailable: away", 2)
    assert found["read_ms"] < found["now_ms"]
    seen.look()
    found = seen.shown()
    assert (found["error"], [each["name"] for each in found["targets"]]) == ("", ["a"])
    assert [each[1:] for each in found["targets"][0]["samples"]] == [(7, 1.5)] * 2


def test_texts_of_others_are_bounded_and_cannot_turn_a_line_around():
    """A target says what it likes, and as much as it likes (§15)."""
    said = "\x1b[31m\u202e" + "e" * 3_000_000
    told = TargetState("S", error=said, details=said, at_us=1)
    seen = Overview(_Place({"a": told}, {"a": Wish(Order(said, said, 1))}), "player", lambda: True)
    seen.look()
    (found,) = seen.shown()["targets"]
    texts = [found["error"], found["details"], found["headline"]["text"], *found["paused"].values()]
    for each in texts[:-1]:
        assert len(each) <= 500
        assert each.isprintable()


def test_what_a_target_says_is_kept_in_part(house, log):
    """What is told in the log, and what an event says: a line of a thousand characters (§15)."""
    said = "\x1b[31m\u202e" + "é" * 1_000_000
    fake = house.target(lambda _: answer(DeliveryAnswer.FAILED, said))
    player = house.player(declared(fake, failed="stop", tries=1))
    publish(log, 1)
    found = house.wait_for_state(player, "stopped")
    assert found.details.startswith(r"\x1b[31m\u202eéé")
    assert (len(found.details), found.details.isprintable()) == (1000, True)


@pytest.mark.parametrize(
    ("told", "level", "word", "text"),
    [
        (None, "off", "not told", "no player has told"),
        (TargetState("N", at_us=1), "bad", "not told", "no player of this name leads"),
        (TargetState("N", at_us=NOW), "good", "fed", ""),
        (TargetState("RF", at_us=NOW, lag=3), "busy", "recovering", ""),
        (TargetState("S", at_us=NOW), "busy", "connecting", ""),
        (TargetState("S", at_us=NOW, error="BROKEN: x"), "bad", "down", "BROKEN: x"),
        (
            TargetState("N", at_us=NOW, attempts={"s/0": ("7.0/0-aa@f", 35)}, error="FAILED: x"),
            "bad",
            "retrying",
            "s/0 at 7.0/0 has failed 35 times: FAILED: x",
        ),
        (
            TargetState("N", at_us=NOW, attempts={"s/0": ("7.0/0-aa@f", 1)}, error="FAILED: x"),
            "busy",
            "retrying",
            "has failed once",
        ),
        (
            TargetState("N", at_us=NOW, lag=9, error="LATE: x", error_at_us=5, moved_at_us=4),
            "bad",
            "stuck",
            "LATE: x",
        ),
        (
            TargetState("N", at_us=NOW, lag=9, error="x", error_at_us=5, moved_at_us=6),
            "good",
            "fed",
            "",
        ),
        (
            TargetState("N", at_us=NOW, limit=5),
            "busy",
            "limited",
            "5 messages are in flight at once",
        ),
        (
            TargetState("stopped", "", 0, "FAILED", "x", "s/0", "7.0/0-aa@f", at_us=NOW),
            "bad",
            "stopped FAILED",
            "s/0 at 7.0/0: x",
        ),
    ],
)
def test_a_headline_says_what_is_wrong(told, level, word, text):
    """One that takes nothing is not fed, whatever the state of its connection (§15)."""
    found = headline(told, Wish(), NOW)
    assert (found.level.value, found.word, text in found.text) == (level, word, True)
    paused = headline(told, Wish(Order("ann", "why", 1)), NOW)
    assert (paused.level.value, paused.text) == ("off", "by ann: why")
