"""``python -m benchmarks.deliver.caller PORT ...``: rifl's own client, which calls in batches.

A line says for how many seconds; it is answered by how many calls were answered a second. Several
batches are in flight at each target.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import rifl
import rifl.aio
from benchmarks.deliver.messages import APPLY, small

__all__ = ["BATCH", "UNDER_WAY"]

BATCH, UNDER_WAY = 100, 4
_TIMEOUT_S = 30.0


async def _call(channel: rifl.aio.Channel, end: float) -> int:
    count = 0
    items = [rifl.BatchItem(small())] * BATCH
    while time.monotonic() < end:
        found = await channel.batch(APPLY, items, timeout=_TIMEOUT_S)
        wrong = [each for each in found if not each.ok]
        if wrong:
            raise RuntimeError(f"a call ended as {wrong[0]}")
        count += len(found)
    return count


async def _main(ports: Sequence[str]) -> None:
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(rifl.aio.connect(f"127.0.0.1:{port}")) for port in ports
        ]
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            began = time.monotonic()
            end = began + float(line)
            counts = await asyncio.gather(
                *(_call(each, end) for each in channels for _ in range(UNDER_WAY))
            )
            print(sum(counts) / (time.monotonic() - began), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1:]))
