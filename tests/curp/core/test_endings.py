"""Errors that stop a replica, and errors that it survives: DESIGN §7, invariant 4."""

from __future__ import annotations

import pytest

from curp._core.role import Ending, ending_of
from curp.log._errors import (
    CorruptLog,
    Deposed,
    LogError,
    LogStopped,
    LogUnavailable,
    TailMismatch,
    TrimmedLog,
)


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (Deposed("another number"), Ending.BEGIN_OVER),
        (TrimmedLog("it begins later", 7), Ending.BEGIN_OVER),
        (LogUnavailable("timed out"), Ending.WAIT),
        (LogStopped("fsync"), Ending.STOP),
        (TailMismatch("it is elsewhere", 3), Ending.STOP),
        (CorruptLog("a gap"), Ending.STOP),
        (LogError("from a later version"), Ending.STOP),
        (ValueError("a mistake of ours"), Ending.STOP),
    ],
)
def test_only_what_can_be_made_good_goes_on(error: Exception, ending: Ending) -> None:
    """An engine that forgot, or an error that nobody foresaw, stops the replica (DESIGN §7)."""
    assert ending_of(error) is ending
