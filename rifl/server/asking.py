"""Claims that wait for a lease server elsewhere, when a client is met (DESIGN §5)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, cast

import grpc

from lease_server import LeaseError, StorageUnavailable
from lease_server.remote import RemoteAuthority
from lease_server.shared import SharedLeaseStorage
from rifl.core.call import Call
from rifl.core.client_table import Attempt, Decision
from rifl.core.errors import RiflError, StoreUnavailable
from rifl.core.groups import Replies, group_of
from rifl.core.later import Later
from rifl.core.namespace import is_namespace
from rifl.core.policy import MethodPolicy
from rifl.stores import StoreUnreachable, UnsupportedStore
from rifl.stores.base import Store
from rifl.stores.pending import Pending
from rifl.wire import error_class

__all__ = ["asking_store", "open_remote_authority", "require_own_ids"]

# Callers with ids that nobody knows must not pile up requests.
_MAX_ASKED = 256


def open_remote_authority(
    store: Store,
    target: str,
    credentials: grpc.ChannelCredentials | None,
    *,
    term_s: float,
    clock: Callable[[], float],
    timeout_s: float,
) -> tuple[RemoteAuthority, grpc.Channel]:
    """Reach a lease server for a store of this server's own (blocking).

    Raises ``UnsupportedStore`` for a store that keeps its leases itself, that forgets
    with its process, or that holds client ids of another origin (they would be taken
    for one another), and ``StoreUnreachable`` where the store knows clients and the
    lease server cannot be asked about them.
    """
    leases = store.leases
    if isinstance(leases, SharedLeaseStorage):
        raise UnsupportedStore("leases are in the store itself here: lease_server has no use")
    ids_of: Callable[[str | None], str | None] | None = getattr(leases, "ids_of", None)
    if ids_of is None:
        # The ids outlive this process and its records would not: a retry would run again.
        raise UnsupportedStore("lease_server needs a store that outlives this process")
    options = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 2000))
    if credentials is None:
        channel = grpc.insecure_channel(target, options)
    else:
        channel = grpc.secure_channel(target, credentials, options)
    try:
        authority = RemoteAuthority(channel, term_s=term_s, clock=clock)
        try:
            grpc.channel_ready_future(channel).result(timeout_s)
            identity = authority.hello()
            if (standing := ids_of(identity)) != identity:
                whose = "its own" if standing is None else "another lease server's"
                raise UnsupportedStore(f"the store's client ids are {whose}")
            authority.belong_to(identity)
            authority.recover(leases.known_clients())
        except (StorageUnavailable, grpc.FutureTimeoutError) as error:
            known = ids_of(None)
            if known is None or leases.known_clients():
                raise StoreUnreachable(f"the lease server {target} cannot be asked") from error
            authority.belong_to(known)
    except BaseException:
        channel.close()
        raise
    return authority, channel


def require_own_ids(store: Store) -> None:
    """Raise ``UnsupportedStore`` if the store's client ids are some lease server's."""
    ids_of = getattr(store.leases, "ids_of", None)
    if ids_of is not None and ids_of(None) is not None:
        raise UnsupportedStore("the store's client ids are a lease server's: name it")


def asking_store(store: Store, authority: RemoteAuthority) -> Store:
    """Return the store, with claims that first ask about clients that were not met."""
    return cast("Store", _AskingStore(store, authority))


class _AskingStore:
    """The other store but for what is defined here. Any thread."""

    def __init__(self, store: Store, authority: RemoteAuthority) -> None:
        self._store = store
        self._authority = authority
        self._lock = threading.Lock()
        # Many calls of a new client ask once.
        self._asked: dict[tuple[int, bytes, bytes], Pending] = {}

    def claim(self, call: Call, policy: MethodPolicy) -> Decision | Later:
        """Decide at once about a client that was met; else after asking."""
        if is_namespace(call.client_id) or self._authority.verified(
            call.client_id, call.token, call.peer
        ):
            return self._store.claim(call, policy)
        return _Met(self._ask(call), lambda: self._store.claim(call, policy))

    def claim_all(self, calls: Sequence[Call], policy: MethodPolicy) -> Replies | Later:
        """The same for calls of one client: asked once."""
        group, first = group_of(self._store), calls[0]
        if self._authority.verified(first.client_id, first.token, first.peer):
            return group.claim_all(calls, policy)
        return _Met(self._ask(first), lambda: group.claim_all(calls, policy))

    def token(self, client_id: int) -> bytes:
        """None: tokens that were found good are the authority's to know."""
        return b""

    def may_have_run(self, attempt: Attempt) -> bool:
        """As the store's, for a client that an earlier incarnation may have met."""
        # Ids outlive this server, and one that it met may have left no row.
        attempt.entry.recovered = True
        return self._store.may_have_run(attempt)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _ask(self, call: Call) -> Pending:
        who = (call.client_id, call.token, call.peer)
        pending = Pending()
        with self._lock:
            under_way = self._asked.get(who)
            if under_way is not None:
                return under_way
            if len(self._asked) >= _MAX_ASKED:
                raise StoreUnavailable("too many unknown clients at once")
            self._asked[who] = pending

        def done(refusal: LeaseError | None) -> None:
            with self._lock:
                del self._asked[who]
            if refusal is None:
                pending.succeed()
            else:
                pending.fail((error_class(refusal.reason) or RiflError)(str(refusal)))

        try:
            self._authority.begin_check(*who, done)
        except ValueError:
            # The channel is closed.
            done(StorageUnavailable("the server stops"))
        return pending


class _Met(Later):
    """A claim that follows an answer of the lease server's."""

    __slots__ = ("_claim", "_pending")

    def __init__(self, pending: Pending, claim: Callable[[], Any]) -> None:
        self._pending = pending
        self._claim = claim

    def wait(self) -> Any:
        """Block for both."""
        self._pending.wait()
        decision = self._claim()
        return decision.wait() if isinstance(decision, Later) else decision

    def __await__(self) -> Generator[Any, None, Any]:
        """Await both."""
        yield from self._pending.__await__()
        decision = self._claim()
        if isinstance(decision, Later):
            return (yield from decision.__await__())
        return decision
