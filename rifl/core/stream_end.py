"""The message that ends a request stream (DESIGN §4)."""

from __future__ import annotations

__all__ = ["end_marker"]

# gRPC reports the end of a request stream and a stream that broke off by the same event:
# half a stream were believed whole. No protobuf message begins with 0x00, so a server that
# does not know the marker fails to parse it; the number of messages tells it from a message
# of the application's own bytes.
_PREFIX = b"\x00rifl-end"


def end_marker(messages: int) -> bytes:
    """Return what is sent behind so many messages, and says that there are no more."""
    return _PREFIX + messages.to_bytes(8, "big")
