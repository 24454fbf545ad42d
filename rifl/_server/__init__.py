"""The server's side: shells over ``rifl.core._serving``, which decides what becomes of a call.

A call arrives at ``interceptors``; ``sync`` or ``aio`` drives the rules for it, with

- ``call_engine``: store, leases and bounds; step 1, the header and its token
- ``context``: what the handler is given
- ``handler_results``: what is recorded of what the handler did
- ``reply``: what the caller is told, and who hears of it, and what is logged
- ``sync_streams``, ``aio_streams``: calls with a stream on one side
- ``aio_batches``, ``batches``: batched calls
- ``rooms``: places for handlers; ``unheard_runs``: handlers that no caller waits for
- ``eager_task``: how a coroutine handler begins at once
- ``local_calls``: handlers that run without a gRPC caller; ``local_handlers``: how they are
  found

The user's objects and functions:

- ``deduplicator``: ``rifl.Deduplicator``; ``declarations`` of methods, ``sweeper``
- ``recording``, ``transactions``: ``rifl.record`` and ``rifl.transaction``
- ``shutdown``: ``rifl.serve_until_signal``; ``store_release`` what follows it
- ``health``: gRPC health and reflection
- ``outcomes_service``: ``rifl.v1.Outcomes``
"""

from rifl._server.context import caller_gone, may_be_undone
from rifl._server.deduplicator import Deduplicator
from rifl._server.recording import record, record_async
from rifl._server.shutdown import serve_until_signal, serve_until_signal_async
from rifl._server.transactions import transaction, transaction_async

__all__ = [
    "Deduplicator",
    "caller_gone",
    "may_be_undone",
    "record",
    "record_async",
    "serve_until_signal",
    "serve_until_signal_async",
    "transaction",
    "transaction_async",
]
