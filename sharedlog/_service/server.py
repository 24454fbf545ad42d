"""The server of a log: its methods on an event loop, its rules in threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from _rifl_ground.log import get_logger
from _rifl_ground.parsing import parse
from _rifl_ground.pings import OWN_SERVER_OPTIONS
from _rifl_ground.plaintext import is_loopback
from _rifl_ground.seldom import SeldomLog
from _rifl_ground.texts import hides
from _rifl_ground.threads import in_thread
from rifl._grpc.aio_entrance import AioEntrance
from rifl._grpc.audit import CallerAudit, address_of
from rifl._grpc.entrance import WAITING
from rifl._server.health import WATCHES, HealthStatus, add_reflection
from sharedlog._core.errors import InvalidRequest, LogError, LogUnavailable, QuotaExceeded
from sharedlog._log.log import Log
from sharedlog._log.place import Place
from sharedlog._service.access import Access, Caller
from sharedlog._service.answers import Answer, Answers
from sharedlog._service.audited import audited
from sharedlog._service.followers import Followers
from sharedlog._service.quotas import Quotas
from sharedlog._service.settings import ServerSettings
from sharedlog._service.steps import ServedSteps
from sharedlog._service.tail import Tail
from sharedlog._wire.methods import (
    MOST_FIELDS,
    MOST_REPLY_BYTES,
    MOST_REQUEST_BYTES,
    SERVICE,
    STEPS,
)
from sharedlog._wire.refusals import Refusal, refusal_of
from sharedlog.v1 import log_pb2 as pb
from sharedlog.v1 import steps_pb2

# Of the rules that calls ask for, and of those that follow, far behind and at the log's end: who
# follows delays no append, and who is far behind delays no follower at the end.
_THREADS, _FOLLOWING_THREADS, _TAIL_THREADS = 64, 8, 4
# How many calls may be there at once, beside the followers.
_CALLS = 512
# Beside them: those that wait for their message, and those that watch its health.
_KEPT = WAITING + WATCHES
# How long calls in flight have when it stops.
GRACE_S = 10.0
_log = get_logger("sharedlog")
_causes = SeldomLog(_log)


@hides("tokens")
class Options(NamedTuple):
    """How a log is served. ``credentials``: None for plaintext; ``tokens``: by name."""

    listen: str
    settings: ServerSettings = ServerSettings()
    tokens: Mapping[str, bytes] | None = None
    credentials: grpc.ServerCredentials | None = None
    health: bool = True
    reflection: bool = False


class LogServer:
    """Serves one open log, which it does not close; on the event loop that starts it."""

    def __init__(self, log: Log, place: Place, options: Options) -> None:
        """Nothing listens yet. ``place``: of ``log``."""
        self._options = options
        self._place = place
        limits = options.settings.limits
        self._access = Access(options.settings, options.tokens)
        observers = place.observers
        self._audit = CallerAudit(None if observers is None else observers.caller_refused)
        self._quotas = Quotas(limits, time.monotonic)
        self._tail = Tail(place.engine, self._answering)
        self._answers = Answers(log, place, self._quotas, self._tail)
        self._steps = ServedSteps(place, self._quotas, self._answers.requests, self._tail)
        self._threads = ThreadPoolExecutor(_THREADS, "sharedlog-serve")
        self._following = ThreadPoolExecutor(_FOLLOWING_THREADS, "sharedlog-follow")
        self._tailing = ThreadPoolExecutor(_TAIL_THREADS, "sharedlog-follow-tail")
        self._health = HealthStatus(serving=False)
        self.address = ""

    async def start(self) -> None:
        """Listen, at ``address``; raises ``OSError`` or ``RuntimeError`` if it cannot."""
        options = self._options
        limits = options.settings.limits
        self._followers = Followers(
            self._place,
            self._answers,
            self._tail,
            self._quotas,
            limits,
            partial(_in_thread, self._following),
            partial(_in_thread, self._tailing),
        )
        self._server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", MOST_REQUEST_BYTES),
                ("grpc.max_send_message_length", MOST_REPLY_BYTES),
                # A client that is gone without a word gives its followers' places back.
                ("grpc.keepalive_time_ms", 60_000),
                ("grpc.http2.max_pings_without_data", 0),
                *OWN_SERVER_OPTIONS,
            ),
            maximum_concurrent_rpcs=_CALLS + _KEPT + limits.followers if limits.followers else None,
        )
        self._entrance = AioEntrance(limits.message_s, _too_late)
        self._entrance.guard(self._server)
        self._server.add_generic_rpc_handlers((self._handlers(), self._step_handlers()))
        if options.health:
            self._health.serve(self._server, (SERVICE,))
        if options.reflection:
            add_reflection(self._server, (SERVICE, STEPS), self._refuses)
        if options.credentials is None:
            if options.tokens and not is_loopback(options.listen):
                _log.warning("token_over_plaintext", listen=options.listen)
            port = self._server.add_insecure_port(options.listen)
        else:
            port = self._server.add_secure_port(options.listen, options.credentials)
        await self._server.start()
        host = options.listen.rpartition(":")[0]
        self.address = f"{host}:{port}" if host else options.listen
        self._tail.start()
        _log.info("log_served", address=self.address, incarnation=self._place.incarnation)

    def judge_by(self, settings: ServerSettings, tokens: Mapping[str, bytes] | None) -> None:
        """Let callers do what these say from now on; who follows begins anew, if it still may.

        The settings' limits stay what they were.
        """
        self._access.replace(settings, tokens)
        self._followers.begin_anew()

    async def stop(self, grace_s: float = GRACE_S) -> None:
        """Take no more calls, end the followers, and answer the appends that are in flight."""
        self._health.set(False)
        self._followers.stop()
        await self._server.stop(grace_s)
        await in_thread(self._tail.stop)
        self._threads.shutdown(wait=False)
        self._following.shutdown(wait=False)
        self._tailing.shutdown(wait=False)
        _log.info("log_no_longer_served", address=self.address)

    def _refuses(self, context: Any) -> Refusal | None:
        """Return what a caller is refused with that may not call at all."""
        try:
            self._access.caller(context)
        except LogError as error:
            self._audit.refused(error, context.peer)
            return refusal_of(error)
        return None

    def _answering(self, answers: bool) -> None:
        self._health.set(answers)
        if not answers:
            _log.warning("served_log_unavailable", address=self.address)

    def _handlers(self) -> grpc.GenericRpcHandler:
        handlers: dict[str, Any] = {}
        described = pb.DESCRIPTOR.services_by_name["Log"].methods_by_name
        for name, answer in self._answers.methods.items():
            kind = getattr(pb, described[name].input_type.name)
            told = audited(self._audit, name, answer)
            behavior = self._unary(kind, told, checked=name != "Describe")
            handlers[name] = _handler(grpc.stream_unary_rpc_method_handler, behavior)
        for name, stream in (("Read", self._followers.read), ("Follow", self._followers.follow)):
            kind = getattr(pb, described[name].input_type.name)
            following = self._streaming(kind, stream)
            handlers[name] = _handler(grpc.stream_stream_rpc_method_handler, following)
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _step_handlers(self) -> grpc.GenericRpcHandler:
        described = steps_pb2.DESCRIPTOR.services_by_name["Steps"].methods_by_name
        handlers: dict[str, Any] = {
            name: _handler(
                grpc.stream_unary_rpc_method_handler,
                self._unary(
                    getattr(steps_pb2, described[name].input_type.name),
                    audited(self._audit, name, answer),
                    checked=True,
                ),
            )
            for name, answer in self._steps.methods.items()
        }
        return grpc.method_handlers_generic_handler(STEPS, handlers)

    def _unary(self, kind: Any, answer: Answer, *, checked: bool) -> Callable[..., Awaitable[Any]]:
        async def handle(_: Any, context: Any) -> Any:
            async def act(caller: Caller) -> Any:
                request = await self._request(kind, context)
                if checked:
                    self._answers.check_incarnation(request)
                with self._quotas.calling(caller.name):
                    return await _in_thread(self._threads, answer, request, caller)

            return await self._guarded(context, act)

        return handle

    def _streaming(
        self, kind: Any, stream: Callable[[Any, Caller, Any], Awaitable[None]]
    ) -> Callable[..., Awaitable[None]]:
        async def handle(_: Any, context: Any) -> None:
            async def act(caller: Caller) -> None:
                request = await self._request(kind, context)
                self._answers.check_incarnation(request)

                async def write(reply: Any) -> None:
                    try:
                        await context.write(reply)
                    except grpc.aio.InternalError:
                        raise _ClientLeft from None

                await stream(request, caller, write)

            await self._guarded(context, act)

        return handle

    async def _request(self, kind: Any, context: Any) -> Any:
        """Return the request of a caller that was let in; raises ``InvalidRequest``."""
        raw = await self._entrance.message(context)
        try:
            return parse(kind, raw, MOST_FIELDS)
        except DecodeError as error:
            raise InvalidRequest(
                f"the request is no {kind.DESCRIPTOR.full_name}: {error}"
            ) from None

    async def _guarded(self, context: Any, act: Callable[[Caller], Awaitable[Any]]) -> Any:
        """Answer, or end the call with what refuses it."""
        refused: LogError
        whence = address_of(context)
        try:
            return await act(self._access.caller(context))
        except LogError as error:
            refused = error
        except grpc.aio.AbortError:
            raise
        except _ClientLeft:
            return None
        except Exception:  # noqa: BLE001 - ours, not the caller's: it may have happened or not
            _log.exception("served_log_failed")
            refused = LogUnavailable("the server failed: its events say why")
            refused.told = ""
        _causes.cause(refused)
        self._audit.refused(refused, whence)
        return await context.abort(*refusal_of(refused))


def _too_late(text: str) -> Refusal:
    refused = QuotaExceeded(text)
    refused.appended = False
    return refusal_of(refused)


class _ClientLeft(Exception):
    """It cancelled the call, or its connection broke, while a reply was on its way to it."""


async def _in_thread(pool: ThreadPoolExecutor, called: Callable[..., Any], *args: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(pool, partial(called, *args))


def _handler(make: Any, behavior: Callable[..., Awaitable[Any]]) -> Any:
    # One request, read from a stream of them after its caller was let in.
    return make(behavior, None, _serialized)


def _serialized(reply: Any) -> bytes:
    """Return a reply's bytes; what many are sent comes as these."""
    data: bytes = reply if isinstance(reply, bytes) else reply.SerializeToString()
    return data
