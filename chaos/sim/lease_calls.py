"""Driver of the product's ``LeaseRequests``: leases and sessions at a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chaos.sim.network import Rpc
from chaos.sim.server_life import ServerLife
from chaos.sim.service import POLICIES
from lease_server.v1 import lease_server_pb2 as pb
from rifl._client.answers import FinalStatus
from rifl._leases.requests import GrantTerms, LeaseRequests
from rifl._leases.service import status_of
from rifl.core._shared.errors import RiflError

__all__ = ["LeaseCalls"]

# What a stranger shows for a session.
_STRANGERS = b"not what it opens by"


class LeaseCalls:
    """Takes the requests for leases and sessions of one life of a server."""

    def __init__(self, life: ServerLife, window: int) -> None:
        self._life = life
        terms = GrantTerms(
            deduplicated=POLICIES.deduplicated(),
            not_deduplicated=POLICIES.not_deduplicated(),
            window=window,
        )
        requests = LeaseRequests(life.opened.authority, terms)
        self._answers: dict[str, Callable[[bytes, bytes], Any]] = {
            "Grant": requests.grant,
            "Renew": requests.renew,
            "Release": requests.release,
            "OpenSession": requests.open_session,
            "CloseSession": requests.close_session,
        }

    def receive(self, rpc: Rpc) -> None:
        """Take a request."""
        answer = self._answers[rpc.method.rpartition("/")[2]]
        try:
            reply = answer(rpc.request, b"")
        except RiflError as error:
            if self._life.tracing:
                self._life.trace(f"{rpc.method} of {rpc.source.name}: {error.reason}")
            status = status_of(error)
            self._life.world.network.reply(
                rpc, FinalStatus(status.code, status.details, (), status.trailing_metadata), None
            )
            return
        if self._life.tracing:
            self._life.trace(f"{rpc.method} of {rpc.source.name}: OK")
        if rpc.method.endswith("/Release"):
            self._life.clients.released(pb.ReleaseRequest.FromString(rpc.request).client_id)
        elif rpc.method.endswith("/Grant"):
            client_id = pb.GrantReply.FromString(reply).client_id
            self._life.clients.granted(self._life.opened.store, client_id)
        self._life.reply(rpc, reply)

    def overheard(self, session: str) -> None:
        """Be asked by a stranger, who knows a session's name, for its id and for its end."""
        closing = pb.CloseSessionRequest(name=session, secret=_STRANGERS)
        opening = pb.OpenSessionRequest(name=session, secret=_STRANGERS)
        try:
            self._answers["CloseSession"](closing.SerializeToString(), b"")
        except RiflError as error:
            if error.reason != "NOT_YOURS":
                # No client opened it yet, or it is forgotten: the stranger may have it.
                return
        else:
            self._life.world.broken("stranger", PermissionError(f"closed {session}"))
        try:
            self._answers["OpenSession"](opening.SerializeToString(), b"")
        except RiflError:
            return
        self._life.world.broken("stranger", PermissionError(f"opened {session}"))
