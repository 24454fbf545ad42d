"""Which metadata of an answer are ours, and a handler's metadata without them (DESIGN §3).

A label speaks of one call of one server. A handler that forwards the error of a server
which it called itself forwards that server's labels with it, and its own caller would take
them for ours: that nothing ran, say, and then run it again.
"""

from __future__ import annotations

from rifl._grpc.status import DETAILS_KEY, without_error_info
from rifl.core._shared.record import Metadata

PREFIX = "rifl-"


def without_labels(metadata: Metadata) -> Metadata:
    """Return what is the handler's own: no entry of ours, no ErrorInfo of our domain."""
    if not any(key == DETAILS_KEY or key.startswith(PREFIX) for key, _ in metadata):
        return metadata
    found: list[tuple[str, str | bytes]] = []
    for key, value in metadata:
        if key.startswith(PREFIX):
            continue
        if key == DETAILS_KEY and isinstance(value, bytes):
            value = without_error_info(value)
            if not value:
                continue
        found.append((key, value))
    return tuple(found)
