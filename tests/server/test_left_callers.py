"""Callers of an event loop's server leave, and its handlers go on (DESIGN §4)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.helpers.waiting import DEADLINE_S


@pytest.mark.parametrize("form", ["unary", "requests", "responses"])
def test_a_handler_asks_who_its_caller_was_after_it_has_left(form: str) -> None:
    """It is told what it was told before, in a thread, too; gRPC alone would kill the process."""
    program = [sys.executable, "-m", "tests.server.left_callers", form]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "the same: True in a thread: ipv4:127.0.0.1:" in ran.stdout
