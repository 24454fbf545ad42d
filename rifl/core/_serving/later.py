"""Results that are not there yet, as the rules see them: one, or several together."""

from __future__ import annotations

import abc
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

# One for each item of a batch, in order: what the method for one gives, or the error it raises.
Replies = Sequence[Any]


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


class AllLater(Later):
    """Several to wait for; the result has an error where one of them raises it.

    ``replies`` are what is waited for, and what is there already.
    """

    __slots__ = ("replies",)

    def __init__(self, replies: Replies) -> None:
        self.replies = replies

    def wait(self) -> list[Any]:
        """Block for each of them."""
        return self._wait(lambda reply: reply.wait())

    def wait_for_call(self, remaining_s: Callable[[], float | None]) -> list[Any]:
        """Do the same for a call with a deadline."""
        return self._wait(lambda reply: reply.wait_for_call(remaining_s))

    def _wait(self, wait: Callable[[Later], Any]) -> list[Any]:
        found: list[Any] = []
        for reply in self.replies:
            try:
                found.append(wait(reply) if isinstance(reply, Later) else reply)
            except Exception as error:  # noqa: BLE001 - its item's; the others go on
                found.append(error)
        return found

    def __await__(self) -> Generator[Any, Any, list[Any]]:
        """Await each of them."""
        found: list[Any] = []
        for reply in self.replies:
            try:
                found.append((yield from reply.__await__()) if isinstance(reply, Later) else reply)
            except Exception as error:  # noqa: BLE001 - as above
                found.append(error)
        return found


def ask_each(ask: Callable[[Any], Any], subjects: Iterable[Any]) -> Replies | Later:
    """Ask for items one by one; an item's error is its own."""
    replies: list[Any] = []
    for subject in subjects:
        try:
            replies.append(ask(subject))
        except Exception as error:  # noqa: BLE001 - its item's; the others go on
            replies.append(error)
    if any(isinstance(reply, Later) for reply in replies):
        return AllLater(replies)
    return replies
