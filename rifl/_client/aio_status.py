"""The status of a finished aio call, read without a task."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from rifl._client.answers import FinalStatus
from rifl.core._shared.invariant import invariant


def finished_status(call: Any) -> FinalStatus:
    """Return what a finished call of ``grpc.aio``'s ended with."""
    return FinalStatus(
        at_hand(call.code()),
        at_hand(call.details()),
        at_hand(call.initial_metadata()),
        at_hand(call.trailing_metadata()),
        at_hand(call.debug_error_string()),
    )


def at_hand(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return what a coroutine returns that has nothing to wait for.

    gRPC offers the status of a finished call by coroutines only, and a task for
    each call would cost more than everything else here.
    """
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    invariant(False, "the status of a finished call is there")
    return None
