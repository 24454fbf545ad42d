"""The shared log for asyncio.

::

    async with await sharedlog.aio.open("sqlite:///events.log") as log:
        await log.publish("orders", b"an order", key="customer 7")
        async for message in log.follow("orders"):
            ...
"""

from sharedlog._aio.following import Following
from sharedlog._aio.log import Log
from sharedlog._aio.log import create_aio as create
from sharedlog._aio.log import open_aio as open  # noqa: A004 - `sharedlog.aio.open`
from sharedlog._aio.outbox import Outbox
from sharedlog._aio.outbox import create_outbox_aio as create_outbox
from sharedlog._aio.outbox import outbox_aio as outbox
from sharedlog._aio.producer import Producer, Transaction
from sharedlog._aio.rounds import Sweeper, Trimming

__all__ = [
    "Following",
    "Log",
    "Outbox",
    "Producer",
    "Sweeper",
    "Transaction",
    "Trimming",
    "create",
    "create_outbox",
    "open",
    "outbox",
]
