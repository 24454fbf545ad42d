"""The log in etcd: a quorum of machines keeps it (DESIGN §7).

- ``engine``: the log, on a ``connection`` to ``keys`` of its own; ``records``: their values.
- ``reading``: entries; ``lease``: who leads.
- ``snapshots``: what lets entries be trimmed; ``accept_loss``: an operator's word.

etcd itself, its URLs, who hears of new entries, and what makes room: ``sharedlog._engines.etcd``.
"""

from __future__ import annotations

from curp.log._etcd.engine import EtcdEngine

__all__ = ["EtcdEngine"]
