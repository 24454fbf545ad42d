"""Log engines: existing stores whose one primitive of ours is the conditional append."""

from __future__ import annotations

from curp.log.creation import create_log
from curp.log.opening import open_engine

__all__ = ["create_log", "open_engine"]
