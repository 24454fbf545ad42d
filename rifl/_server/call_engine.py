"""The engine: store, leases and bounds of one deduplicator, which its shells share (DESIGN §4)."""

from __future__ import annotations

import enum
import hmac
from collections.abc import Callable, Sequence
from typing import Any

from _rifl_ground.refusals import Denied
from lease_server import Authority
from lease_server._tokens import peer_bound
from rifl._grpc.audit import CallerAudit
from rifl._grpc.source import source_of
from rifl._leases.peer import peer_of
from rifl._server.reply import Replies
from rifl._server.rooms import OfMethods, PoolPlaces, Rooms
from rifl._server.unheard_runs import UnheardRuns
from rifl._stores.base import Store
from rifl._wire.header import (
    ATTEMPTS_BY_GRPC_KEY,
    HEADER_KEY,
    KEY_KEY,
    find_header,
    find_key,
    fingerprint,
    parse_call,
    stream_fields,
)
from rifl._wire.packed_header import KnownClients
from rifl.core._serving.bounds import Bounds
from rifl.core._serving.namespace import namespace_id
from rifl.core._serving.policy import MethodPolicies, MethodPolicy
from rifl.core._shared.call import Call
from rifl.core._shared.errors import BadHeader, LeaseExpired, NotYours, RiflError, StoreMismatch
from rifl.core._shared.identity import check_key, key_of_text
from rifl.core._shared.observer import Observers

_WAIT_SHARE = 0.9


class KeysFrom(enum.Enum):
    """Whose plain keys count: those of authenticated peers, of all callers, or none."""

    AUTHENTICATED = "authenticated"
    ANYONE = "anyone"
    NOBODY = "nobody"


