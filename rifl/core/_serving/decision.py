"""The decision about an arriving call: a verdict, and what goes with it (DESIGN §4)."""

from __future__ import annotations

from typing import NamedTuple

from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.record import CompletionRecord


class Decision(NamedTuple):
    """A verdict with what goes with it.

    ``NEW`` and ``IN_PROGRESS`` carry the attempt, ``COMPLETED`` the record (None:
    fetch it). ``verified``: the call's payload can be held against what is kept.
    """

    verdict: Verdict
    attempt: Attempt | None = None
    record: CompletionRecord | None = None
    verified: bool = True
