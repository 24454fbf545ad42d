"""The asyncio side of the API: ``rifl.aio.connect`` and what goes with it."""

from rifl.client.aio_channel import AioChannel as Channel
from rifl.client.aio_channel import connect
from rifl.client.aio_interceptor import client_interceptor
from rifl.client.aio_session import AioSession as Session
from rifl.server.operations import serve_until_signal_async as serve_until_signal
from rifl.server.recording import record_async as record
from rifl.server.transactions import transaction_async as transaction

__all__ = [
    "Channel",
    "Session",
    "client_interceptor",
    "connect",
    "record",
    "serve_until_signal",
    "transaction",
]
