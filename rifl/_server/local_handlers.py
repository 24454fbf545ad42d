"""Handlers of local calls: found by their methods, and what they see of the transport (§4).

The handler of a local call (``local_calls``) is found as for a gRPC call of its method, with
the interceptors after rifl's.
"""

from __future__ import annotations

import copy
import functools
import operator
from typing import Any, NamedTuple

# Of google.rpc.Code.
_INVALID_ARGUMENT, _UNIMPLEMENTED = 3, 12


class NotFound(Exception):
    """There is no unary method of this name, or the request is none of its messages.

    ``code``: a google.rpc.Code.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[1])


class Transport:
    """gRPC's context of the call that brought the work, as far as a handler may see it.

    ``metadata``: what is said of this piece of work. Its answer is no message of a call: there
    is no compression and no cancelling.
    """

    def __init__(self, inner: Any, metadata: tuple[tuple[str, str | bytes], ...] = ()) -> None:
        self._inner = inner
        self._metadata = metadata

    def __getattr__(self, name: str) -> Any:
        # What an interceptor outside put on the context for handlers to read.
        return getattr(self._inner, name)

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Return what is said of the work, not what came with the call."""
        return self._metadata

    def is_active(self) -> bool:
        """Whether the call that brought it goes on."""
        active = getattr(self._inner, "is_active", None)
        if active is not None:
            return bool(active())
        return not (self._inner.cancelled() or self._inner.done())

    def set_compression(self, compression: Any) -> None:
        """Nothing: the answer is not sent."""

    def disable_next_message_compression(self) -> None:
        """Nothing, either."""

    def cancel(self) -> bool:
        """Nothing: the call is not this handler's."""
        return False


def again(continuation: Any) -> Any:
    """Return a continuation of a ``grpc.aio`` interceptor that can be called once more.

    gRPC's own goes through the interceptors by an iterator, so that a second call would pass by
    those after rifl's.
    """
    if isinstance(continuation, functools.partial) and continuation.args:
        rest, *others = continuation.args
        if not operator.length_hint(rest, 1):
            # There are none after rifl's.
            return continuation
        return functools.partial(continuation.func, copy.copy(rest), *others)
    raise TypeError(f"a continuation that is not gRPC's own cannot be called twice: {continuation}")


def unary_of(method: str, handler: Any) -> Any:
    if handler is None:
        raise NotFound(_UNIMPLEMENTED, f"the server has no method {method}")
    if handler.request_streaming or handler.response_streaming:
        raise NotFound(_UNIMPLEMENTED, f"{method} is a stream")
    return handler


class Parsed(NamedTuple):
    """A handler whose request is deserialised already."""

    unary_unary: Any
    request_deserializer: None
    response_serializer: Any


def read_request(handler: Any, request: bytes) -> Any:
    if handler.request_deserializer is None:
        return request
    try:
        return handler.request_deserializer(request)
    except Exception as error:
        raise NotFound(
            _INVALID_ARGUMENT, f"the request cannot be deserialised: {type(error).__name__}"
        ) from error
