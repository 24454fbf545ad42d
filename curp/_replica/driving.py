"""Carries out the core's generators, step by step, in the thread that calls."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

_T = TypeVar("_T")


def drive(rule: Generator[Any, Any, _T], do: Callable[[Any], Any]) -> _T:
    """Have ``do`` do each step, and send back what it returns; what the rule returns.

    What ``do`` raises ends it, and is raised.
    """
    answer: Any = None
    while True:
        try:
            step = rule.send(answer)
        except StopIteration as stop:
            found: _T = stop.value
            return found
        answer = do(step)
