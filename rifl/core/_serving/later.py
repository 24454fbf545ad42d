"""A result that is not there yet, as the rules see it."""

from __future__ import annotations

import abc
from collections.abc import Callable, Generator
from typing import Any


class Later(abc.ABC):
    """Something to wait for, in whichever way the shell waits.

    A rule that gets one from a store yields it; the shell waits, by ``wait`` or
    by ``await``, and sends the result back in, or throws the error in.
    """

    __slots__ = ()

    @abc.abstractmethod
    def wait(self) -> Any:
        """Block until the result is there and return it; raises its error."""

    def wait_for_call(self, remaining_s: Callable[[], float | None]) -> Any:
        """Do what ``wait`` does for a call, of whose deadline ``remaining_s`` tells.

        What can be given up is given up when that has passed.
        """
        return self.wait()

    @abc.abstractmethod
    def __await__(self) -> Generator[Any, Any, Any]:
        """Await the result; raises its error."""
