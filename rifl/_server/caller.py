"""``rifl.caller_gone``: whether anybody still waits for the answer of this arrival (DESIGN §4)."""

from __future__ import annotations

from typing import Any

from rifl._server.context import noted_of


def caller_gone(context: Any) -> bool:
    """Tell whether the caller has left: it cancelled, its deadline passed, or it is cut off.

    Of the transport. A deduplicated call goes on all the same, and a retry gets its answer:
    one that stops half-way because the caller left would be recorded so, for good.
    ``context.is_active()``, ``cancelled()``, ``done()`` and callbacks speak of the call. For
    the context of any other call, which is gRPC's own, it tells the same. Any thread.
    """
    noted = noted_of(context)
    if noted is not None and noted.rifl_attempt.call.gone:
        return True
    inner = context if noted is None else noted.rifl_transport
    active = getattr(inner, "is_active", None)
    if active is not None:
        return not active()
    return bool(inner.cancelled() or inner.done())
