"""The protocols of a group, of a log and of its player as Promela models, searched whole by spin.

- ``searches``: of ``curp.pml``, a group (DESIGN §7): what may go wrong, which rule is broken.
- ``log_searches``: of ``log.pml``, spans, markers and retiring of a log (DESIGN-LOG §13).
- ``player_searches``: of ``player.pml``, deliveries of a log to targets (DESIGN-LOG §15).
- ``spin``: runs them, by ``python -m chaos.model``.
"""

from __future__ import annotations

from chaos.model.log_searches import LOG_BROKEN, LOG_LONG, LOG_MODEL, LOG_SAFETY, LogSearch
from chaos.model.player_searches import (
    PLAYER_BROKEN,
    PLAYER_LIVENESS,
    PLAYER_LIVENESS_LONG,
    PLAYER_LONG,
    PLAYER_MODEL,
    PLAYER_SAFETY,
    PlayerSearch,
)
from chaos.model.searches import BROKEN, LIVENESS, LONG, SAFETY, Search
from chaos.model.spin import Found, Model

__all__ = [
    "BROKEN",
    "LIVENESS",
    "LOG_BROKEN",
    "LOG_LONG",
    "LOG_MODEL",
    "LOG_SAFETY",
    "LONG",
    "PLAYER_BROKEN",
    "PLAYER_LIVENESS",
    "PLAYER_LIVENESS_LONG",
    "PLAYER_LONG",
    "PLAYER_MODEL",
    "PLAYER_SAFETY",
    "SAFETY",
    "Found",
    "LogSearch",
    "Model",
    "PlayerSearch",
    "Search",
]
