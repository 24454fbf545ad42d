"""A group's replica: follows the log, leads when nobody else does (DESIGN §7)."""

from curp._replica.errors import Diverged, NotServed, ReplicaStopped
from curp._replica.replica import Replica
from curp._replica.stamp import now, random

__all__ = ["Diverged", "NotServed", "Replica", "ReplicaStopped", "now", "random"]
