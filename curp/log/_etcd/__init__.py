"""The log in etcd: a quorum of machines keeps it (DESIGN §7).

- ``engine``: the log, on a ``connection`` to ``keys`` of its own; ``records``: their values.
- ``client``, ``calls``, ``address``: etcd itself, and its URLs.
- ``reading``, ``watch``: entries, and who hears of new ones; ``lease``: who leads.
- ``snapshots``, ``compaction``: what makes room; ``accept_loss``: an operator's word.
"""

from __future__ import annotations

from curp.log._etcd.engine import EtcdEngine

__all__ = ["EtcdEngine"]
