"""Errors that stop a replica, and errors that it survives: DESIGN §7, invariant 4."""

from __future__ import annotations

import pytest

from curp._core.role import RoleEnding, ending_of
from curp.log._errors import (
    CorruptLog,
    LeadershipOver,
    LogError,
    LogStopped,
    LogUnavailable,
    TailMismatch,
    TrimmedLog,
)


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (LeadershipOver("another number"), RoleEnding.BEGIN_OVER),
        (TrimmedLog("it begins later", 7), RoleEnding.BEGIN_OVER),
        (LogUnavailable("timed out"), RoleEnding.WAIT),
        (LogStopped("fsync"), RoleEnding.STOP),
        (TailMismatch("it is elsewhere", 3), RoleEnding.STOP),
        (CorruptLog("a gap"), RoleEnding.STOP),
        (LogError("from a later version"), RoleEnding.STOP),
        (ValueError("a mistake of ours"), RoleEnding.STOP),
    ],
)
def test_only_what_can_be_made_good_goes_on(error: Exception, ending: RoleEnding) -> None:
    """An engine that forgot, or an error that nobody foresaw, stops the replica (DESIGN §7)."""
    assert ending_of(error) is ending
