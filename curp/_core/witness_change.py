"""The change by which another witness list comes into force (CURP §3.6; DESIGN §7, invariant 11).

A generator that its shell drives, as ``curp._core.recovery`` is. Whatever the shell raises
ends it, and the leadership with it: whether the number was taken may not be known, and
a call answered first under the old one could be in no log, and on no witness
that is asked.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from curp._core.steps import Sync
from curp._core.witness_list import Publish, WitnessList, start_witnesses
from rifl.core._shared.errors import NotLeader


class HoldBack(NamedTuple):
    """Answer nothing first from now on; send back the last LSN that was given."""


class NextNumber(NamedTuple):
    """Take the number after ``configuration``, with this list, between two appends.

    And between two renewals of the lease. From then on the leader goes on under it, as one
    without witnesses. Send back the number.
    """

    configuration: int
    witnesses: WitnessList


class Serve(NamedTuple):
    """Go on under this list, which is published, and whose witnesses hold nothing."""

    witnesses: WitnessList


def change_witnesses(configuration: int, wanted: Sequence[str]) -> Generator[Any, Any, WitnessList]:
    """Put ``wanted`` in force in the place of the list of ``configuration``.

    Everything answered first under the old number is in the log before there is a new one,
    nothing is answered first in between, and a witness serves the new number only from
    empty. Returns the list in force: those of ``wanted`` that were started. Raises
    ``NotLeader`` if the engine gave another number than the next.
    """
    before: int = yield HoldBack()
    yield Sync(before)
    asked_for = tuple(wanted)
    listed = WitnessList(configuration + 1, asked_for, False, asked_for)
    number: int = yield NextNumber(configuration, listed)
    if number != listed.configuration:
        # Engines count by one; a list under another number would belong to no leader.
        raise NotLeader(f"the engine gave number {number}, not {listed.configuration}")
    started = yield from start_witnesses(asked_for, number)
    serving = listed._replace(witnesses=started, serving=True)
    yield Publish(serving)
    yield Serve(serving)
    return serving
