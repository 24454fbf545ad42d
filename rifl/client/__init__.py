"""The client SDK: channels whose unary calls have their effect once (DESIGN §1).

``connect`` is the sync one, ``rifl.aio.connect`` its counterpart for asyncio.
"""

from rifl.client.batch import BatchItem, BatchResult
from rifl.client.channel import Channel, connect
from rifl.client.errors import CallError
from rifl.client.instrumentation import Instrumentation, instrument
from rifl.client.interceptor import ClientInterceptor, client_interceptor
from rifl.client.keys import key
from rifl.client.resolution import Resolution
from rifl.client.session import Session
from rifl.core.retry import RetryPolicy

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
