"""What a replica does."""

from __future__ import annotations


class Role:
    """What a replica does, as ``curp.v1.GroupStatusReply`` names it."""

    LEADER = "leader"
    STANDBY = "standby"
    RECOVERING = "recovering"
    STOPPED = "stopped"
