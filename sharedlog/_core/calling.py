"""Calls of rules: which rule, and with what arguments, for a process that has the log.

A rule that is ``portable`` comes to its end in one place: where the log is at hand its steps are
driven there; else (over gRPC) its call is told to who has the log, who runs the same rule.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Mapping
from typing import Any, ParamSpec, TypeVar

from sharedlog._core.steps import Rule, Step

_P = ParamSpec("_P")
_T = TypeVar("_T")


class CalledRule(Generator[Step, Any, _T]):
    """A rule that was called: its steps, as of any, and what it is."""

    __slots__ = ("_steps", "arguments", "function", "named")

    def __init__(
        self,
        function: Callable[..., Rule[_T]],
        arguments: tuple[Any, ...],
        named: Mapping[str, Any],
    ) -> None:
        """Nothing of it has begun."""
        self.function = function
        self.arguments = arguments
        self.named = named
        self._steps: Rule[_T] | None = None

    def __iter__(self) -> Rule[_T]:
        """Begin: within another rule only its steps are of interest."""
        if self._steps is None:
            self._steps = self.function(*self.arguments, **self.named)
        return self._steps

    def send(self, value: Any, /) -> Step:
        """Go on with the answer to a step."""
        return iter(self).send(value)

    def throw(self, *error: Any) -> Step:
        """Go on with what a step raised."""
        return iter(self).throw(*error)


def portable(function: Callable[_P, Rule[_T]]) -> Callable[_P, Rule[_T]]:
    """Have calls of a rule say what they are."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> Rule[_T]:
        return CalledRule(function, args, kwargs)

    return call
