"""The backend of a shared store, which carries out requests, and its errors."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol


class BackendError(Exception):
    """A request failed; it is unknown whether it was carried out."""


class NotCarriedOut(BackendError):
    """A request failed, and nothing of it was carried out or will be."""


class Undurable(BackendError):
    """The store may forget what it acknowledges: it is not used until that is mended.

    The text is what is weak.
    """


class WentBackwards(BackendError):
    """The store has lost what it acknowledged: it must not be served from."""


# A server that works has replied by then: no connection is broken for a call's last moment, and
# the record of a call that took longer than it had is written.
_LEAST_S = 1.0


# How often a request waits for as long as the store's limit says at most: for its turn or a
# connection, to connect, for a reply, and once more.
TRIES_TAKE = 4


def patience(within_s: float | None, limit_s: float) -> float:
    """Return how long to wait for a reply, in whole seconds below the store's own limit."""
    if within_s is None or within_s >= limit_s:
        return limit_s
    return min(limit_s, max(_LEAST_S, math.ceil(within_s)))


def ask_in_turn(
    ask: Callable[[Any, float | None], Any],
    requests: Sequence[Any],
    within_s: float | None,
    limit_s: float,
) -> list[Any]:
    """Ask one by one, blocking, while there is time; see ``Backend.ask_all``."""
    until = math.inf if within_s is None else time.monotonic() + patience(within_s, limit_s)
    replies: list[Any] = []
    for request in requests:
        left_s = None if within_s is None else until - time.monotonic()
        try:
            if left_s is not None and left_s <= 0:
                raise NotCarriedOut("the call's time was over before the store was asked")
            replies.append(ask(request, left_s))
        except BackendError as error:
            replies.append(error)
    return replies


class Backend(Protocol):
    """Carries out requests, each one atomic step. Safe in any thread.

    A request that is carried out twice because its reply was lost is harmless. ``longest_s``:
    no request waits longer, with all its tries.
    """

    longest_s: float

    def ask(self, request: Any, within_s: float | None = None) -> Any:
        """Carry out a request, blocking; raises ``BackendError`` and nothing else.

        ``within_s``: how long a reply is of use. See ``patience``.
        """

    async def ask_async(self, request: Any) -> Any:
        """The same on the running event loop."""

    def ask_all(self, requests: Sequence[Any], within_s: float | None = None) -> list[Any]:
        """Carry out requests of one client's, in their order, each one a step of its own.

        In as few round trips as it can. Returns for each its reply, or the ``BackendError``
        it failed with; raises nothing. Blocks; ``within_s``: as ``ask``, for all together.
        """

    async def ask_all_async(self, requests: Sequence[Any]) -> list[Any]:
        """The same on the running event loop."""

    def expire_keys(self, lost: bytes, limit: int) -> int:
        """Delete at most ``limit`` keyed calls whose retention has passed; return how many.

        Record, identity and what counts towards bounds go in one durable step, late
        rather than early, by what was lived through (``Beat``). ``lost`` is the record of
        a plain call in a namespace, to be kept for a time, whose replica is gone: no lease
        ends it, so this does.
        Blocks; raises ``BackendError``.
        """

    def look_again(self) -> str:
        """After a beat: why the store may forget what it acknowledges, empty if it may not.

        Blocks; raises ``BackendError``.
        """

    def seal(self) -> None:
        """Have a store that went backwards refuse everyone, also after this process. Blocks."""

    def listen(
        self, owner: str, wake: Callable[[bytes], None], resubscribed: Callable[[], None]
    ) -> None:
        """From now on call ``wake`` with each ended attempt's token ``owner`` waits for.

        ``resubscribed`` is called whenever some may have been missed.
        """

    def close(self) -> None:
        """Let the connections go."""
