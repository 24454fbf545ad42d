"""The channels that ``Effects.channel`` gives to a handler's stubs, sync or async (T6)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, NoReturn

import grpc
import grpc.aio

from rifl._client.answers import FinalStatus
from rifl._client.errors import unserialisable
from sharedlog._consumer.calling import MessageCalls
from sharedlog._consumer.services import ServiceAnswer
from sharedlog._core.consumer.calls import Wanted
from sharedlog._core.errors import InvalidRequest

_UNARY = "a handler's calls are unary, and each is answered before its message is done"


class _Method:
    """One unary method, as a handler calls it."""

    def __init__(
        self, calls: MessageCalls, target: str, method: str | bytes, write: Any, read: Any
    ) -> None:
        self._calls = calls
        self._target = target
        self._method = method.decode() if isinstance(method, bytes) else method
        self._write = write
        self._read = read

    def _wanted(self, request: Any, timeout: float | None, metadata: Any) -> Wanted:
        try:
            body = request if self._write is None else self._write(request)
        except Exception as error:
            raise unserialisable() from error
        if timeout is not None and timeout <= 0:
            # The service would be taken to be away, and the call be tried again and again.
            raise InvalidRequest(f"timeout={timeout}: a call's timeout must be positive")
        entries = tuple((name, value) for name, value in metadata or ())
        return Wanted(self._target, self._method, body, timeout, entries)

    def _reply(self, answer: ServiceAnswer) -> Any:
        if answer.error is not None:
            raise answer.error
        return answer.response if self._read is None else self._read(answer.response)


class _UnaryUnary(_Method, grpc.UnaryUnaryMultiCallable):  # type: ignore[type-arg]
    """In a handler's thread."""

    def __call__(  # type: ignore[override]
        self, request: Any, timeout: float | None = None, metadata: Any = None, **given: Any
    ) -> Any:
        return self.with_call(request, timeout, metadata, **given)[0]

    def with_call(  # type: ignore[override]
        self, request: Any, timeout: float | None = None, metadata: Any = None, **given: Any
    ) -> Any:
        _check_given(given)
        answer = self._calls.call(self._wanted(request, timeout, metadata))
        status = FinalStatus(
            grpc.StatusCode.OK, "", answer.initial_metadata, answer.trailing_metadata
        )
        return self._reply(answer), status

    def future(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidRequest(f"{_UNARY}: future() is for others (an async handler may gather)")


class _Refused(
    grpc.UnaryStreamMultiCallable,  # type: ignore[type-arg]
    grpc.StreamUnaryMultiCallable,  # type: ignore[type-arg]
    grpc.StreamStreamMultiCallable,  # type: ignore[type-arg]
):
    """A method with a stream, which a stub may have, and a handler does not call."""

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidRequest(_UNARY)

    def with_call(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidRequest(_UNARY)

    def future(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidRequest(_UNARY)


class _Calling:
    """What both channels are to a handler's stubs. Of no use once it returned."""

    _method: type[_Method]

    def __init__(self, calls: MessageCalls, target: str) -> None:
        self._calls = calls
        self._target = target

    def unary_unary(
        self,
        method: str | bytes,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> Any:
        """Return a callable, as a channel of gRPC does."""
        return self._method(
            self._calls, self._target, method, request_serializer, response_deserializer
        )

    def unary_stream(self, *_: Any, **__: Any) -> Any:
        """Return what raises ``InvalidRequest`` when it is called."""
        return _Refused()

    stream_unary = stream_stream = unary_stream


class CallingChannel(_Calling, grpc.Channel):
    """A ``grpc.Channel`` of a handler's stubs."""

    _method = _UnaryUnary

    def subscribe(self, *_: Any, **__: Any) -> NoReturn:
        """Raise ``InvalidRequest``: the consumer has the channel."""
        raise InvalidRequest("the channel is the consumer's")

    unsubscribe = subscribe

    def close(self) -> None:
        """Do nothing: the consumer has the channel."""

    def __enter__(self) -> CallingChannel:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class _AioUnaryUnary(_Method):
    """On the event loop of an async handler."""

    def __call__(
        self, request: Any, timeout: float | None = None, metadata: Any = None, **given: Any
    ) -> _AioCall:
        _check_given(given)
        return _AioCall(self._calls.soon(self._wanted(request, timeout, metadata)), self._reply)


class _AioCall:
    """A call that is awaited."""

    def __init__(
        self, answer: asyncio.Future[ServiceAnswer], reply: Callable[[ServiceAnswer], Any]
    ) -> None:
        self._answer = answer
        self._reply = reply

    def __await__(self) -> Generator[Any, None, Any]:
        answer = yield from self._answer.__await__()
        return self._reply(answer)

    def done(self) -> bool:
        """Return whether it has ended."""
        return self._answer.done()

    def cancel(self) -> bool:
        """Wait no longer; the handler's transaction is undone."""
        return self._answer.cancel()


class AioCallingChannel(_Calling):
    """What a ``grpc.aio.Channel`` is to the stubs of an async handler."""

    _method = _AioUnaryUnary

    async def close(self, grace: float | None = None) -> None:
        """Do nothing: the consumer has the channel."""


def channel_for(calls: MessageCalls, target: str) -> Any:
    """Return a channel for the handler that runs: of an event loop, where one runs it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return CallingChannel(calls, target)
    return AioCallingChannel(calls, target)


def _check_given(given: dict[str, Any]) -> None:
    """Raise ``InvalidRequest`` for what is said of all calls at once, by ``Consumer.service``."""
    said = sorted(name for name, value in given.items() if value is not None)
    if said:
        raise InvalidRequest(
            f"{', '.join(said)}: consumer.service(target, ...) says so for all calls, so that who "
            "takes over can make them, too"
        )
