"""Log engines: existing stores whose one primitive of ours is the conditional append."""

from __future__ import annotations

from curp.log.opening import open_engine

__all__ = ["open_engine"]
