"""The wake-up of an event loop: how other threads tell it something."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def tell_loop(loop: asyncio.AbstractEventLoop, told: Callable[..., object], *given: Any) -> None:
    """Have something called on a loop, soon; nobody waits on a loop that is closed.

    Any thread, a finalizer's and a signal's handler, too: takes no lock of ours.
    """
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(told, *given)
