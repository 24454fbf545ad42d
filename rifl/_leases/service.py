"""The lease service on a sync or an aio gRPC server (DESIGN §5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, NoReturn

import grpc
import grpc.aio

from _rifl_ground.log import get_logger
from _rifl_ground.refusals import caller_text
from _rifl_ground.seldom import SeldomLog
from lease_server._authority import Authority
from lease_server._errors import StorageUnavailable, TooManyClients, TooManyRefusals
from lease_server._sessions import SessionsFrom
from lease_server.v1 import lease_server_pb2 as pb
from rifl._grpc.audit import CallerAudit, address_of
from rifl._grpc.entrance import MESSAGE_S, EnteredService, ServiceThreads, entrance_of
from rifl._grpc.raw import RawAnswer, answer_data
from rifl._grpc.shares import Shares
from rifl._grpc.source import source_of
from rifl._grpc.status import rich_status
from rifl._leases.openers import SessionOpeners
from rifl._leases.peer import peer_of
from rifl._leases.requests import GrantTerms, LeaseRequests
from rifl.core._shared.errors import NotLeader, RiflError, StoreUnavailable
from rifl.core._shared.identity import DEFAULT_WINDOW

_log = get_logger("lease_server")
_causes = SeldomLog(_log)

SERVICE_NAME = "lease_server.v1.LeaseServer"

_MAX_REFUSALS_PER_STREAM = 64
# So many grants share a commit. Threads are made when they are needed.
_STORAGE_THREADS = 16
# Until it shows a valid token, a stream belongs to no client.
_FIRST_RENEWAL_S = 10.0

# What RetryInfo says with a refusal, seconds; the others are not worth asking again.
_RETRY_AFTER_S: Mapping[type[RiflError], float] = {
    NotLeader: 0.05,
    StorageUnavailable: 1.0,
    TooManyClients: 5.0,
    TooManyRefusals: 5.0,
}

# Answers a request, given its bytes, the peer, and where it asks for it the address.
_Answer = Callable[..., bytes]
_AioContext = grpc.aio.ServicerContext[bytes, bytes]


def add_lease_service(
    server: grpc.Server | grpc.aio.Server,
    authority: Authority,
    *,
    deduplicated: Sequence[str],
    not_deduplicated: Sequence[str] = (),
    window: int = DEFAULT_WINDOW,
    peer_property: str | None = None,
    max_streams: int = 10_000,
    max_streams_per_peer: int = 1_000,
    executor: Executor | None = None,
    path: str = "",
    sessions_from: SessionOpeners | SessionsFrom | str | Collection[str] = SessionsFrom.SECRET,
    message_s: float = MESSAGE_S,
    audit: CallerAudit | None = None,
) -> None:
    """Serve ``lease_server.v1.LeaseServer`` from ``authority`` on this server.

    Call it before the server starts. Grants tell the method patterns and the
    window to clients. On a mutually authenticated channel ids and session names are
    bound to the peer's identity, taken from ``peer_property`` (see ``peer_of``).

    On a ``grpc.server`` heartbeats are unary and KeepAlive is UNIMPLEMENTED without
    taking a thread. On a ``grpc.aio.server`` each renewal of a KeepAlive stream is
    answered in order. The first must come within 10 s and be valid; up to 64 later ones may be
    refused with their reason, and the stream goes on. A server that cannot judge a renewal now
    (its storage does not answer, it does not lead) ends the stream with that status. A
    renewal, of either kind, may be of several leases; each is judged by itself. At most
    ``max_streams`` are open at once, and ``max_streams_per_peer`` of one authenticated peer,
    or of one address without a peer: others are TOO_MANY, and renew by unary calls.

    Nothing here waits for the server's handlers: renewals have threads of their own, and
    ``executor`` runs what may block on the storage (None: one with up to 16 threads).
    A call whose message does not come within ``message_s`` (``grpc.server``) is cancelled, or
    before, if so many wait that it has to make room for another. Interceptors that replace
    handlers by their own functions defeat both on a ``grpc.server``; they must leave this
    service alone.

    ``path``: what clients load to send their calls by (see ``GrantReply``).
    ``sessions_from``: who may open sessions (see ``SessionOpeners``). ``audit``: is told of
    callers that are not let in (None: one of this service alone).

    Refusals carry rich error details. Raises TypeError for anything that is neither
    kind of server, ValueError for a malformed pattern or window.
    """
    terms = GrantTerms(
        deduplicated=deduplicated, not_deduplicated=not_deduplicated, window=window, path=path
    )
    openers = SessionOpeners.of(sessions_from)
    audit = audit or CallerAudit()
    if isinstance(server, grpc.aio.Server):
        terms = terms.with_heartbeat(pb.HEARTBEAT_STREAM)
        requests = LeaseRequests(authority, terms, openers, audit)
        pool = executor or ThreadPoolExecutor(_STORAGE_THREADS, "lease-storage")
        streams = Shares(max_streams, max_streams_per_peer)
        handlers = _AioShell(requests, peer_property, streams, pool).handlers()
    elif isinstance(server, grpc.Server):
        terms = terms.with_heartbeat(pb.HEARTBEAT_UNARY)
        requests = LeaseRequests(authority, terms, openers, audit)
        handlers = _sync_handlers(server, requests, peer_property, executor, message_s)
        server.add_generic_rpc_handlers((EnteredService(SERVICE_NAME, handlers),))
        return
    else:
        raise TypeError(f"neither a grpc.Server nor a grpc.aio.Server: {type(server)!r}")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))


def status_of(error: RiflError) -> grpc.Status:
    """The rich status a refusal travels as."""
    _causes.cause(error)
    info = {"leader": error.leader} if isinstance(error, NotLeader) and error.leader else {}
    code = grpc.StatusCode[error.code_name]
    return rich_status(
        code, error.reason, caller_text(error), info, _RETRY_AFTER_S.get(type(error))
    )


def _sync_handlers(
    server: grpc.Server,
    requests: LeaseRequests,
    peer_property: str | None,
    executor: Executor | None,
    message_s: float,
) -> dict[str, Any]:
    entrance = entrance_of(server)
    # Not the server's pool, where a client that is alive would expire behind handlers that hang.
    storage = ServiceThreads("lease-storage", _STORAGE_THREADS, executor)
    renewals = ServiceThreads("lease-renewals", _STORAGE_THREADS if requests.blocks else 1)

    def handler(
        answer: _Answer,
        threads: ServiceThreads = storage,
        *,
        sourced: bool = False,
        several: bool = False,
    ) -> Any:
        def behave(raw: bytes, context: grpc.ServicerContext) -> RawAnswer:
            try:
                where = _where(context, sourced, several)
                return RawAnswer(answer(raw, peer_of(context, peer_property), *where))
            except RiflError as error:
                requests.audit.refused(error, context.peer)
                context.abort_with_status(status_of(error))

        return entrance.handler(
            behave, threads, message_s=message_s, response_serializer=answer_data
        )

    # KeepAlive is left out: gRPC then answers UNIMPLEMENTED without a pool thread.
    return {
        "Grant": handler(requests.grant, sourced=True),
        "Renew": handler(requests.renew, renewals, several=True),
        "Release": handler(requests.release, renewals),
        "OpenSession": handler(requests.open_session, sourced=True),
        "CloseSession": handler(requests.close_session),
    }


class _AioShell:
    """The handlers for one ``grpc.aio`` server; used on its event loop only."""

    def __init__(
        self,
        requests: LeaseRequests,
        peer_property: str | None,
        streams: Shares,
        executor: Executor,
    ) -> None:
        self._requests = requests
        self._peer_property = peer_property
        self._streams = streams
        self._executor = executor

    def handlers(self) -> dict[str, Any]:
        requests = self._requests
        return {
            "Grant": self._unary(requests.grant, blocking=True, sourced=True),
            "Renew": self._unary(requests.renew, blocking=requests.blocks, several=True),
            "KeepAlive": grpc.stream_stream_rpc_method_handler(self._keep_alive),
            "Release": self._unary(requests.release, blocking=requests.blocks),
            "OpenSession": self._unary(requests.open_session, blocking=True, sourced=True),
            "CloseSession": self._unary(requests.close_session, blocking=True),
        }

    def _unary(
        self,
        answer: _Answer,
        *,
        blocking: bool = False,
        sourced: bool = False,
        several: bool = False,
    ) -> Any:
        async def behave(raw: bytes, context: _AioContext) -> bytes:
            whence = address_of(context)
            try:
                peer = peer_of(context, self._peer_property)
                where = _where(context, sourced, several)
                if blocking:
                    loop = asyncio.get_running_loop()
                    return await loop.run_in_executor(self._executor, answer, raw, peer, *where)
                return answer(raw, peer, *where)
            except RiflError as error:
                self._requests.audit.refused(error, whence)
                await _abort(context, error)

        return grpc.unary_unary_rpc_method_handler(behave)

    async def _keep_alive(self, requests: AsyncIterator[bytes], context: _AioContext) -> None:
        whose: bytes | str | None = None
        whence = address_of(context)
        try:
            peer = peer_of(context, self._peer_property)
            opener = peer or source_of(whence())
            if not self._streams.enter(opener):
                raise TooManyRefusals("too many heartbeat streams; use Renew")
            whose = opener
            # Not by ``requests``: its generator took a tenth of a renewal's processor time.
            read: Callable[[], Awaitable[Any]] = context.read
            try:
                async with asyncio.timeout(_FIRST_RENEWAL_S):
                    raw = await read()
            except TimeoutError:
                raise TooManyRefusals("no renewal came on this stream; use Renew") from None
            refusals = 0
            good = False
            while raw is not grpc.aio.EOF:
                if self._requests.blocks:
                    reply, refused, renewed = await asyncio.get_running_loop().run_in_executor(
                        self._executor, self._requests.keep_alive, raw, peer, whence
                    )
                else:
                    reply, refused, renewed = self._requests.keep_alive(raw, peer, whence)
                await context.write(reply)
                refusals += refused
                good = good or renewed
                if not good:
                    # Nothing is known of the caller: the reply has said what was wrong.
                    return
                if refusals >= _MAX_REFUSALS_PER_STREAM:
                    raise TooManyRefusals("too many renewals of this stream were refused")
                raw = await read()
        except RiflError as error:
            self._requests.audit.refused(error, whence)
            # Unavailable: it is this server's state, and not the peer's doing.
            if error.denied is None and error.code_name != StoreUnavailable.code_name:
                _log.warning("heartbeat_stream_refused", peer=whence(), reason=error.reason)
            await _abort(context, error)
        finally:
            if whose is not None:
                self._streams.leave(whose)


def _where(context: Any, sourced: bool, several: bool) -> tuple[Any, ...]:
    """Return what else a method needs of its call; ``several``: it refuses some and goes on."""
    return (source_of(context.peer()),) if sourced else (address_of(context),) if several else ()


async def _abort(context: _AioContext, error: RiflError) -> NoReturn:
    status = status_of(error)
    await context.abort(status.code, status.details, status.trailing_metadata)
