"""``curp.v1.Group`` on every replica: configuration, sync, status, changes (DESIGN §7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from _rifl_ground.parsing import parse
from curp._group_token import denied_change, tokens_of
from curp.v1 import curp_pb2 as pb
from lease_server._tokens import peer_bound
from rifl._grpc.audit import CallerAudit, caller_of
from rifl._grpc.entrance import MESSAGE_S, EnteredService, ServiceThreads, entrance_of
from rifl._leases.peer import peer_of
from rifl._server import aio, sync
from rifl._server.reply import refused
from rifl.core._shared.call import Call
from rifl.core._shared.errors import BadHeader, NotYours, RiflError

SERVICE = "curp.v1.Group"
_THREADS = 16
_ANSWERING = 4
_FROM_MEMORY = ("Configuration", "Status")
_MAX_WAIT_S = 30.0


class GroupMethods(Protocol):
    """What answers: the replica. Any thread; may block."""

    def configuration(self) -> pb.GroupConfiguration:
        """Return who makes up the group, as this replica knows it."""

    def sync(self, configuration: int, call: Call, timeout_s: float) -> int:
        """Wait until a call's entry is in the log; a ``SyncReply.Verdict`` (invariant 9)."""

    def status(self) -> pb.GroupStatusReply:
        """Tell what the replica does."""

    def change_witnesses(
        self, witnesses: list[str], configuration: int, *, by_member: bool
    ) -> pb.GroupConfiguration:
        """Put another witness list in force (invariant 11).

        ``by_member``: the caller showed the group's token. Only then witnesses are told secrets
        that the group did not have before.
        """

    def transfer(self, replica: str) -> None:
        """Hand the leadership over."""

    def finalize_upgrade(self, version: int, who: str) -> int:
        """Make the leader's application version the active one, which is returned."""

    def end_session(self, name: str) -> list[int]:
        """End all open sessions of a name; return their ids."""

    def rotate_secret(self) -> int:
        """Make a new secret for client tokens; return its key id."""

    def check(self, call: Call) -> None:
        """Raise unless the call's token is genuine."""


