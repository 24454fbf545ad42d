"""A question to several peers at the same time, so that a hung one holds up no other."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def ask_all(
    addresses: Sequence[str],
    ask: Callable[[str], _T],
    *,
    enough: Callable[[_T], bool] = lambda answer: False,
    grace_s: float | None = None,
    timeout_s: float,
) -> dict[str, _T]:
    """Ask each in a thread of its own; what was answered, by address.

    Returns when all have answered, after ``timeout_s`` seconds, as soon as an answer is
    ``enough``, or ``grace_s`` seconds after the first answer that counts as true (None: not
    before the others). ``ask`` ends by itself, and does not raise.
    """
    if len(addresses) == 1:
        return {addresses[0]: ask(addresses[0])}
    answers: queue.SimpleQueue[tuple[str, _T]] = queue.SimpleQueue()
    for address in addresses:
        threading.Thread(
            target=lambda at=address: answers.put((at, ask(at))), name="curp-ask", daemon=True
        ).start()
    found: dict[str, _T] = {}
    until = time.monotonic() + timeout_s
    while len(found) < len(addresses):
        try:
            address, answer = answers.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            break
        found[address] = answer
        if enough(answer):
            break
        if answer and grace_s is not None:
            until = min(until, time.monotonic() + grace_s)
            grace_s = None
    return found
