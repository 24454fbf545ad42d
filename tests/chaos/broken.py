"""Rules of the product that a test breaks for a while, by a replacement."""

from __future__ import annotations

import unittest.mock
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

__all__ = ["replaced", "rule_without"]


def replaced(owner: Any, name: str, value: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: unittest.mock.patch.object(owner, name, value)


def rule_without(
    module: Any, name: str, **answers: Any
) -> Callable[[], AbstractContextManager[Any]]:
    """Have a rule believe that steps were carried out, by their names, with these answers."""
    original = getattr(module, name)

    def rule(*arguments: Any, **keywords: Any) -> Any:
        steps, answer = original(*arguments, **keywords), None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as stop:
                return stop.value
            kind = type(step).__name__
            answer = answers[kind] if kind in answers else (yield step)

    return replaced(module, name, rule)