def add_group_service(
    server: Any,
    group: GroupMethods,
    *,
    peer_property: str | None = None,
    group_token: str | Sequence[str] | None = None,
    open_group: bool = False,
    message_s: float = MESSAGE_S,
    audit: CallerAudit | None = None,
) -> None:
    """Serve ``curp.v1.Group`` from ``group`` on a sync or aio server, before it starts.

    ``group_token``: changes and Status are refused (NOT_YOURS) without it; None: they are open to
    callers of this machine, changes with ``open_group`` to all, but for new witnesses, and Status
    to all. ``message_s``: how long a call's message may take on a ``grpc.server``. ``audit``: is
    told of callers that are not let in, and of changes.
    """
    tokens = tokens_of(group_token)
    watch = audit or CallerAudit()

    def authorise(context: Any) -> None:
        denied = denied_change(context, tokens, open_group=open_group)
        if denied is not None:
            raise NotYours(
                "only who has the group's token may change the group, or ask for its status",
                denied,
            )

    def acting(context: Any, verb: str, what: str) -> AbstractContextManager[None]:
        return watch.acting(caller_of(context), verb, what)

    def synced(request: pb.SyncRequest, context: Any) -> pb.SyncReply:
        kind = request.WhichOneof("identity")
        if not request.client_id or kind is None:
            raise BadHeader("a sync request names a call")
        call = Call(
            request.client_id,
            request.token,
            request.seq if kind == "seq" else None,
            request.key if kind == "key" else None,
        )
        if peer_bound(call.token):
            call.peer = peer_of(context, peer_property)
        group.check(call)
        remaining = context.time_remaining()
        timeout_s = _MAX_WAIT_S if remaining is None else min(remaining, _MAX_WAIT_S)
        verdict: Any = group.sync(request.configuration, call, timeout_s)
        return pb.SyncReply(verdict=verdict)

    def configuration(request: pb.ConfigurationRequest, context: Any) -> pb.GroupConfiguration:
        return group.configuration()

    def status(request: pb.GroupStatusRequest, context: Any) -> pb.GroupStatusReply:
        if tokens:
            # It names engines, witnesses, and what they said.
            authorise(context)
        return group.status()

    def change(request: pb.ChangeWitnessesRequest, context: Any) -> pb.GroupConfiguration:
        with acting(context, "change_witnesses", ", ".join(request.witnesses) or "none"):
            authorise(context)
            return group.change_witnesses(
                list(request.witnesses), request.configuration, by_member=bool(tokens)
            )

    def transfer(request: pb.TransferRequest, context: Any) -> pb.TransferReply:
        with acting(context, "transfer", request.replica or "any"):
            authorise(context)
            group.transfer(request.replica)
            return pb.TransferReply()

    def finalize(request: pb.FinalizeUpgradeRequest, context: Any) -> pb.FinalizeUpgradeReply:
        with acting(context, "finalize_upgrade", str(request.version)):
            authorise(context)
            version = group.finalize_upgrade(request.version, request.who)
            return pb.FinalizeUpgradeReply(version=version)

    def end_session(request: pb.EndSessionRequest, context: Any) -> pb.EndSessionReply:
        with acting(context, "end_session", request.name):
            authorise(context)
            return pb.EndSessionReply(client_ids=group.end_session(request.name))

    def rotate_secret(request: pb.RotateSecretRequest, context: Any) -> pb.RotateSecretReply:
        with acting(context, "rotate_secret", "group"):
            authorise(context)
            return pb.RotateSecretReply(key_id=group.rotate_secret())

    methods: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
        "Configuration": (pb.ConfigurationRequest, configuration),
        "Sync": (pb.SyncRequest, synced),
        "Status": (pb.GroupStatusRequest, status),
        "ChangeWitnesses": (pb.ChangeWitnessesRequest, change),
        "Transfer": (pb.TransferRequest, transfer),
        "FinalizeUpgrade": (pb.FinalizeUpgradeRequest, finalize),
        "EndSession": (pb.EndSessionRequest, end_session),
        "RotateSecret": (pb.RotateSecretRequest, rotate_secret),
    }
    # What never waits for the log does not wait for threads either that do, nor for those
    # of the server's pool.
    names = ("curp-status", _ANSWERING), ("curp-group", _THREADS)
    handlers: dict[str, Any] = {}
    service: Any
    if isinstance(server, grpc.aio.Server):
        pools = [ThreadPoolExecutor(size, name) for name, size in names]
        for name, (request, answer) in methods.items():
            behavior = _aio_behavior(request, answer, watch, pools[name not in _FROM_MEMORY])
            handlers[name] = grpc.unary_unary_rpc_method_handler(
                behavior, response_serializer=_serialized
            )
        service = grpc.method_handlers_generic_handler(SERVICE, handlers)
    else:
        entrance = entrance_of(server)
        threads = [ServiceThreads(name, size) for name, size in names]
        for name, (request, answer) in methods.items():
            handlers[name] = entrance.handler(
                _sync_behavior(request, answer, watch),
                threads[name not in _FROM_MEMORY],
                message_s=message_s,
                response_serializer=_serialized,
            )
        service = EnteredService(SERVICE, handlers)
    server.add_generic_rpc_handlers((service,))


def _serialized(reply: Any) -> bytes:
    data: bytes = reply.SerializeToString()
    return data


def _answer(
    kind: Any, answer: Callable[[Any, Any], Any], watch: CallerAudit, raw: bytes, context: Any
) -> Any:
    try:
        request: Any = parse(kind, raw)
    except DecodeError:
        raise BadHeader(f"the request is not a {kind.DESCRIPTOR.full_name}") from None
    try:
        return answer(request, context)
    except NotYours as error:
        watch.refused(error, context.peer)
        raise


def _sync_behavior(kind: Any, answer: Callable[[Any, Any], Any], watch: CallerAudit) -> Any:
    def behavior(raw: bytes, context: Any) -> Any:
        try:
            return _answer(kind, answer, watch, raw, context)
        except RiflError as error:
            return sync.send(context, refused(error))

    return behavior


def _aio_behavior(
    kind: Any, answer: Callable[[Any, Any], Any], watch: CallerAudit, pool: ThreadPoolExecutor
) -> Any:
    async def behavior(raw: bytes, context: Any) -> Any:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(pool, _answer, kind, answer, watch, raw, context)
        except RiflError as error:
            return await aio.send(context, refused(error))

    return behavior
