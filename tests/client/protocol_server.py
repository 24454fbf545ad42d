"""A real gRPC server that speaks the protocol as a test scripts it.

Every call to ``/test.Service/<anything>`` is handed to the script with its parsed
header; leases are granted and renewed by a tiny lease service of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any

import grpc

from lease_server.v1 import lease_server_pb2 as lease_pb
from rifl._grpc.status import rich_status
from rifl._wire.header import find_header, parse_call
from rifl._wire.labels import OUTCOME_KEY
from rifl.core import BadHeader
from rifl.core._shared.call import Call
from rifl.core._shared.reasons import error_class
from rifl.v1 import rifl_pb2

ECHO = "/test.Service/Echo"
TOKEN = b"token-of-a-test"

Script = Callable[["Arrival", grpc.ServicerContext], bytes]


class Arrival:
    """One attempt as the server saw it."""

    def __init__(self, method: str, request: bytes, context: grpc.ServicerContext) -> None:
        self.method = method
        self.request = request
        self.metadata = tuple(context.invocation_metadata())
        self.header = find_header(self.metadata)
        self.call: Call | None = None
        if self.header is not None:
            self.call = parse_call(self.header, method, request)

    @property
    def attempt(self) -> int:
        return self.call.attempt if self.call is not None else 0

    @property
    def seq(self) -> int:
        assert self.call is not None
        assert self.call.seq is not None
        return self.call.seq


def refuse(
    context: grpc.ServicerContext,
    reason: str,
    retry_after_s: float | None = None,
    info: dict[str, str] | None = None,
) -> None:
    """Answer as the server of the protocol does."""
    cls = error_class(reason)
    assert cls is not None
    status = rich_status(
        grpc.StatusCode[cls.code_name], reason, f"refused: {reason}", info or {}, retry_after_s
    )
    context.set_trailing_metadata((*status.trailing_metadata, (OUTCOME_KEY, cls.outcome.value)))
    context.abort(status.code, status.details)


def label(context: grpc.ServicerContext, outcome: str) -> None:
    """Label the answer of a script."""
    context.set_trailing_metadata(((OUTCOME_KEY, outcome),))


class ProtocolServer:
    """See the module. ``arrivals`` are in order; ``condition`` guards all."""

    def __init__(
        self,
        script: Script | None = None,
        *,
        deduplicated: tuple[str, ...] = ("*",),
        not_deduplicated: tuple[str, ...] = (),
        window: int = 512,
        term_s: float = 30.0,
        leases: bool = True,
        workers: int = 40,
        credentials: grpc.ServerCredentials | None = None,
        interceptors: tuple[Any, ...] = (),
        address: str = "127.0.0.1:0",
        store: int = 0,
    ) -> None:
        """``store``: the number of the store that it grants leases of; 0: it says none."""
        self.script = script or (lambda arrival, context: arrival.request)
        self.condition = threading.Condition()
        self.arrivals: list[Arrival] = []
        self.grants = 0
        self.renewals: list[int] = []
        self.released: list[int] = []
        self.bad_headers: list[str] = []
        self.resolve: Callable[[Any, Any], Any] | None = None
        self.on_grant: Callable[[grpc.ServicerContext], None] | None = None
        # What it returns is the answer, unless it is None.
        self.on_renew: Callable[[grpc.ServicerContext], Any] | None = None
        self._patterns = (deduplicated, not_deduplicated)
        self._window = window
        self.term_s = term_s
        self._leases = leases
        self.store = store
        self.server = grpc.server(
            futures.ThreadPoolExecutor(workers), interceptors=list(interceptors)
        )
        self.server.add_generic_rpc_handlers((_Router(self),))
        if credentials is None:
            self.port = self.server.add_insecure_port(address)
        else:
            self.port = self.server.add_secure_port(address, credentials)
        self.server.start()

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> ProtocolServer:
        return self

    def __exit__(self, *args: object) -> None:
        self.server.stop(None).wait()

    def wait_for(self, condition: Callable[[], bool], timeout: float = 60.0) -> None:
        with self.condition:
            assert self.condition.wait_for(condition, timeout)

    def note(self, change: Callable[[], None]) -> None:
        with self.condition:
            change()
            self.condition.notify_all()

    # Handlers.

    def call(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            arrival = Arrival(method, request, context)
        except BadHeader as error:
            text = str(error)
            self.note(lambda: self.bad_headers.append(text))
            raise
        self.note(lambda: self.arrivals.append(arrival))
        return self.script(arrival, context)

    def grant(self, request: Any, context: grpc.ServicerContext) -> Any:
        if self.on_grant is not None:
            self.on_grant(context)
        with self.condition:
            self.grants += 1
            number = self.grants
            self.condition.notify_all()
        return lease_pb.GrantReply(
            client_id=1000 + number,
            token=TOKEN,
            term_ms=round(self.term_s * 1000),
            heartbeat=lease_pb.HEARTBEAT_UNARY,
            deduplicated=self._patterns[0],
            not_deduplicated=self._patterns[1],
            window=self._window,
            store=self.store,
        )

    def renew(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.note(lambda: self.renewals.append(request.client_id))
        if self.on_renew is not None and (reply := self.on_renew(context)) is not None:
            return reply
        return lease_pb.RenewReply(client_id=request.client_id, term_ms=round(self.term_s * 1000))

    def release(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.note(lambda: self.released.append(request.client_id))
        return lease_pb.ReleaseReply()

    def outcomes(self, request: Any, context: grpc.ServicerContext) -> Any:
        assert self.resolve is not None
        return self.resolve(request, context)


class _Router(grpc.GenericRpcHandler):
    def __init__(self, server: ProtocolServer) -> None:
        self._server = server
        self._table = {
            "/rifl.v1.Outcomes/Resolve": (
                server.outcomes,
                rifl_pb2.ResolveRequest,
                rifl_pb2.ResolveReply,
            ),
        }
        if server._leases:
            prefix = "/lease_server.v1.LeaseServer/"
            self._table |= {
                prefix + "Grant": (server.grant, lease_pb.GrantRequest, lease_pb.GrantReply),
                prefix + "Renew": (server.renew, lease_pb.RenewRequest, lease_pb.RenewReply),
                prefix + "Release": (
                    server.release,
                    lease_pb.ReleaseRequest,
                    lease_pb.ReleaseReply,
                ),
            }

    def service(self, details: Any) -> Any:
        method = details.method
        if method in self._table:
            behave, request, reply = self._table[method]
            return grpc.unary_unary_rpc_method_handler(
                behave, request.FromString, reply.SerializeToString
            )
        if method.startswith("/test.Service/Stream"):
            return grpc.stream_stream_rpc_method_handler(lambda requests, context: requests)
        if method.startswith("/test."):
            return grpc.unary_unary_rpc_method_handler(
                lambda request, context: self._server.call(method, request, context)
            )
        return None
