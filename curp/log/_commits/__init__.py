"""A group's log over any engine of the shared log (DESIGN-LOG §18).

- ``group_log``: ``GroupLog``, by commits alone; ``lease`` and ``snapshots`` are parts of it.
- ``keys``: the log's keys, their values, and the number of the format; ``bodies``: the body of an
  entry's row.
- ``sqlite``, ``redis``, ``postgres``, ``etcd``: the place of a group's log in each store: a log is
  made and opened there, and its losses accepted.
"""

from __future__ import annotations

from curp.log._commits.group_log import GroupLog
from curp.log._commits.keys import first_keys

__all__ = ["GroupLog", "first_keys"]
