"""The authority of a server whose lease server is another process (DESIGN §5)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import grpc

from lease_server import errors
from lease_server.authority import Grant
from lease_server.checks import MAX_CHECKED
from lease_server.errors import BadRequest, LeaseError, StorageUnavailable
from lease_server.held import Doubt, HeldClients
from lease_server.keyring import KeyRing
from lease_server.log import get_logger
from lease_server.sessionbook import OpenedSession
from lease_server.status import read_error_info
from lease_server.v1 import lease_server_pb2 as pb

__all__ = ["RemoteAuthority"]

_log = get_logger("lease_server")

_PREFIX = "/lease_server.v1.LeaseServer/"
_OVER = frozenset({errors.LeaseExpired.reason, errors.SessionClosed.reason})
_REASONS: dict[str, type[LeaseError]] = {
    cls.reason: cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, LeaseError)
}


class RemoteAuthority:
    """What ``LeaseAuthority`` is to a server that keeps records but grants no ids.

    Asks when it first meets a client, four times a term while that is active, and
    before it drops one; never once per call. While the lease server cannot be reached,
    clients met before go on, others get StorageUnavailable, and nobody is dropped.

    ``verified``, ``renew`` and ``is_session`` never wait; ``begin_check`` does not
    either; the others block, at most ``timeout_s`` for each request. Any thread.
    """

    # Heartbeats are passed on: not on an event loop's thread.
    blocks = True
    # The lease server has it.
    key_ring: KeyRing | None = None

    def __init__(
        self,
        channel: grpc.Channel,
        *,
        term_s: float,
        clock: Callable[[], float] = time.monotonic,
        timeout_s: float = 2.0,
    ) -> None:
        """``channel`` reaches the lease server; ``term_s`` holds until that says another."""
        self._clock = clock
        self._timeout_s = timeout_s
        self._held = HeldClients(term_s)
        self._identity = ""
        self._reachable = True
        self._grant = _stub(channel, "Grant", pb.GrantReply)
        self._release = _stub(channel, "Release", pb.ReleaseReply)
        self._open_session = _stub(channel, "OpenSession", pb.OpenSessionReply)
        self._close_session = _stub(channel, "CloseSession", pb.CloseSessionReply)
        self._check = _stub(channel, "Check", pb.CheckReply)

    @property
    def term_s(self) -> float:
        """Length of a lease, seconds: the lease server's."""
        return self._held.term_s

    def now(self) -> float:
        """The authority's clock, seconds."""
        return self._clock()

    def __len__(self) -> int:
        """Clients met, or recovered."""
        return len(self._held)

    def hello(self) -> str:
        """Return whose ids these are. Raises StorageUnavailable."""
        self._ask((), renew=False)
        return self._identity

    def belong_to(self, identity: str) -> None:
        """Take no other lease server's word from now on: its ids would be other clients'."""
        self._identity = identity

    def recover(self, client_ids: Iterable[int]) -> None:
        """Hold the clients that a store knows; asks which are sessions.

        Raises StorageUnavailable: a session's records outlast a client's.
        """
        ids = [client_id for client_id in client_ids if client_id > 0]
        sessions = []
        for some in _chunks([Doubt(client_id, b"", b"") for client_id in ids]):
            standings = self._ask(some, renew=False).clients
            sessions += [standing.client_id for standing in standings if standing.session]
        self._held.recover(ids, sessions, self._clock())

    # What decides about calls.

    def verified(self, client_id: int, token: bytes, peer: bytes) -> bool:
        """Whether this client was met with this token. Never waits."""
        return self._held.verified(client_id, token, peer)

    def begin_check(
        self, client_id: int, token: bytes, peer: bytes, done: Callable[[LeaseError | None], None]
    ) -> None:
        """Meet a client: ``done`` is called, in any thread, with why not, or None.

        None also for a genuine token of a client that is over, but has records here yet:
        known calls are answered, and ``renew`` is False.
        """
        sent_at = self._clock()
        request = _request([Doubt(client_id, token, peer)], renew=True)

        def answered(future: Any) -> None:
            try:
                reply = self._read(future.result(), 1)
                standing = reply.clients[0]
                self._met(standing, token, peer, sent_at)
                if not standing.refused or (standing.genuine and self._held.ending(client_id)):
                    refusal = None
                else:
                    refusal = _error(standing.refused)
            except grpc.RpcError as error:
                refusal = self._failed(error)
            except LeaseError as error:
                refusal = error
            except grpc.FutureCancelledError:
                refusal = StorageUnavailable("the server stops")
            done(refusal)

        self._check.future(request, timeout=self._timeout_s).add_done_callback(answered)

    def check(self, client_id: int, token: bytes, peer: bytes = b"") -> None:
        """Nothing yet: a token is checked where a call of it may wait (``begin_check``)."""

    def still_signed(self, token: bytes) -> bool:
        """Never known here."""
        return False

    def renew(self, client_id: int, now: float | None = None) -> bool:
        """Note an accepted call; False for a client that was not met, or is over."""
        return self._held.renew(client_id, self._clock() if now is None else now)

    def is_session(self, client_id: int) -> bool:
        """Whether a client that was met is a named session."""
        return self._held.is_session(client_id)

    # What the lease service passes on.

    def grant(self, peer: bytes = b"") -> Grant:
        """A new client of the lease server's, bound to this caller."""
        reply = self._pass_on(self._grant, pb.GrantRequest(for_peer=peer))
        return Grant(reply.client_id, reply.token, reply.term_ms / 1000)

    def heartbeat(self, client_id: int, token: bytes, peer: bytes = b"") -> bytes:
        """Renew there; while that cannot be reached, here, for a client that was met."""
        sent_at = self._clock()
        try:
            reply = self._ask([Doubt(client_id, token, peer)], renew=True)
        except StorageUnavailable:
            if self.verified(client_id, token, peer) and self.renew(client_id):
                return b""
            raise
        standing = reply.clients[0]
        self._met(standing, token, peer, sent_at)
        if standing.refused:
            raise _error(standing.refused)
        fresh: bytes = standing.token
        return fresh

    def release(self, client_id: int, token: bytes, peer: bytes = b"") -> None:
        """End a lease; its records go when the lease server has said so."""
        self._pass_on(self._release, pb.ReleaseRequest(client_id=client_id, token=token))
        self._held.end(client_id)

    def open_session(self, name: str, peer: bytes = b"", retention_s: float = 0.0) -> OpenedSession:
        """The session of that name, for callers that are not authenticated."""
        _unbound(peer)
        request = pb.OpenSessionRequest(name=name, retention_ms=round(retention_s * 1000))
        reply = self._pass_on(self._open_session, request)
        return OpenedSession(reply.client_id, reply.token, reply.retention_ms / 1000, reply.created)

    def close_session(self, name: str, peer: bytes = b"") -> int:
        """Close for ever; servers that met it notice within a quarter of a term."""
        _unbound(peer)
        self._pass_on(self._close_session, pb.CloseSessionRequest(name=name))
        return 0

    def rotate_secret(self) -> None:
        """Refused: the secret is the lease server's."""
        raise StorageUnavailable("the secret is the lease server's: rotate it there")

    def expire(self, now: float | None = None) -> list[int]:
        """Tell of active clients, ask about silent ones; the ids that are over.

        Nothing is dropped that the lease server did not say is over, durably.
        """
        at = self._clock() if now is None else now
        over: list[int] = []
        try:
            for some in _chunks(self._held.active(at)):
                standings = self._ask(some, renew=True).clients
                for doubt, standing in zip(some, standings, strict=True):
                    self._met(standing, doubt.token, doubt.peer, at)
            for some in _chunks(self._held.silent(at)):
                # Without tokens: an old secret's must not keep anybody here for ever.
                bare = [Doubt(doubt.client_id, b"", b"") for doubt in some]
                for standing in self._ask(bare, renew=False).clients:
                    if standing.refused in _OVER:
                        self._held.forget(standing.client_id)
                        over.append(standing.client_id)
                    elif not standing.refused:
                        self._held.alive(standing.client_id, at)
        except StorageUnavailable:
            # Said already. What was found over is; the rest is asked for again.
            return sorted(over)
        return sorted(over)

    def _met(self, standing: pb.ClientStanding, token: bytes, peer: bytes, at: float) -> None:
        client_id = standing.client_id
        if not standing.refused:
            self._held.meet(client_id, token, peer, session=standing.session, now=at)
        elif standing.genuine and standing.refused in _OVER:
            self._held.end(client_id)
        elif standing.refused in (errors.NotYours.reason, errors.LeaseExpired.reason) and (
            self._held.verified(client_id, token, peer)
        ):
            self._held.distrust(client_id)

    def _ask(self, clients: Sequence[Doubt], *, renew: bool) -> pb.CheckReply:
        reply = self._pass_on(self._check, _request(clients, renew=renew))
        return self._read(reply, len(clients))

    def _read(self, reply: pb.CheckReply, expected: int) -> pb.CheckReply:
        if self._identity and reply.lease_server != self._identity:
            raise StorageUnavailable("another lease server answers than the ids here are of")
        if len(reply.clients) != expected or not reply.term_ms:
            raise StorageUnavailable("the lease server's answer makes no sense")
        self._identity = reply.lease_server
        self._held.term_s = reply.term_ms / 1000
        if not self._reachable:
            self._reachable = True
            _log.info("lease_server_reached")
        return reply

    def _pass_on(self, stub: Any, request: Any) -> Any:
        try:
            return stub(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise self._failed(error) from error
        except ValueError as error:
            raise StorageUnavailable("the server stops") from error

    def _failed(self, error: Any) -> LeaseError:
        info = read_error_info(error.trailing_metadata())
        if info is not None and info.reason in _REASONS:
            return _error(info.reason, error.details())
        if self._reachable:
            self._reachable = False
            _log.warning("lease_server_unreachable", error=f"{error.code()}: {error.details()}")
        return StorageUnavailable(f"the lease server cannot be asked: {error.details()}")


def _stub(channel: grpc.Channel, method: str, reply: Any) -> Any:
    return channel.unary_unary(
        _PREFIX + method,
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=reply.FromString,
    )


def _request(clients: Sequence[Doubt], *, renew: bool) -> pb.CheckRequest:
    return pb.CheckRequest(
        clients=[
            pb.HeldClient(client_id=client_id, token=token, peer=peer)
            for client_id, token, peer in clients
        ],
        renew=renew,
    )


def _chunks(doubts: list[Doubt]) -> Iterator[list[Doubt]]:
    for start in range(0, len(doubts), MAX_CHECKED):
        yield doubts[start : start + MAX_CHECKED]


def _error(reason: str, text: str | None = None) -> LeaseError:
    cls = _REASONS.get(reason, StorageUnavailable)
    return cls(text or f"the lease server says {reason}")


def _unbound(peer: bytes) -> None:
    if peer:
        # Passed on, it would be this server's session, not the caller's.
        raise BadRequest("authenticated callers open and close sessions at the lease server")
