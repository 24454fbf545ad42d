"""Threads of a log's own that sweep and trim while a program runs, for asyncio."""

from __future__ import annotations

from types import TracebackType

from _rifl_ground.threads import in_thread
from sharedlog._log.sweeper import Sweeper as SyncSweeper
from sharedlog._log.trimming import Trimming as SyncTrimming


class Trimming:
    """What ``log.trim_every`` returns: it trims until it is closed. An async context manager."""

    def __init__(self, inner: SyncTrimming) -> None:
        """Use ``log.trim_every``."""
        self._inner = inner

    async def close(self) -> None:
        """Stop, and let another one take over at once; idempotent. Waits for what runs."""
        await in_thread(self._inner.close)

    async def __aenter__(self) -> Trimming:
        """Return itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop."""
        await self.close()


class Sweeper:
    """As ``sharedlog``'s sweeper: an async context manager, inside which a thread makes rounds."""

    def __init__(self, inner: SyncSweeper) -> None:
        """Use ``log.sweeper``."""
        self._inner = inner

    @property
    def works(self) -> bool:
        """Whether it is this one of the log's sweepers that does the work, as it last knew."""
        return self._inner.works

    async def round(self) -> list[int]:
        """Look once, and return the producers that were retired."""
        return await in_thread(self._inner.round)

    async def close(self) -> None:
        """End the rounds; another one goes on at once. Waits for what runs."""
        await in_thread(self._inner.close)

    async def __aenter__(self) -> Sweeper:
        """Begin the rounds."""
        self._inner.__enter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End them."""
        await self.close()
