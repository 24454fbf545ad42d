"""The message that ends a request stream (DESIGN §4)."""

from __future__ import annotations

# gRPC reports the end of a request stream and a stream that broke off by the same event, so the
# server could take half a stream for a whole one. The first byte is a tag of wire type 7, which
# there is not: a server that is not wrapped fails to parse it. The number of messages tells it
# from a message of the application's own bytes.
_PREFIX = b"\x07rifl-end"


def end_marker(messages: int) -> bytes:
    """Return the message that a client sends after so many others, to say that it has no more."""
    return _PREFIX + messages.to_bytes(8, "big")


def is_end_marker(message: bytes, messages: int) -> bool:
    """Whether a message after so many others is the marker."""
    return message.startswith(_PREFIX) and message == end_marker(messages)
