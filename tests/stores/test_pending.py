"""Results that threads bring and event loops wait for (DESIGN §6)."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rifl._stores.pending import Pending, waking_together
from tests.helpers.waiting import DEADLINE_S


@pytest.mark.parametrize("breaks", [False, True])
def test_a_loop_is_told_once_of_what_a_thread_resolves_together(breaks: bool) -> None:
    """It is told at the end of the block, also of one that raises; not before, nor twice."""

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        told: list[Any] = []
        tell = loop.call_soon_threadsafe

        async def awaited(pending: Pending) -> None:
            await pending

        results = [Pending() for _ in range(16)]
        waiting = asyncio.gather(*map(awaited, results))
        await asyncio.sleep(0)

        def resolve() -> None:
            with waking_together():
                for result in results:
                    result.succeed()
                assert not told
                if breaks:
                    raise KeyError

        loop.call_soon_threadsafe = lambda *given, **more: (  # type: ignore[method-assign]
            told.append(given),
            tell(*given, **more),
        )
        with ThreadPoolExecutor(1) as pool:
            error = pool.submit(resolve).exception(DEADLINE_S)
        assert type(error) is (KeyError if breaks else type(None)), error
        assert len(told) == 1
        await waiting

    asyncio.run(asyncio.wait_for(serve(), DEADLINE_S))
