"""A group's log over any engine of the shared log (DESIGN-LOG §18): format 2.

- ``engine``: ``LogEngine``, by commits alone; ``lease`` and ``snapshots`` are parts of it.
- ``keys``: under which keys what is kept; ``bodies``: what an entry's row holds; ``pieces``:
  what a snapshot's keys hold.
- ``sqlite``, ``redis``, ``postgres``, ``etcd``: where a group's log is in each store; made,
  opened, and its losses accepted.
- ``stand_in``: what earlier releases find of it in tables of format 1.
- ``meanings``: the shared log's errors, told as a group's.
"""

from __future__ import annotations

from curp.log._commits.engine import CommitLog
from curp.log._commits.keys import first_keys

__all__ = ["CommitLog", "first_keys"]
