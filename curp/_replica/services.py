"""The user's services: which methods there are, what they conflict with, how they replay."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from curp._core.conflict_keys import KeyFinder, covers, keys_of_values, recorded_keys
from curp._core.entries import Operation
from curp._key_declarations import KeyDeclaration, declared_conflicts, fields_from_wire
from curp._replica.errors import Diverged, NotServed
from curp.v1 import curp_pb2 as pb
from rifl._server.context import CURRENT, AioHandlerContext, HandlerContext, Serving
from rifl._server.declarations import find_service
from rifl._server.handler_results import raised_result, returned_result
from rifl.core._serving.answer import bounded
from rifl.core._serving.client_entry import Attempt, ClientEntry
from rifl.core._serving.policy import MethodPolicy, PolicyError
from rifl.core._shared.call import Call
from rifl.core._shared.record import CompletionRecord

_Keys = frozenset[int]
_POLICY = MethodPolicy()


class MethodFacts(NamedTuple):
    """One method, as the leader looks at it."""

    conflicts: pb.MethodConflicts
    # From the request's bytes and its deserializer.
    keys: Callable[[bytes, Callable[[bytes], Any] | None], _Keys]


class Registrar:
    """What servicers are added to in the server's place: passes on, and takes note.

    For the generated ``add_...Servicer_to_server`` functions, sync and aio.
    """

    def __init__(self, server: Any, services: Services) -> None:
        self._server = server
        self._services = services

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        """See ``grpc.Server``."""
        self._server.add_generic_rpc_handlers(tuple(handlers))

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """See ``grpc.Server``."""
        self._services.add(service, handlers)
        self._server.add_registered_method_handlers(service, handlers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)


class Services:
    """The registered services. Immutable from the start of the replica on; any thread."""

    def __init__(
        self,
        conflict_keys: Mapping[str, KeyDeclaration] | None = None,
        read_only: Iterable[str] = (),
        nondeterministic: Iterable[str] = (),
        excluded: Callable[[str], bool] = lambda method: False,
        *,
        application_version: int = 0,
    ) -> None:
        self.application_version = application_version
        self._declared = dict(conflict_keys or {})
        self._read_only = frozenset(read_only)
        self._nondeterministic = frozenset(nondeterministic)
        self._excluded = excluded
        self._handlers: dict[str, Any] = {}
        self._facts: dict[str, MethodFacts] = {}
        self._descriptors: dict[str, ServiceDescriptor] = {}
        # Set where handlers are coroutines: the server's.
        self.loop: asyncio.AbstractEventLoop | None = None

    def add(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Take the handlers of a service; raises ``PolicyError`` for streams.

        A stream's messages are not in the log. A method that is declared as None is
        left to every replica by itself.
        """
        for name, handler in handlers.items():
            method = f"/{service}/{name}"
            if self._excluded(method):
                continue
            if handler.request_streaming or handler.response_streaming:
                raise PolicyError(
                    f"{method} is a stream, which a group does not replicate: declare it as None "
                    "in methods to have it served by each replica by itself"
                )
            self._handlers[method] = handler
        descriptor = find_service(service)
        if descriptor is not None:
            self._descriptors[service] = descriptor

    def settle(self) -> None:
        """Work out what methods conflict with; raises ``PolicyError``. Once, before calls."""
        names = (*self._declared, *self._read_only, *self._nondeterministic)
        for method in names:
            if method not in self._handlers:
                raise PolicyError(f"{method} is declared, and is not served by this group")
        described = {
            conflicts.method: conflicts
            for conflicts in declared_conflicts(self._descriptors.values(), self._declared)
        }
        for method in self._handlers:
            conflicts = described.get(method) or pb.MethodConflicts(method=method)
            if method in self._read_only:
                conflicts.read_only = True
            if method in self._nondeterministic:
                conflicts.synced = True
            if conflicts.read_only and conflicts.synced:
                raise PolicyError(f"{method} changes nothing, so it is never synced")
            self._facts[method] = MethodFacts(conflicts, self._finder(method, conflicts))

    def facts(self, method: str) -> MethodFacts | None:
        """Return what is known of a method, None for one that is not replicated."""
        return self._facts.get(method)

    def reader(self, method: str) -> Callable[[bytes], Any] | None:
        """Return a method's deserializer, None where its requests are bytes."""
        handler = self._handlers.get(method)
        reader: Callable[[bytes], Any] | None = getattr(handler, "request_deserializer", None)
        return reader

    def keys(self, method: str, request: bytes) -> _Keys:
        """Return a request's conflict keys; none if the method is not known."""
        facts = self._facts.get(method)
        if facts is None:
            return frozenset()
        return facts.keys(request, self._handlers[method].request_deserializer)

    def covers(self, call: Call, keys: _Keys) -> bool:
        """Whether witnesses hold a call under keys that cover these, its own.

        They go by the caller's word only where a callable finds a method's keys.
        """
        facts = self._facts.get(call.method)
        if facts is None or not facts.conflicts.by_callable:
            return True
        return covers(recorded_keys(call.conflict_keys), keys)

    def conflicts(self) -> Sequence[pb.MethodConflicts]:
        """Return what clients and witnesses are told."""
        return [facts.conflicts for facts in self._facts.values()]

    def replay(self, entry: Operation, *, strict: bool = True) -> None:
        """Run the handler of an operation in the log once more, for its effect.

        Raises ``Diverged`` if it answers otherwise than the log says, ``NotServed``. What
        another version of the application answered stands, and with ``strict`` False any
        answer of the log.
        """
        call = Call(
            entry.client_id,
            b"",
            entry.seq,
            entry.key,
            fingerprint=entry.fingerprint,
            method=entry.method,
        )
        call.stamp, call.peer = entry.stamp, entry.peer
        again = self.run(call, entry.request)
        logged = entry.answer
        # The handler's own answer, too large or not to be written, is not in the log.
        if not strict or logged.reason or entry.application_version != self.application_version:
            return
        same = again.code == logged.code and self._same_response(
            entry.method, again.response, logged.response
        )
        if not same:
            raise Diverged(
                f"{entry.method} of {call.rpc_id} answered code {again.code} with "
                f"{_size(again.response)} in replay, and code {logged.code} with "
                f"{_size(logged.response)} when it ran first: its handler is not deterministic in "
                "state, request and stamp (see curp.now and curp.random)"
            )

    def run(self, call: Call, request: bytes) -> CompletionRecord:
        """Run a call's handler outside gRPC; returns what is recorded. Blocks."""
        handler = self._handlers.get(call.method)
        if handler is None:
            raise NotServed(f"the log holds calls of {call.method}, which is not served here")
        attempt = Attempt(_NOBODY, call, _POLICY)
        behavior = handler.unary_unary
        if inspect.iscoroutinefunction(behavior):
            if self.loop is None:
                raise NotServed(f"{call.method} is a coroutine, and the server's loop is not known")
            work = self._run_async(handler, attempt, request)
            return asyncio.run_coroutine_threadsafe(work, self.loop).result()
        context = HandlerContext(_NoCaller(), attempt, Serving(None, None))  # type: ignore[arg-type]
        try:
            message = _message(handler, request)
        except BaseException as error:  # noqa: BLE001 - as the leader's server answers it
            if self.loop is None:
                context.set_code(grpc.StatusCode.INTERNAL)
                context.set_details("Exception deserializing request!")
                context.aborted = True
            return raised_result(context, error, aio=self.loop is not None).record
        token = CURRENT.set(context)
        try:
            response = behavior(message, context)
        except BaseException as error:  # noqa: BLE001 - it is the handler's answer
            return raised_result(context, error, aio=self.loop is not None).record
        finally:
            CURRENT.reset(token)
        result = returned_result(
            context, response, handler.response_serializer, aio=self.loop is not None
        )
        return bounded(result.record, attempt)

    async def _run_async(self, handler: Any, attempt: Attempt, request: bytes) -> CompletionRecord:
        context = AioHandlerContext(_NoCaller(), attempt, Serving(None, None))  # type: ignore[arg-type]
        # The task has a context of its own.
        CURRENT.set(context)
        try:
            response = await handler.unary_unary(_message(handler, request), context)
        except asyncio.CancelledError:
            # Not an answer, that would differ from the log's.
            raise
        except BaseException as error:  # noqa: BLE001 - it is the handler's answer
            return raised_result(context, error, aio=True).record
        result = returned_result(context, response, handler.response_serializer, aio=True)
        return bounded(result.record, attempt)

    def _same_response(self, method: str, one: bytes | None, other: bytes | None) -> bool:
        if one == other:
            return True
        if one is None or other is None:
            return False
        # Maps may be serialised in another order.
        service, _, name = method[1:].partition("/")
        descriptor = self._descriptors.get(service)
        if descriptor is None:
            return False
        from google.protobuf.message_factory import GetMessageClass

        reply = GetMessageClass(descriptor.methods_by_name[name].output_type)
        try:
            return bool(reply.FromString(one) == reply.FromString(other))
        except Exception:  # noqa: BLE001 - protobuf's classes of error differ by backend
            return False

    def _finder(
        self, method: str, conflicts: pb.MethodConflicts
    ) -> Callable[[bytes, Callable[[bytes], Any] | None], _Keys]:
        declared = self._declared.get(method)
        if callable(declared):
            ask = declared

            def of_message(request: bytes, read: Callable[[bytes], Any] | None) -> _Keys:
                try:
                    return keys_of_values(ask(request if read is None else read(request)))
                except (Exception, SystemExit):  # noqa: BLE001 - it conflicts with all: safe
                    return frozenset()

            return of_message
        if not conflicts.keys:
            return lambda request, read: frozenset()
        find = KeyFinder(fields_from_wire(conflicts.keys)).find
        return lambda request, read: find(request)


class _NoCaller:
    """gRPC's side of a context in replay, which has no caller."""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def peer(self) -> str:
        return "replay"

    def peer_identities(self) -> None:
        return None

    def peer_identity_key(self) -> None:
        return None

    def auth_context(self) -> dict[str, Any]:
        return {}

    def time_remaining(self) -> None:
        return None

    def is_active(self) -> bool:
        return True

    def add_callback(self, callback: Any) -> bool:
        return True

    def add_done_callback(self, callback: Any) -> None:
        return None

    def cancelled(self) -> bool:
        return False

    def done(self) -> bool:
        return False

    def set_compression(self, compression: grpc.Compression) -> None:
        return None

    def disable_next_message_compression(self) -> None:
        return None

    def cancel(self) -> bool:
        return False


_NOBODY = ClientEntry(0, 1)


def _message(handler: Any, request: bytes) -> Any:
    return (
        request if handler.request_deserializer is None else handler.request_deserializer(request)
    )


def _size(response: bytes | None) -> str:
    return "no message" if response is None else f"{len(response)} bytes"
