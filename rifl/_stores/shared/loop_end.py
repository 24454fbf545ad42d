"""Whether an event loop is ending, as its handlers can tell (DESIGN §4)."""

from __future__ import annotations

import asyncio


def loop_ends() -> bool:
    """Whether every task of the running loop has been cancelled, or has ended.

    So ``asyncio.run`` does when its main coroutine has ended; a server's own cancels its
    handlers one by one. False where no loop runs.
    """
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:
        return False
    return all(task.cancelling() for task in tasks)
