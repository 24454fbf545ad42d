"""The status page of a player, as who reads it over HTTP has it (DESIGN-LOG §15)."""

import http.client
import json
import socket
from urllib.parse import urlsplit

import pytest

import sharedlog
from sharedlog._core.errors import LogUnavailable
from sharedlog._core.player.rows import TargetState
from sharedlog._player.overview import Overview
from sharedlog._player.status_page import StatusPage
from tests.sharedlog.player.conftest import declared
from tests.sharedlog.player.test_command import refusing
from tests.sharedlog.player.test_player import publish

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


def test_many_idle_connections_do_not_end_the_page():
    """Of those who say nothing some are hung up on; later ones are answered (§15)."""
    page = StatusPage("0", lambda: {"so": "it is"})
    address = ("127.0.0.1", urlsplit(page.url).port)
    held = [socket.create_connection(address, 20) for _ in range(40)]
    try:
        # Those beyond what is answered at once are closed at once.
        assert [each.recv(1) for each in held[-8:]] == [b""] * 8
    finally:
        for each in held:
            each.close()
    for _ in range(200):
        try:
            if get(page.url)[0] == 200:
                break
        except (http.client.HTTPException, ConnectionError):
            continue
    assert json.loads(get(page.url)[2]) == {"so": "it is"}
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


def test_texts_of_others_are_shown_in_part():
    """A target's error may be as long as it likes (§15)."""
    told = TargetState("S", error="e" * 10_000, details="d" * 10_000)
    seen = Overview(_Place({"a": told}, {}), "player", lambda: True)
    seen.look()
    (found,) = seen.shown()["targets"]
    assert (len(found["error"]), len(found["details"])) == (500, 500)
