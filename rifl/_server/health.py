"""gRPC's own health and reflection services, where the user asks for them."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor

from _rifl_ground.owned_lock import OneByOne
from rifl._grpc.entrance import EnteredServer, ServiceThreads
from rifl._grpc.shares import Shares
from rifl._grpc.source import source_of
from rifl._grpc.status import CallStatus
from rifl._server.declarations import registered_services, watch_registrations

# What anybody may open and keep, in all and of one address, on each server.
WATCHES, _WATCHES_OF_ONE = 1000, 100
_THREADS = 2
_TOO_MANY = grpc.StatusCode.RESOURCE_EXHAUSTED, "too many watches are open: ask with Check"
_HEALTH = "grpc.health.v1.Health"
_TWO = (
    "the server has two gRPC health services, and gRPC asks the first one alone: register none "
    "of your own, name your services in one call of add_health"
)
_Setter = Callable[[Sequence[str], bool], object]


class HealthStatus:
    """Tells the health services of the servers whether new calls are taken.

    Thread-safe; a change reaches an aio server's service by way of its loop.
    """

    def __init__(self, *, serving: bool = True) -> None:
        self._serving = serving
        # Services whose state is not the server's, by name.
        self._named: dict[str, bool] = {}
        self._setters: list[tuple[tuple[str, ...], _Setter]] = []
        self._changes: OneByOne[Callable[[], None]] = OneByOne()
        # Servers that have a health service which this is not; and one that gets this one.
        self._others: weakref.WeakSet[Any] = weakref.WeakSet()
        self._adding: Any = None

    def serve(self, server: grpc.Server | grpc.aio.Server, services: Sequence[str]) -> None:
        """Host ``grpc.health.v1.Health``: for the whole server, and each service.

        Raises ``ValueError`` if the server has one, as a later registration of one does; of an
        aio server only those are known that came after ``add_to_server``.
        """
        if server in self._others or _HEALTH in _names(registered_services(server)[0]):
            raise ValueError(_TWO)
        try:
            from grpc_health.v1 import health, health_pb2, health_pb2_grpc
        except ImportError as error:
            raise ImportError(
                "gRPC health needs the extra: pip install 'rifl-grpc[health]'"
            ) from error
        statuses = health_pb2.HealthCheckResponse
        names = ("", *services)

        def status(serving: bool) -> Any:
            return statuses.SERVING if serving else statuses.NOT_SERVING

        shares = Shares(WATCHES, _WATCHES_OF_ONE)
        servicer: Any
        if isinstance(server, grpc.aio.Server):
            loop = asyncio.get_running_loop()
            servicer = health.aio.HealthServicer()
            servicer.Watch = _shared_aio(servicer.Watch, shares)
            added: Any = server

            async def set_all(named: Sequence[str], serving: bool) -> None:
                for name in named:
                    await servicer.set(name, status(serving))

            def set_soon(named: Sequence[str], serving: bool) -> None:
                if not loop.is_closed():
                    asyncio.run_coroutine_threadsafe(set_all(named, serving), loop)

            setter: _Setter = set_soon
        else:
            servicer = health.HealthServicer()
            servicer.Watch = _shared(servicer.Watch, shares)
            added = EnteredServer(server, ServiceThreads("rifl-health", _THREADS))

            def set_now(named: Sequence[str], serving: bool) -> None:
                for name in named:
                    servicer.set(name, status(serving))

            setter = set_now
        self._adding = server
        try:
            health_pb2_grpc.add_HealthServicer_to_server(servicer, added)
        finally:
            self._adding = None
        watch_registrations(server, _refuse_another)
        self._others.add(server)
        self._changed(lambda: self._add(names, setter))

    def registered(self, server: Any, services: Sequence[ServiceDescriptor]) -> None:
        """Note services that were added to a server; one of health may not come twice."""
        if _HEALTH in _names(services) and server is not self._adding:
            self._others.add(server)

    def set(self, serving: bool) -> None:
        """Say it to every server from now on."""
        self._changed(lambda: self._set(serving))

    def set_named(self, name: str, *, serving: bool) -> None:
        """Say it of one service alone, which is none of those given to ``serve``."""
        self._changed(lambda: self._set_named(name, serving))

    def _changed(self, change: Callable[[], None]) -> None:
        # In the order in which it is said: also by a signal's handler, in the middle of this.
        self._changes.post(change, lambda posted: posted())

    def _add(self, names: tuple[str, ...], setter: _Setter) -> None:
        self._setters.append((names, setter))
        setter(names, self._serving)
        for name, serving in self._named.items():
            setter((name,), serving)

    def _set(self, serving: bool) -> None:
        self._serving = serving
        for names, setter in self._setters:
            setter(names, serving)

    def _set_named(self, name: str, serving: bool) -> None:
        self._named[name] = serving
        for _, setter in self._setters:
            setter((name,), serving)


def _names(services: Iterable[ServiceDescriptor]) -> list[str]:
    return [service.full_name for service in services]


def _refuse_another(services: list[ServiceDescriptor]) -> None:
    if _HEALTH in _names(services):
        raise ValueError(_TWO)


def _shared(watch: Callable[..., Any], shares: Shares) -> Callable[..., Any]:
    def shared(request: Any, context: Any, *send: Any) -> Any:
        source = source_of(context.peer())
        if not shares.enter(source):
            context.abort(*_TOO_MANY)
        if not context.add_callback(lambda: shares.leave(source)):
            # It has ended meanwhile.
            shares.leave(source)
            return iter(())
        return watch(request, context, *send)

    # gRPC's own way to answer without a thread that waits.
    shared.experimental_non_blocking = True  # type: ignore[attr-defined]
    return shared


def _shared_aio(watch: Callable[..., Any], shares: Shares) -> Callable[..., Any]:
    async def shared(request: Any, context: Any) -> None:
        source = source_of(context.peer())
        if not shares.enter(source):
            await context.abort(*_TOO_MANY)
        try:
            await watch(request, context)
        finally:
            shares.leave(source)

    return shared


_Refuses = Callable[[Any], CallStatus | None]


def add_reflection(
    server: grpc.Server | grpc.aio.Server,
    services: Sequence[str],
    refuses: _Refuses | None = None,
) -> None:
    """Host gRPC reflection for the services, and for itself.

    ``refuses`` is asked with the context of each call, and returns what ends it, or None.
    """
    try:
        from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
    except ImportError as error:
        raise ImportError(
            "gRPC reflection needs the extra: pip install 'rifl-grpc[health]'"
        ) from error
    names = (*services, reflection.SERVICE_NAME)
    servicer: Any
    if isinstance(server, grpc.aio.Server):
        servicer, guarded = reflection.aio.ReflectionServicer(names), _guarded_aio
    else:
        servicer, guarded = reflection.ReflectionServicer(names), _guarded
    if refuses is not None:
        servicer.ServerReflectionInfo = guarded(servicer.ServerReflectionInfo, refuses)
    added: Any = server
    if isinstance(server, grpc.Server):
        added = EnteredServer(server, ServiceThreads("rifl-reflection", _THREADS))
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, added)


def _guarded(answer: Callable[..., Any], refuses: _Refuses) -> Callable[..., Any]:
    def asked(requests: Any, context: Any) -> Iterator[Any]:
        if (refusal := refuses(context)) is not None:
            context.set_trailing_metadata(refusal.trailing_metadata)
            context.abort(refusal.code, refusal.details)
        yield from answer(requests, context)

    return asked


def _guarded_aio(answer: Callable[..., Any], refuses: _Refuses) -> Callable[..., Any]:
    async def asked(requests: Any, context: Any) -> AsyncIterator[Any]:
        if (refusal := refuses(context)) is not None:
            await context.abort(refusal.code, refusal.details, refusal.trailing_metadata)
        async for reply in answer(requests, context):
            yield reply

    return asked
