"""The ``sharedlog`` command on a terminal: colours, and how far what takes long is."""

from __future__ import annotations

import io
import threading

import pytest

import sharedlog
from sharedlog._cli import ExitCode, main


class Terminal(io.StringIO):
    """What is written to a terminal, and when a text has been."""

    def __init__(self) -> None:
        super().__init__()
        self._awaited = ""
        self._seen = threading.Condition()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._seen:
            count = super().write(text)
            self._seen.notify_all()
        return count

    def wait_for(self, text: str) -> None:
        with self._seen:
            assert self._seen.wait_for(lambda: text in self.getvalue(), 30)


@pytest.fixture
def filled(name):
    """A log with messages, of which none goes before the test ends."""
    with sharedlog.create(f"memory:{name}") as log:
        log.stream("s", 2)
        for number in range(20):
            log.publish("s", f"{number}", key=f"k{number}")
        yield log


@pytest.fixture
def terminals(monkeypatch):
    """Has what is printed, and what errors go to, be terminals that show colours."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")

    def begin():
        # Within the test: before it begins pytest has its own there.
        out, err = Terminal(), Terminal()
        monkeypatch.setattr("sys.stdout", out)
        monkeypatch.setattr("sys.stderr", err)
        return out, err

    return begin


@pytest.mark.parametrize(
    ("more", "environment", "colours"),
    [
        ([], {}, True),
        ([], {"NO_COLOR": "1"}, False),
        (["--color", "never"], {}, False),
        (["--color", "always"], {"NO_COLOR": "1"}, True),
    ],
    ids=["on a terminal", "NO_COLOR", "never", "always"],
)
def test_a_tail_that_follows_is_coloured(
    filled, name, terminals, monkeypatch, more, environment, colours
):
    """On a terminal, unless the environment or a flag says otherwise (issue 17).

    Messages that come later, too.
    """
    for each, value in environment.items():
        monkeypatch.setenv(each, value)
    opened = []

    def open_log(url, **how):
        opened.append(sharedlog.open(url, **how))
        return opened[-1]

    monkeypatch.setattr("sharedlog._cli.command.open_log", open_log)
    out, _ = terminals()
    arguments = ["tail", f"memory:{name}", "s", "-n", "1", "--follow", *more]
    thread = threading.Thread(target=main, args=(arguments,))
    thread.start()
    try:
        out.wait_for("19\n")
        position = filled.publish("s", "later", key="k")
        out.wait_for("later\n")
    finally:
        opened[0].close()
        thread.join(30)
    *_, line = out.getvalue().splitlines()
    assert f"{position}" in line
    assert [line.endswith("  k  later"), "\x1b[" in line] == [not colours, colours]


@pytest.mark.parametrize("command", ["verify", "export"])
def test_what_takes_long_shows_how_far_it_is(filled, name, terminals, tmp_path, command):
    """By a bar where errors go, so that what is printed is the result alone (issue 17)."""
    out, err = terminals()
    url = f"memory:{name}"
    arguments = {
        "verify": ["verify", url, "--json"],
        "export": ["export", url, "s", "--json", "--out", str(tmp_path / "s.parquet")],
    }
    assert main(arguments[command]) == ExitCode.DONE
    assert command in err.getvalue()
    assert "100%" in err.getvalue()
    assert "%" not in out.getvalue()
