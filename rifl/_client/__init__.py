"""The client SDK: channels whose unary calls have their effect once (DESIGN §1).

``connect`` is the sync one, ``rifl.aio.connect`` its counterpart for asyncio.
"""

from rifl._client.batch import BatchItem, BatchResult
from rifl._client.channel import Channel, connect
from rifl._client.errors import CallError
from rifl._client.instrumentation import Instrumentation, instrument
from rifl._client.interceptor import ClientInterceptor, client_interceptor
from rifl._client.keys import key
from rifl._client.resolution import Resolution
from rifl._client.session import Session
from rifl.core._calling.retry import RetryPolicy

__all__ = [
    "BatchItem",
    "BatchResult",
    "CallError",
    "Channel",
    "ClientInterceptor",
    "Instrumentation",
    "Resolution",
    "RetryPolicy",
    "Session",
    "client_interceptor",
    "connect",
    "instrument",
    "key",
]
