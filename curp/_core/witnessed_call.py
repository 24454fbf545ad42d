"""A witnessed call: a request as a witness held it (DESIGN §7, invariants 2 and 6)."""

from __future__ import annotations

from typing import NamedTuple

from rifl.core._shared.call import Call


class WitnessedCall(NamedTuple):
    """A request that a witness held, parsed: the call, its bytes and its conflict keys.

    ``covered``: the witness held it under keys that cover these, so that it commutes with
    the other ones that are covered.
    """

    call: Call
    request: bytes
    keys: frozenset[int]
    covered: bool = True
