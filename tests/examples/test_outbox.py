"""The example of the transactional outbox: killed at every point, in real processes (§12)."""

import subprocess
import sys
from pathlib import Path

import pytest

from examples.outbox import POINTS

ROOT = Path(__file__).parents[2]


def run(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "examples.outbox", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("ok  ")]


def test_effect_answer_and_event_are_there_once():
    """Killed between effect and append, and behind the commit, before the reply (§12)."""
    assert len(run("effect", "reply")) == 4


@pytest.mark.long
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_effect_answer_and_event_are_there_once_wherever_it_is_killed(engine, request):
    """At every point, over SQLite and PostgreSQL (§12)."""
    flags = []
    if engine == "postgres":
        flags = ["--database", request.getfixturevalue("shared_postgres").url()]
    assert len(run(*flags)) == len(POINTS) + 2
