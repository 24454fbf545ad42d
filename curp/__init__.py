"""Replicated groups (DESIGN §7): durable in one round trip, exactly once through leader changes."""

from curp.replica import Diverged, NotServed, Replica, ReplicaStopped, now, random

__all__ = ["Diverged", "NotServed", "Replica", "ReplicaStopped", "now", "random"]
