"""Messages that are appended in a transaction of the application's."""

from __future__ import annotations

from sharedlog._core.errors import InvalidRequest, WrongTransaction
from sharedlog._core.fences import Fence, check_given
from sharedlog._core.publishing import APPEND_BYTES, Placed, committing
from sharedlog._core.within import Within
from sharedlog._engines.engine import Joining
from sharedlog._log.place import Place


def joining(place: Place) -> Joining:
    """Return the engine; raises ``WrongTransaction`` if no application has its database."""
    engine = place.engine
    if not isinstance(engine, Joining):
        raise WrongTransaction(
            "this log is in no database that an application has transactions in: sharedlog.outbox "
            "keeps messages in the application's database, and a relay appends them"
        )
    return engine


def within(place: Place, placed: Placed, fence: Fence | None) -> Within:
    """Return what is appended for a message; raises ``InvalidRequest`` if it is too large."""
    check_given(fence)
    check_size(place, placed)
    return Within(place.incarnation, tuple(committing([placed])), fence)


def check_size(place: Place, placed: Placed) -> None:
    """Raise ``InvalidRequest`` for a message that no append of this log has room for."""
    most = min(APPEND_BYTES, place.engine.limits.append_bytes)
    if placed.size > most:
        raise InvalidRequest(f"a message of {placed.size} bytes; this log takes {most}")
