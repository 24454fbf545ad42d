"""The client SDK: channels whose unary calls have their effect once (DESIGN §1).

``connect`` is the sync one, ``rifl.aio.connect`` its counterpart for asyncio. What begins with
``sync_`` or ``aio_`` is a shell, for threads or for an event loop; all else serves both.

What happens to a call, in this order:

- ``sync_channel``, ``aio_channel``: ``connect``, and the channel that stubs are made of;
  ``settings`` what it is given, ``grpc_channels`` the channel below it, ``sync_interceptor`` and
  ``aio_interceptor`` the way without a channel, ``instrumentation`` the way under a library.
- ``sync_multicallable``, ``aio_multicallable``: one unary method, with the hot path;
  ``sync_streams``, ``aio_streams`` (and ``resending``): methods with streams; ``batch``:
  many calls in one RPC; ``keys``: the caller's names for calls.
- ``exchange``, ``sync_exchange``, ``aio_exchange``: the retries of one call; ``aio_call``: the
  call object of ``grpc.aio``; ``answers``, ``aio_status``: what an attempt came back with;
  ``errors``: what is raised, and one class for each reason.
- ``routing``, ``sync_targets``, ``aio_targets``: which server an attempt goes to.

What calls share:

- ``state``, ``sync_client``, ``aio_client``: one client id's owner;
  ``lease_requests``: how its lease is kept; ``shared_renewals``: along with others';
  ``own_metadata``: what the application adds to these requests.
- ``sync_session``, ``aio_session``, ``resolution``: ``channel.session``; ``session_secret``;
  ``plaintext``: off which connections that stays.
"""

from rifl._client.batch import BatchItem, BatchResult
from rifl._client.errors import CallError, may_retry
from rifl._client.instrumentation import Instrumentation, instrument
from rifl._client.keys import key
from rifl._client.resolution import Resolution
from rifl._client.sync_channel import Channel, connect
from rifl._client.sync_interceptor import ClientInterceptor, client_interceptor
from rifl._client.sync_session import Session
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
    "may_retry",
]
