"""gRPC's status codes by number, as records and messages keep them."""

from __future__ import annotations

import grpc

STATUS_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
# How a server ends a stream for heartbeats, or records, that it does not have, has too many of, or
# does not let this caller have (the application's interceptor may give its token to unary calls
# alone): what the stream would carry is sent singly.
NO_STREAM = (
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
)
# And how an aio one may end, whatever its server said, when a message was just being written. What
# it carried is sent singly; it may be sent twice.
SENT_SINGLY = (*NO_STREAM, grpc.StatusCode.INTERNAL)


def status_code(number: int) -> grpc.StatusCode:
    """Return the code of a number, UNKNOWN for one that is none."""
    return STATUS_CODES.get(number, grpc.StatusCode.UNKNOWN)


def code_name(number: int) -> str:
    """Return the name of a number for people to read, its digits if it has none."""
    return STATUS_CODES[number].name if number in STATUS_CODES else str(number)
