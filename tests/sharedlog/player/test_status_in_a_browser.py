"""The status page of a player in a real browser, Debian's chromium (DESIGN-LOG §15).

By ``make test-browser``. What it looked like is left in the directory that RIFL_SCREENSHOTS names.
"""

import os
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sharedlog._core.player.rows import Order, TargetState
from sharedlog._player.overview import Overview
from sharedlog._player.status_page import StatusPage
from tests.sharedlog.player.test_status import HOSTILE

pytestmark = pytest.mark.long
_AT = "{}.0/0-da429bcc@9f939d1cbc6e2204"


def targets(now_s):
    """One in each state, as a player tells it; some of what is said is hostile."""
    us = int(now_s * 1_000_000)
    common = {"at_us": us, "process": "host:1", "address": "127.0.0.1:50051"}
    places = {f"orders/{number}": _AT.format(9000 + number) for number in range(8)}
    return {
        "inventory": TargetState("N", **common, indexes=places, taken=12_345, rate=812.5),
        "billing": TargetState(
            "RF",
            **common,
            indexes=places,
            lag=420,
            queued=210,
            taken=5,
            attempts={"orders/2": (_AT.format(9002), 3)},
        ),
        "mail": TargetState(
            *("stopped", common["address"], 1, "REFUSED", HOSTILE, "orders/3", _AT.format(9003)),
            indexes=places,
            lag=77,
            dead_letters=3,
            at_us=us,
            process=HOSTILE,
        ),
        "search": TargetState(
            "S", **common, lag=900, error=HOSTILE * 3, error_at_us=us - 9_000_000
        ),
        "audit": TargetState("paused", **common, indexes=places, lag=31),
    }


class _Scripted:
    """A log whose targets' lags go up and down."""

    def __init__(self):
        self.looks = 0

    def run(self, rule):
        name = rule.__name__
        rule.close()
        if name == "wishes":
            from sharedlog._core.player.rows import Wish

            return {"audit": Wish(Order("ann", HOSTILE, 1_000_000))}
        self.looks += 1
        waves = {"inventory": 0, "billing": 420 - self.looks, "search": 3 * self.looks}
        return {
            name: each._replace(lag=waves.get(name, each.lag + self.looks % 40))
            for name, each in targets(2_000_000_000 + 2 * self.looks).items()
        }


@pytest.fixture
def page():
    """The page of a player with a target in each state, and ten minutes behind it."""
    scripted = _Scripted()
    seen = Overview(
        scripted, "player", lambda: True, clock=lambda: 2_000_000_000.0 + 2 * scripted.looks
    )
    for _ in range(300):
        seen.look()
    made = StatusPage("0", seen.shown)
    yield made
    made.close()


def browse(tmp_path, url, *arguments):
    """Have the browser show a page until its script has polled; return what it printed."""
    browser = shutil.which("chromium")
    assert browser, "the test needs a browser; on Debian and Ubuntu: apt-get install chromium"
    # As root it has no sandbox of its own; it sees nothing but our page.
    command = [
        *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--virtual-time-budget=4000", f"--user-data-dir={tmp_path / 'profile'}"),
        *arguments,
    ]
    found = subprocess.run([*command, url], capture_output=True, text=True, timeout=100)
    assert found.returncode == 0, found.stderr
    return found.stdout


class _Seen(HTMLParser):
    """What elements there are, and the text between them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.paths, self._script = [], "", [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self._script = tag in ("script", "style")
        self.paths += [dict(attrs)["d"]] if tag == "path" else []

    def handle_data(self, data):
        self.text += "" if self._script else data + "\n"


def test_a_browser_shows_each_state_and_no_markup_of_others(page, tmp_path):
    """With a line of lags for each target; what a target wrote stands there as its text."""
    seen = _Seen(browse(tmp_path, page.url, "--dump-dom"))
    for said in (
        "fed",
        "retrying",
        "stopped",
        "down",
        "paused",
        "REFUSED",
        "by ann",
        "12,345",
        "orders/2 at 9002.0/0 (failed 3 times)",
    ):
        assert said in seen.text
    assert seen.text.count(HOSTILE) == 6
    assert "img" not in seen.tags
    assert seen.tags.count("script") == 1
    assert (seen.tags.count("h1"), seen.tags.count("h2"), seen.tags.count("svg")) == (1, 5, 5)
    lines = [each for each in seen.paths if "Z" not in each]
    assert [each.count("L") for each in lines] == [299] * 5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_paints_it_in_light_and_in_dark(page, tmp_path, scheme):
    """What is painted differs from an empty page, and fits the window's width."""
    shots = Path(os.environ.get("RIFL_SCREENSHOTS", tmp_path))
    shot = shots / f"status-{scheme}.png"
    dark = ["--force-dark-mode"] if scheme == "dark" else []
    browse(tmp_path, page.url, f"--screenshot={shot}", "--window-size=1280,900", *dark)
    assert shot.read_bytes().startswith(b"\x89PNG")
    assert shot.stat().st_size > 20_000
