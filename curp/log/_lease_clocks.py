"""Leases by the clocks that they end by, and what is left of one (invariant 10)."""

from __future__ import annotations

from curp.log._engine import Leadership
from curp.log._errors import EngineUnavailable
from sharedlog._core.errors import LogUnavailable
from sharedlog._engines.terms import BootClock, ServerTerms, Term


def this_machine() -> BootClock:
    """Return the machine's own clock; Linux only, raises ``EngineUnavailable`` elsewhere."""
    try:
        return BootClock.of_this_machine()
    except LogUnavailable as error:
        raise EngineUnavailable(str(error)) from None


def leadership_of(
    terms: ServerTerms, lease: Term, whose: tuple[bytes, bytes], server_now: float
) -> Leadership | None:
    """Return the newest leadership, by its replica and address; None before the first."""
    if not lease.number:
        return None
    replica, address = whose
    left_s = terms.remaining_s(lease, server_now)
    return Leadership(lease.number, replica.decode(), address.decode(), left_s)
