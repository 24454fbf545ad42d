"""Log engines: existing stores whose one primitive of ours is the conditional append."""

from __future__ import annotations

from curp.log._creation import create_log
from curp.log._opening import open_engine

__all__ = ["create_log", "open_engine"]
