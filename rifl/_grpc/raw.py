"""Handlers that work on serialised messages, beside other people's interceptors."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import grpc


class RawAnswer:
    """A serialised answer, on its way through the interceptors outside.

    Bare bytes can be iterated over, and interceptors that tell a stream of answers
    from a single one by that (``grpc-interceptor``'s do) would take them apart.
    """

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


answer_data = attrgetter("data")


def raw_handler(
    behavior: Callable[[Any, Any], RawAnswer], *, request_streaming: bool = False
) -> Any:
    """Return the handler of a method that takes bytes and returns a ``RawAnswer``."""
    if request_streaming:
        return grpc.stream_unary_rpc_method_handler(behavior, None, answer_data)
    return grpc.unary_unary_rpc_method_handler(behavior, None, answer_data)
