"""The owner of a group's log, as whom failures of its store are told."""

from __future__ import annotations

from _rifl_ground.log import get_logger
from sharedlog._engines.owner import LOG, Owner

GROUPS = Owner(
    get_logger("curp.log"),
    "log_engine_stopped",
    "docs/reference/curp-logs.md",
    "curp log accept-loss URL",
    *LOG[4:],
)
