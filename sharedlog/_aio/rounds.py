"""Threads of a log's own that sweep and trim while a program runs, for asyncio."""

from __future__ import annotations

from _rifl_ground.threads import in_thread
from sharedlog._log.sweeper import Sweeper as SyncSweeper
from sharedlog._log.trimming import Trimming as SyncTrimming


class Trimming:
    """A trimmer that works until it is closed; an async context manager (``log.trim_every``)."""

    def __init__(self, inner: SyncTrimming) -> None:
        """Use ``log.trim_every``."""
        self._inner = inner

    async def close(self) -> None:
        """Stop, after the round that runs; another one takes over at once. Idempotent."""
        await in_thread(self._inner.close)

    async def __aenter__(self) -> Trimming:
        """Return itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop."""
        await self.close()


class Sweeper:
    """As ``sharedlog``'s sweeper: an async context manager, inside which a thread makes rounds."""

    def __init__(self, inner: SyncSweeper) -> None:
        """Use ``log.sweeper``."""
        self._inner = inner

    @property
    def works(self) -> bool:
        """Whether this one of the log's sweepers does the work, as far as it knows."""
        return self._inner.works

    async def round(self) -> list[int]:
        """Look once, and return the producers that it retired."""
        return await in_thread(self._inner.round)

    async def close(self) -> None:
        """End the rounds, after the one that runs; another sweeper takes over at once."""
        await in_thread(self._inner.close)

    async def __aenter__(self) -> Sweeper:
        """Begin the rounds."""
        self._inner.__enter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        """End them."""
        await self.close()
