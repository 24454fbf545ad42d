"""The backend of a shared store, which carries out requests, and its errors."""

from __future__ import annotations

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


class Backend(Protocol):
    """Carries out requests, each one atomic step. Safe in any thread.

    A request that is carried out twice because its reply was lost is harmless.
    """

    def ask(self, request: Any) -> Any:
        """Carry out a request, blocking; raises ``BackendError`` and nothing else."""

    async def ask_async(self, request: Any) -> Any:
        """The same on the running event loop."""

    def ask_all(self, requests: Sequence[Any]) -> list[Any]:
        """Carry out requests of one client's, in their order, each one a step of its own.

        In as few round trips as it can. Returns for each its reply, or the ``BackendError``
        it failed with; raises nothing. Blocks.
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
