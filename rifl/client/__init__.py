"""The client SDK: channels whose unary calls have their effect once (DESIGN §1).

``connect`` is the sync one, ``rifl.aio.connect`` its counterpart for asyncio.
"""

from rifl.client.channel import Channel, connect
from rifl.client.errors import CallError
from rifl.client.resolution import Resolution
from rifl.client.session import Session
from rifl.core.retry import RetryPolicy

__all__ = ["CallError", "Channel", "Resolution", "RetryPolicy", "Session", "connect"]
