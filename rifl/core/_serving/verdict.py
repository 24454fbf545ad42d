"""The verdict about the identity of an arriving call (DESIGN §4)."""

from __future__ import annotations

import enum


class Verdict(enum.Enum):
    """The four cases of RIFL's ``checkDuplicate`` (RIFL §3.3)."""

    NEW = "new"
    IN_PROGRESS = "in-progress"
    COMPLETED = "completed"
    STALE = "stale"