class CallEngine:
    """The store, the leases and the bounds of one deduplicator.

    Immutable but for ``max_waiters`` and ``pool_queue``, which are set when a server is known;
    safe in any thread.
    """

    def __init__(
        self,
        store: Store,
        authority: Authority,
        policies: MethodPolicies,
        *,
        bounds: Bounds,
        peer_property: str | None,
        observer: Observers | None = None,
        keys_from: KeysFrom = KeysFrom.AUTHENTICATED,
        fingerprint_keys: Sequence[bytes] = (),
    ) -> None:
        self.store = store
        self.authority = authority
        self.policies = policies
        self.bounds = bounds
        self.rooms = Rooms()
        # How many calls wait for a thread of the server's pool, if that can be known.
        self.pool_queue: Callable[[], int] | None = None
        self.pooled: OfMethods[PoolPlaces] = OfMethods(PoolPlaces)
        self.unheard: OfMethods[UnheardRuns] = OfMethods(
            lambda policy: UnheardRuns(store, policy, self.replies.unheard)
        )
        # How many handlers were cancelled as no caller waited: threads of theirs may go on.
        self.cancelled = 0
        self.max_waiters = bounds.max_waiters or 0
        self._peer_property = peer_property
        self.replies = Replies(observer)
        # Of calls, and of our own services on the same servers.
        self.audit = CallerAudit(None if observer is None else observer.caller_refused)
        # How many duplicates wait, one entry for each shell.
        self.waiting: list[Callable[[], int]] = []
        self.keys_from = keys_from
        self._fingerprint_keys = fingerprint_keys
        if fingerprint_keys:
            # Where there are none, nothing is asked with every call.
            self.arrive = self._arrive_hidden  # type: ignore[method-assign]
        self._known = KnownClients()
        # The secrets tokens are checked with; None where that is done elsewhere.
        self._ring = authority.key_ring

    def handler_cancelled(self, call: Call) -> None:
        """Note that a handler that no caller waited for was cancelled, and has ended."""
        self.cancelled += 1
        self.replies.cancelled(call)

    def arrive(
        self, method: str, request: bytes, context: Any, read: Callable[[bytes], Any] | None = None
    ) -> Call:
        """Step 1: parse the header and check its token; no state is made.

        ``read`` deserialises the request, for methods whose key is a field of it.
        Raises ``BadHeader``, ``NotYours``, ``LeaseExpired``.
        """
        metadata = context.invocation_metadata()
        header: Any = None
        retried = False
        for entry in metadata:
            key = entry[0]
            if key == HEADER_KEY:
                if header is None:
                    header = entry[1]
            elif key == ATTEMPTS_BY_GRPC_KEY:
                retried = True
        if header is None:
            return self._arrive_keyed(method, request, context, metadata, read)
        ring = self._ring
        # Read before the token is checked: it is replaced when a secret goes.
        secrets = None if ring is None else ring.key_ids
        call = self._known.read(header, method, request, secrets)
        if call is None:
            call = parse_call(header, method, request)
            # Ids that expired are refused below, too, and who is told so sends the call
            # anew: but not one that gRPC has sent before.
            call.retried_by_grpc = retried
            if secrets is None:
                self.authenticate(call, context)
            elif not self._known.knows(call, secrets):
                self.authenticate(call, context)
                self._known.note(call, header, secrets)
        if retried and call.attempt == 1:
            call.retried_by_grpc = True
        return call

    def _arrive_hidden(
        self, method: str, request: bytes, context: Any, read: Callable[[bytes], Any] | None = None
    ) -> Call:
        """Do what ``arrive`` does, and hide the payload."""
        call = CallEngine.arrive(self, method, request, context, read)
        self.hide_payload(call)
        return call

    def arrive_stream(self, method: str, context: Any) -> Call:
        """Do what ``arrive`` does for a request stream, none of which was read yet.

        The call has a fingerprint only where the caller sent a content hash.
        """
        call = self.arrive(method, b"", context)
        header = find_header(context.invocation_metadata())
        if header is None or not stream_fields(header)[1]:
            call.fingerprint, call.others = None, ()
        return call

    def received(self, context: Any) -> int:
        """How many messages of the response stream the caller has already."""
        header = find_header(context.invocation_metadata())
        return 0 if header is None else stream_fields(header)[0]

    def takes_keys(self, policy: MethodPolicy, metadata: Any) -> bool:
        """Whether a call without our header has an identity all the same."""
        if self.keys_from is KeysFrom.NOBODY:
            return False
        return policy.key_field is not None or any(key == KEY_KEY for key, _ in metadata or ())

    def _arrive_keyed(
        self,
        method: str,
        request: bytes,
        context: Any,
        metadata: Any,
        read: Callable[[bytes], Any] | None,
    ) -> Call:
        """Step 1 for a caller that holds no client id: its peer's namespace."""
        text = find_key(metadata)
        policy = self.policies.find(method)
        field = None if policy is None else policy.key_field
        if text is not None:
            key, scope = key_of_text(text), ""
        elif field is not None:
            message = request if read is None else _read(read, request)
            # Its values are unique within the method only.
            key, scope = field_key(message, field), method
        else:
            raise BadHeader(
                f"{method} takes calls with an identity only: by rifl.connect, or a key"
            )
        try:
            peer = peer_of(context, self._peer_property)
            if not peer and self.keys_from is not KeysFrom.ANYONE:
                raise NotYours(
                    "a key needs an authenticated peer: in one namespace for all, anyone could "
                    "read another's answers; the server may allow it by keys_from",
                    Denied("certificate", "missing"),
                )
        except NotYours as error:
            self.audit.refused(error, context.peer)
            raise
        call = Call(
            namespace_id(peer, scope),
            b"",
            None,
            key,
            # The attempt's number is unknown: its answer is labelled like a later one's.
            attempt=2,
            fingerprint=fingerprint(method, peer + request),
            method=method,
        )
        if not peer:
            call.source = source_of(context.peer())
        return call

    def hide_payload(self, call: Call) -> None:
        """Have the call's fingerprint be an HMAC, if the operator has given keys."""
        if self._fingerprint_keys:
            call.fingerprint_keys = self._fingerprint_keys
            call.take_digest(call.fingerprint or b"")

    def authenticate(self, call: Call, context: Any) -> None:
        """Check that the id is of this store, and the token for it and, if bound, this peer."""
        try:
            # First: a token of another store cannot be judged here.
            self.authority.check_store(call.client_id, call.store)
        except (StoreMismatch, LeaseExpired) as error:
            error.store = self.authority.store
            raise
        token = call.token
        bound = peer_bound(token)
        verified = self.store.token(call.client_id)
        if (
            verified
            and not bound
            and hmac.compare_digest(token, verified)
            and self.authority.still_signed(token)
        ):
            return
        try:
            if bound:
                call.peer = peer_of(context, self._peer_property)
            self.authority.check(call.client_id, token, call.peer)
        except RiflError as error:
            error.arrival = call
            self.audit.refused(error, context.peer)
            raise

    def wait_limit_s(self, remaining_s: float | None) -> float:
        """How long a duplicate may wait: the answer has to reach it in time."""
        if remaining_s is None:
            return self.bounds.max_wait_s
        return min(max(0.0, remaining_s) * _WAIT_SHARE, self.bounds.max_wait_s)


def field_key(message: Any, field: str) -> bytes:
    """Return the key that a request carries in one of its fields.

    Text as UTF-8, numbers in decimal. Raises ``BadHeader`` where it is empty, too
    long, or not a field.
    """
    value = message
    for name in field.split("."):
        value = getattr(value, name, None)
    if isinstance(value, str):
        value = value.encode()
    elif isinstance(value, int) and not isinstance(value, bool):
        value = str(value).encode()
    if not isinstance(value, bytes):
        raise BadHeader(f"the request has no key in its field {field}")
    check_key(value)
    return value


def _read(read: Callable[[bytes], Any], request: bytes) -> Any:
    try:
        return read(request)
    except (Exception, SystemExit):  # noqa: BLE001 - whatever a user's deserializer raises
        raise BadHeader("the request that holds the key cannot be deserialized") from None
