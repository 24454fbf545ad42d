"""The public surface of rifl.core (DESIGN §9)."""

from __future__ import annotations

import rifl.core
from rifl.core._shared import errors

# Called from outside this repository, importable as written.
PROMISED = {"RequestTracker", "ResultTracker", "Verdict", "BitVecQueue", "KeyedTracker"}


def test_core_exports_what_was_promised() -> None:
    """The names others import, all errors, and what they are made of (DESIGN §9)."""
    others = {
        "CompletedSet",
        "CompletionRecord",
        "InvariantViolated",
        "Outcome",
        "RpcId",
        "invariant",
    }
    assert set(rifl.core.__all__) == PROMISED | others | set(errors.__all__)
    assert rifl.core.__all__ == sorted(rifl.core.__all__)


def test_verdicts_are_the_four_of_rifl() -> None:
    """NEW, IN_PROGRESS, COMPLETED and STALE, and no other (RIFL §3.3)."""
    assert [verdict.name for verdict in rifl.core.Verdict] == [
        "NEW",
        "IN_PROGRESS",
        "COMPLETED",
        "STALE",
    ]
