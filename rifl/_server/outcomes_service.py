"""``rifl.v1.Outcomes``: the service that says what became of a call (DESIGN §3)."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio

from _rifl_ground.parsing import parse
from rifl._grpc.entrance import EnteredService, ServiceThreads, entrance_of
from rifl._server import aio, sync
from rifl._server.call_engine import CallEngine
from rifl._server.reply import refused
from rifl._wire.records import outcome_to_wire, record_to_message
from rifl.core._serving.answer import Answer
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.serving import resolve
from rifl.core._shared.call import Call, check_acknowledgements
from rifl.core._shared.errors import BadHeader, RiflError
from rifl.core._shared.identity import check_key
from rifl.v1 import rifl_pb2

SERVICE = "rifl.v1.Outcomes"
# Each may wait for a call that runs.
_THREADS = 16
# What a call that never arrived is settled by.
RESOLUTION = MethodPolicy()
_MOST_METHOD = 4_096


def add_outcomes_service(server: Any, engine: CallEngine, aio_shell: aio.AioShell) -> None:
    """Serve ``rifl.v1.Outcomes`` on a sync or aio server, before it starts."""
    if isinstance(server, grpc.aio.Server):
        handler: Any = grpc.unary_unary_rpc_method_handler(aio_resolve(engine, aio_shell))
        service: Any = grpc.method_handlers_generic_handler(SERVICE, {"Resolve": handler})
    else:
        threads = ServiceThreads("rifl-outcomes", _THREADS)
        handler = entrance_of(server).handler(
            _sync_resolve(engine), threads, message_s=engine.bounds.max_message_s
        )
        service = EnteredService(SERVICE, {"Resolve": handler})
    server.add_generic_rpc_handlers((service,))


def resolution_call(engine: CallEngine, request: bytes, context: Any) -> Call:
    """Return the call that a ``ResolveRequest`` asks about, its token checked.

    Raises ``BadHeader``, ``StoreMismatch``, ``NotYours``, ``LeaseExpired``.
    """
    try:
        message = parse(rifl_pb2.ResolveRequest, request)
    except Exception:  # noqa: BLE001 - protobuf's classes of error differ by backend
        raise BadHeader("the request is not a rifl.v1.ResolveRequest") from None
    if not message.client_id:
        raise BadHeader("the request has no client id")
    kind = message.WhichOneof("identity")
    if kind == "seq":
        check_acknowledgements(message.seq, 1, ())
        call = Call(message.client_id, message.token, message.seq)
    elif kind == "key":
        check_key(message.key)
        call = Call(message.client_id, message.token, None, message.key)
    else:
        raise BadHeader("the request has neither a seq nor a key")
    if len(message.method) > _MOST_METHOD or "\0" in message.method:
        raise BadHeader("the request has a method that no call can have")
    call.method = message.method or f"/{SERVICE}/Resolve"
    call.store = message.store
    if call.key is None:
        call.seed = message.seed
    engine.authenticate(call, context)
    return call


def resolution_reply(answer: Answer) -> rifl_pb2.ResolveReply:
    """Return what a resolution answers."""
    return rifl_pb2.ResolveReply(
        outcome=outcome_to_wire(answer.record.outcome), record=record_to_message(answer.record)
    )


def _sync_resolve(engine: CallEngine) -> Any:
    shell = sync.SyncShell(engine)

    def behavior(request: bytes, context: Any) -> Any:
        try:
            call = resolution_call(engine, request, context)
            answer = shell.drive(resolve(engine.store, call, RESOLUTION), context)
            return resolution_reply(answer).SerializeToString()
        except RiflError as error:
            return sync.send(context, refused(error))

    return behavior


def aio_resolve(engine: CallEngine, shell: aio.AioShell) -> Any:
    """Return the behavior of ``Resolve`` for ``grpc.aio``."""

    async def behavior(request: bytes, context: Any) -> Any:
        try:
            call = resolution_call(engine, request, context)
            work = shell.drive(resolve(engine.store, call, RESOLUTION), context)
            return resolution_reply(await shell.shielded(work, context)).SerializeToString()
        except RiflError as error:
            return await aio.send(context, refused(error))

    return behavior
