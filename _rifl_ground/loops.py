"""The wake-up of an event loop: how other threads tell it something."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def tell_loop(loop: asyncio.AbstractEventLoop, told: Callable[..., object], *given: Any) -> None:
    """Call a function on an event loop soon; do nothing if the loop is closed.

    Any thread, also from a finalizer or a signal's handler: it takes no lock of rifl.
    """
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(told, *given)
