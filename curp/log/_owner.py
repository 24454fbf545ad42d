"""What goes wrong at a server, told as a group's log tells it."""

from __future__ import annotations

from curp.log._errors import (
    CorruptLog,
    EngineFull,
    EngineStopped,
    EngineUnavailable,
    InvalidRequest,
    NotDurable,
)
from rifl._log import get_logger
from sharedlog._engines.owner import Owner

GROUPS = Owner(
    get_logger("curp.log"),
    "docs/curp-logs.md",
    EngineUnavailable,
    EngineFull,
    EngineStopped,
    CorruptLog,
    InvalidRequest,
    NotDurable,
)
