"""The outcome of a call, as far as anyone can know it (DESIGN §3)."""

from __future__ import annotations

import enum


class Outcome(enum.Enum):
    """The label on an answer or an error; its value is the wire's word.

    Only what is known not to have run is ``NOT_EXECUTED``; a call that may have
    run is ``UNKNOWN``.
    """

    EXECUTED = "executed"
    REPLAYED = "replayed"
    NOT_EXECUTED = "not-executed"
    UNKNOWN = "unknown"
