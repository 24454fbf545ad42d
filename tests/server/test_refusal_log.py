"""Warnings of refusals in a server's log (DESIGN §9: nothing per call at info level)."""

from __future__ import annotations

import logging

import pytest

from rifl._server.reply import RefusalLog
from rifl.core._shared.call import Call
from rifl.core._shared.errors import InProgress, PayloadMismatch, StaleRpc


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_mistake_is_told_with_its_identity(caplog: pytest.LogCaptureFixture) -> None:
    """A stale call, a bug in its caller, is a warning that names it (DESIGN §3, §9)."""
    RefusalLog(lambda: 0.0).refused("/s/M", Call(7, b"", 3), StaleRpc("old"))
    (told,) = _warnings(caplog)
    for expected in ("STALE_RPC", "7/3", "/s/M"):
        assert expected in told


def test_a_flood_is_one_warning_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    """The same reason again is counted, not written; another one is (DESIGN §9, bounds)."""
    now = [0.0]
    log = RefusalLog(lambda: now[0])
    for _ in range(100):
        log.refused("/s/M", None, PayloadMismatch("other"))
    log.refused("/s/M", None, StaleRpc("old"))
    assert len(_warnings(caplog)) == 2
    now[0] = 10.0
    log.refused("/s/M", None, PayloadMismatch("other"))
    assert "left_out=99" in _warnings(caplog)[-1]


def test_what_the_protocol_expects_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A duplicate that is told to come again is nobody's mistake (DESIGN §3)."""
    RefusalLog().refused("/s/M", None, InProgress("running"))
    # A copy of a call that has its answer, for which nobody waits.
    RefusalLog().refused("/s/M", Call(7, b"", 3, attempt=2), StaleRpc("old"))
    assert _warnings(caplog) == []
