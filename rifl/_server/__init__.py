"""The server's side: interceptors, and the completion record in a transaction."""

from rifl._server.context import caller_gone
from rifl._server.deduplicator import Deduplicator
from rifl._server.recording import record, record_async
from rifl._server.shutdown import serve_until_signal, serve_until_signal_async
from rifl._server.transactions import transaction, transaction_async

__all__ = [
    "Deduplicator",
    "caller_gone",
    "record",
    "record_async",
    "serve_until_signal",
    "serve_until_signal_async",
    "transaction",
    "transaction_async",
]
