"""``curp.now`` and ``curp.random``: what handlers use in place of a clock and of chance."""

from __future__ import annotations

import random as _random
from datetime import UTC, datetime, timedelta
from typing import Any

from rifl._server.context import CURRENT, Noted

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def now(context: Any) -> datetime:
    """Return the call's time, by its client's clock: the same in every replay of it.

    Aware, in UTC. For handlers in a group; raises ``RuntimeError`` elsewhere.
    """
    return _EPOCH + timedelta(microseconds=_stamp(context)[0])


def random(context: Any) -> _random.Random:
    """Return a source of random numbers that gives the same ones in every replay.

    A new one at each call, seeded by the call: keep it for more numbers than one. Not
    for secrets. Raises ``RuntimeError`` outside a group.
    """
    return _random.Random(_stamp(context)[1])  # noqa: S311 - repeatable is what is wanted


def _stamp(context: Any) -> tuple[int, int]:
    # Another interceptor may have wrapped the context once more.
    noted = context if isinstance(context, Noted) else CURRENT.get()
    if noted is None:
        raise RuntimeError("the call was not served by a group: it has no stamp")
    stamp: tuple[int, int] = noted.rifl_attempt.call.stamp
    return stamp
