"""The server's side: interceptors, and the completion record in a transaction."""

from rifl.server.caller import caller_gone
from rifl.server.deduplicator import Deduplicator
from rifl.server.operations import serve_until_signal, serve_until_signal_async
from rifl.server.recording import record, record_async
from rifl.server.transactions import transaction, transaction_async

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
