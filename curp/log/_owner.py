"""The owner of a group's log, as which a server's failures are told."""

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
    "log_engine_stopped",
    "docs/curp-logs.md",
    "curp log accept-loss URL",
    EngineUnavailable,
    EngineFull,
    EngineStopped,
    CorruptLog,
    InvalidRequest,
    NotDurable,
    EngineStopped,
)
