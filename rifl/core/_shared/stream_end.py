"""The message that ends a request stream (DESIGN §4)."""

from __future__ import annotations

# gRPC reports the end of a request stream and a stream that broke off by the same event:
# half a stream were believed whole. A server that does not know the marker is to fail to parse
# it; the number of messages tells it from a message of the application's own bytes. Servers
# say up to which of these forms they take; the first byte of the second is a tag of wire type
# 7, which there is not, while some runtimes take that of the first for an unknown field.
_PREFIXES = {1: b"\x00rifl-end", 2: b"\x07rifl-end"}
_FIRST_BYTES = tuple(prefix[:1] for prefix in _PREFIXES.values())
# The newest form, and that of what is sent to who knows it.
FORM = max(_PREFIXES)


def end_marker(messages: int, form: int = FORM) -> bytes:
    """Return what is sent behind so many messages, and says that there are no more.

    ``form`` is what the server takes; of a newer one than is known here, the newest.
    """
    return _PREFIXES[min(form, FORM)] + messages.to_bytes(8, "big")


def is_end_marker(message: bytes, messages: int) -> bool:
    """Whether a message behind so many others is the marker, in any form."""
    return message[:1] in _FIRST_BYTES and any(
        message == end_marker(messages, form) for form in _PREFIXES
    )
