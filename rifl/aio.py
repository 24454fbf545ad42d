"""The asyncio side of the API: ``rifl.aio.connect`` and what goes with it."""

from rifl._client.aio_channel import AioChannel as Channel
from rifl._client.aio_channel import connect
from rifl._client.aio_interceptor import client_interceptor
from rifl._client.aio_session import AioSession as Session
from rifl._server.recording import record_async as record
from rifl._server.shutdown import serve_until_signal_async as serve_until_signal
from rifl._server.transactions import transaction_async as transaction

__all__ = [
    "Channel",
    "Session",
    "client_interceptor",
    "connect",
    "record",
    "serve_until_signal",
    "transaction",
]
