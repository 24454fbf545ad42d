"""The log in etcd: a quorum of machines keeps it (DESIGN §7)."""

from __future__ import annotations

from curp.log._etcd.engine import EtcdEngine

__all__ = ["EtcdEngine"]
