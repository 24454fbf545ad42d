"""The lease service's requests: bytes in, bytes out, RiflError for a refusal.

What the sync and the aio shell of ``service`` share. Requests come as raw bytes
so that garbage gets a typed error instead of gRPC's INTERNAL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from _rifl_ground.parsing import parse
from lease_server._authority import Authority, Beat
from lease_server._sessions import SessionsFrom
from lease_server._storage import NOTHING, Acknowledgements
from lease_server.v1 import lease_server_pb2 as pb
from rifl._grpc.audit import CallerAudit
from rifl._leases.openers import SessionOpeners
from rifl.core._shared.call import ranges_from_pairs
from rifl.core._shared.errors import BadHeader, RiflError
from rifl.core._shared.identity import ALSO_AT_MOST, DEFAULT_WINDOW, MAX_SEQ
from rifl.core._shared.reasons import LOST_REASONS

# Refusals that a heartbeat stream answers with and goes on. Others end it with their status,
# which names the leader, for example: the client keeps its lease, and renews it elsewhere.
_VERDICTS = LOST_REASONS | {BadHeader.reason}

_M = TypeVar("_M", bound=Message)
Whence = Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantTerms:
    """What every grant tells the client about this server.

    Patterns are ``/package.Service/Method``, ``/package.Service/*`` or ``*``. ``path``:
    how calls travel, if not straight to this server.
    """

    deduplicated: Sequence[str]
    not_deduplicated: Sequence[str] = ()
    window: int = DEFAULT_WINDOW
    heartbeat: pb.Heartbeat = pb.HEARTBEAT_UNSPECIFIED
    path: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError for a pattern of another form or a window below 1."""
        if not 1 <= self.window < 2**32:
            raise ValueError("window must be 1 to 2^32 - 1")
        for pattern in (*self.deduplicated, *self.not_deduplicated):
            _, slash, rest = pattern.partition("/")
            service, _, method = rest.partition("/")
            if pattern != "*" and not (slash and service and method and pattern[0] == "/"):
                raise ValueError(f"not a method pattern: {pattern!r}")

    def with_heartbeat(self, heartbeat: pb.Heartbeat) -> GrantTerms:
        """The same with another form of heartbeat."""
        return replace(self, heartbeat=heartbeat)


class LeaseRequests:
    """Answers one request at a time; any thread. ``peer`` is what ``peer_of`` says.

    ``renew``, ``keep_alive`` and ``release`` block on the storage only if ``blocks``.
    """

    def __init__(
        self,
        authority: Authority,
        terms: GrantTerms,
        openers: SessionOpeners = SessionOpeners(SessionsFrom.SECRET),  # noqa: B008 - immutable
        audit: CallerAudit | None = None,
    ) -> None:
        """Answer from ``authority``; grants say ``terms``.

        ``audit``: is told of refusals that are answered; of those that are raised by the shell.
        """
        self.audit = audit or CallerAudit()
        self._openers = openers
        self._authority = authority
        self._terms = terms
        self.blocks = authority.blocks

    def grant(self, raw: bytes, peer: bytes, source: str = "") -> bytes:
        """GrantRequest to GrantReply. May block on the storage.

        ``source``: the caller's address, which counts if the peer is anonymous.
        """
        _parse(pb.GrantRequest, raw)
        grant = self._authority.grant(peer, source="" if peer else source)
        return pb.GrantReply(
            client_id=grant.client_id,
            token=grant.token,
            term_ms=_ms(grant.term_s),
            heartbeat=self._terms.heartbeat,
            deduplicated=self._terms.deduplicated,
            not_deduplicated=self._terms.not_deduplicated,
            window=self._terms.window,
            path=self._terms.path,
            store=self._authority.store,
        ).SerializeToString()

    def renew(self, raw: bytes, peer: bytes, whence: Whence = str) -> bytes:
        """RenewRequest to RenewReply; a refusal is raised, unless there were several to renew.

        ``whence``: gRPC's ``context.peer``.
        """
        return self._renew(_parse(pb.RenewRequest, raw), peer, whence).SerializeToString()

    def _renew(self, request: pb.RenewRequest, peer: bytes, whence: Whence) -> pb.RenewReply:
        if request.also:
            return self._renew_all(request, peer, whence)
        self._authority.check_store(request.client_id, request.store)
        acknowledged = _acknowledged(request)
        token = self._authority.heartbeat(request.client_id, request.token, peer, acknowledged)
        return self._renewed(request.client_id, token)

    def _renew_all(self, request: pb.RenewRequest, peer: bytes, whence: Whence) -> pb.RenewReply:
        # Each with its own verdict, the first one's too. What is beyond the bound, or was not
        # reached before the storage was lost, is not answered: its client asks again.
        asked = [(each, _told(each)) for each in (request, *request.also[:ALSO_AT_MOST])]
        beats = [
            Beat(each.client_id, each.token, each.store, told)
            for each, told in asked
            if isinstance(told, Acknowledgements)
        ]
        answers: Iterator[bytes | RiflError] = iter(self._authority.heartbeats(beats, peer))
        replies: list[pb.RenewReply] = []
        for each, told in asked:
            answer = next(answers, None) if isinstance(told, Acknowledgements) else told
            if answer is None:
                break
            replies.append(
                self._refused(each.client_id, answer, whence)
                if isinstance(answer, RiflError)
                else self._renewed(each.client_id, answer)
            )
        replies[0].also.extend(replies[1:])
        return replies[0]

    def _renewed(self, client_id: int, token: bytes) -> pb.RenewReply:
        return pb.RenewReply(
            client_id=client_id,
            term_ms=_ms(self._authority.term_s),
            token=token,
        )

    def _refused(self, client_id: int, error: RiflError, whence: Whence) -> pb.RenewReply:
        self.audit.refused(error, whence)
        return pb.RenewReply(client_id=client_id, refused=error.reason)

    def keep_alive(self, raw: bytes, peer: bytes, whence: Whence = str) -> tuple[bytes, int, bool]:
        """RenewRequest to RenewReply, how many were refused, and whether any was not.

        Raises the RiflError if it says something of this server, and nothing of the lease.
        """
        request = pb.RenewRequest()
        try:
            request = _parse(pb.RenewRequest, raw)
            reply = self._renew(request, peer, whence)
        except RiflError as error:
            if error.reason not in _VERDICTS:
                raise
            reply = self._refused(request.client_id, error, whence)
        refused = [bool(each.refused) for each in (reply, *reply.also)]
        return reply.SerializeToString(), sum(refused), not all(refused)

    def release(self, raw: bytes, peer: bytes) -> bytes:
        """ReleaseRequest to ReleaseReply."""
        request = _parse(pb.ReleaseRequest, raw)
        self._authority.release(request.client_id, request.token, peer)
        return pb.ReleaseReply().SerializeToString()

    def open_session(self, raw: bytes, peer: bytes, source: str = "") -> bytes:
        """OpenSessionRequest to OpenSessionReply. Blocks on the storage.

        ``source`` as in ``grant``.
        """
        request = _parse(pb.OpenSessionRequest, raw)
        secret, *older = self._shown(request, peer)
        opened = self._authority.open_session(
            request.name,
            peer,
            request.retention_ms / 1000,
            secret,
            older=older,
            source="" if peer else source,
            writer=request.writer,
            follows=request.follows,
        )
        return pb.OpenSessionReply(
            client_id=opened.client_id,
            token=opened.token,
            retention_ms=_ms(opened.retention_s),
            term_ms=_ms(opened.term_s),
            created=opened.created,
            heartbeat=self._terms.heartbeat,
            deduplicated=self._terms.deduplicated,
            not_deduplicated=self._terms.not_deduplicated,
            window=self._terms.window,
            path=self._terms.path,
            store=self._authority.store,
            writer=opened.writer,
        ).SerializeToString()

    def close_session(self, raw: bytes, peer: bytes) -> bytes:
        """CloseSessionRequest to CloseSessionReply. Blocks on the storage."""
        request = _parse(pb.CloseSessionRequest, raw)
        secret, *older = self._shown(request, peer)
        self._authority.close_session(request.name, peer, secret, older=older)
        return pb.CloseSessionReply().SerializeToString()

    def _shown(
        self, request: pb.OpenSessionRequest | pb.CloseSessionRequest, peer: bytes
    ) -> tuple[bytes, ...]:
        return self._openers.shown(request.secret, request.name, peer, request.older_secrets)


def _parse(kind: type[_M], raw: bytes) -> _M:
    try:
        return parse(kind, raw)
    except DecodeError as error:
        raise BadHeader(f"not a {kind.__name__}") from error


def _told(request: pb.RenewRequest) -> Acknowledgements | BadHeader:
    try:
        return _acknowledged(request)
    except BadHeader as error:
        return error


def _acknowledged(request: pb.RenewRequest) -> Acknowledgements:
    first_incomplete = request.first_incomplete or 1
    if first_incomplete > MAX_SEQ:
        raise BadHeader(f"first incomplete {first_incomplete} is not in 1..2^63-1")
    completed = ranges_from_pairs(first_incomplete, request.completed)
    if first_incomplete == 1 and not completed:
        return NOTHING
    return Acknowledgements(first_incomplete, completed)


def _ms(seconds: float) -> int:
    # Rounded down: a client must not believe in a longer lease than it has.
    return max(1, int(seconds * 1000))
