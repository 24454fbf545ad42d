"""The server's side: interceptors, and the completion record in a transaction."""

from rifl.server.deduplicator import Deduplicator
from rifl.server.operations import serve_until_signal, serve_until_signal_async
from rifl.server.recording import commit, commit_async, record, record_async

__all__ = [
    "Deduplicator",
    "commit",
    "commit_async",
    "record",
    "record_async",
    "serve_until_signal",
    "serve_until_signal_async",
]
