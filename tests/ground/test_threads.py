"""Threads in which our own calls block beside an event loop."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from _rifl_ground import threads
from tests.helpers.at_a_line import bounded


def test_a_first_call_within_a_first_call_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A collection or a signal's handler may come at any line, and so may a fork."""
    monkeypatch.setattr(threads, "_pools", {})
    code, within = threads._pool.__code__, []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is not code:
            return None
        if event == "line":
            sys.settrace(None)
            try:
                # So that this one is a first call, and the other one stays one.
                threads._pools.clear()
                within.append(threads._pool())
                threads._pools.clear()
            finally:
                sys.settrace(trace)
        return trace

    def first() -> object:
        sys.settrace(trace)
        try:
            return threads._pool()
        finally:
            sys.settrace(None)

    assert bounded(first, 10) is not None
    assert len(within) > 2
