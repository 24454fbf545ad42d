"""The raising of fences, past who hangs with the log."""

from __future__ import annotations

import time

from sharedlog._core.errors import LogStopped, LogUnavailable
from sharedlog._core.fences import Fence, check_fence_name, raise_fence
from sharedlog._engines.engine import Joining
from sharedlog._log.place import Place


def take_over(place: Place, name: str) -> Fence:
    """Raise a fence. Raises ``LogUnavailable``, and says for whom it has waited."""
    check_fence_name(name)
    end = time.monotonic() + place.timeout_s
    while True:
        whom = _make_way(place)
        try:
            return Fence(name, place.run(raise_fence(name)))
        except LogUnavailable as error:
            if not whom or isinstance(error, LogStopped):
                raise
            if time.monotonic() >= end:
                raise LogUnavailable(
                    f"{error}. The log waits for {whom}, whose transaction has to end: it may be "
                    "ended by an administrator (pg_terminate_backend)"
                ) from error


def _make_way(place: Place) -> str:
    engine = place.engine
    return engine.make_way() if isinstance(engine, Joining) else ""
