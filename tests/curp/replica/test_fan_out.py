"""Peers asked at the same time (DESIGN §7: a hung witness holds up no other)."""

from __future__ import annotations

import threading
import time

from curp._replica.fan_out import ask_all


def test_the_first_that_is_enough_ends_the_wait() -> None:
    """A peer that hangs is not waited for where another one can tell (DESIGN §7)."""
    over = threading.Event()

    def ask(address: str) -> str | None:
        if address == "hung":
            over.wait(60.0)
        return None if address == "restarted" else address

    try:
        found = ask_all(
            ["hung", "restarted", "good"], ask, enough=lambda told: told is not None, timeout_s=60.0
        )
        assert found["good"] == "good"
        assert "hung" not in found
    finally:
        over.set()


def test_all_are_waited_for_within_their_time() -> None:
    """Without more to go by, the answers of those that answered in time (DESIGN §7)."""
    over = threading.Event()
    try:
        found = ask_all(
            ["hung", "one", "two"], lambda at: at != "hung" or over.wait(60.0), timeout_s=1.0
        )
        assert found == {"one": True, "two": True}
        assert ask_all([], lambda at: True, timeout_s=60.0) == {}
    finally:
        over.set()


def test_a_slow_one_has_a_grace_once_another_said_yes() -> None:
    """A no is no reason to hurry, a yes is (DESIGN §7)."""
    over = threading.Event()
    began = time.monotonic()
    try:
        found = ask_all(
            ["hung", "no", "yes"],
            lambda at: over.wait(60.0) if at == "hung" else at == "yes",
            grace_s=0.1,
            timeout_s=60.0,
        )
        assert found == {"no": False, "yes": True}
        assert time.monotonic() - began < 30.0
    finally:
        over.set()
