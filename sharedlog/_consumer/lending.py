"""The refusal of what a handler was lent, once it has ended."""

from __future__ import annotations

from sharedlog._core.errors import HandlerEnded


def handler_ended() -> HandlerEnded:
    """Return what tasks, threads and functions get that a handler has left."""
    return HandlerEnded(
        "the handler has ended, and what it was lent with it: nothing of this was done. "
        "Await all tasks and join all threads before the handler returns or raises "
        "(asyncio.TaskGroup does so; asyncio.gather leaves the others when one fails)"
    )
