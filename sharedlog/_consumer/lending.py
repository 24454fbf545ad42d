"""The refusal of what a handler was lent, once it has ended, and in a child that it forks."""

from __future__ import annotations

import os
import traceback
from typing import NoReturn

from sharedlog._core.errors import HandlerEnded


def handler_ended() -> HandlerEnded:
    """Return what tasks, threads and functions get that a handler has left."""
    return HandlerEnded(
        "the handler has ended, and what it was lent with it: nothing of this was done. "
        "Await all tasks and join all threads before the handler returns or raises "
        "(asyncio.TaskGroup does so; asyncio.gather leaves the others when one fails)"
    )


def end_child(error: BaseException) -> NoReturn:
    """End a forked child that a handler returns or raises in, in a thread beside the first one.

    The child has this thread alone: no caller could catch the error.
    """
    traceback.print_exception(error)
    os._exit(1)
