"""The owner of a group's log, as whom failures of its store are told."""

from __future__ import annotations

from rifl._log import get_logger
from sharedlog._engines.owner import LOG

# The errors are the shared log's: ``_commits.meanings`` turns them into a group's.
GROUPS = LOG._replace(
    events=get_logger("curp.log"),
    event="log_engine_stopped",
    guide="docs/curp-logs.md",
    remedy="curp log accept-loss URL",
)
