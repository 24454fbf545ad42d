"""``rifl.Deduplicator``: the one object a server needs (DESIGN §1)."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Self

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor

from _rifl_ground.audit import acting
from _rifl_ground.log import get_logger
from _rifl_ground.owned_lock import OneByOne, OwnedLock
from _rifl_ground.threads import in_thread
from lease_server import SessionsFrom, StorageUnavailable, open_authority
from lease_server._authority import TERM_S
from rifl._grpc.pool import pool_queue, pool_size
from rifl._leases.openers import SessionOpeners
from rifl._leases.service import SERVICE_NAME as LEASES
from rifl._leases.service import add_lease_service
from rifl._server.call_engine import CallEngine, KeysFrom
from rifl._server.declarations import (
    check_policies,
    find_service,
    registered_services,
    take_options,
    watch_registrations,
)
from rifl._server.health import HealthStatus, add_reflection
from rifl._server.interceptors import Interceptors
from rifl._server.local_calls import LocalCalls
from rifl._server.outcomes_service import SERVICE as OUTCOMES
from rifl._server.outcomes_service import add_outcomes_service
from rifl._server.store_release import StoreRelease
from rifl._server.sweeper import ClientSweeper
from rifl._stores import RecordCodec, StoreUnreachable, UnsupportedStore, open_store
from rifl._stores.base import LOCK_TIMEOUT_S
from rifl._stores.codec import Transform
from rifl._stores.forks import belongs_here
from rifl.core._serving.bounds import DEFAULT_KEY_RETENTION_S, Bounds
from rifl.core._serving.policy import Kind, MethodPolicies, MethodPolicy, PolicyError
from rifl.core._shared.errors import Draining, RiflError
from rifl.core._shared.observer import Observer, Observers, Statistics

_log = get_logger("rifl.server")
# Ours, and gRPC's own services that only look.
_NEVER = {
    "/lease_server.v1.LeaseServer/*": None,
    f"/{OUTCOMES}/*": None,
    "/grpc.health.v1.Health/*": None,
}
_LEAST_KEY_BYTES = 16


class Deduplicator:
    """Makes the calls of a gRPC server happen once.

    ::

        dedup = rifl.Deduplicator("sqlite:///service.db")
        server = grpc.server(pool, interceptors=[dedup.interceptor()])
        add_YourServicer_to_server(YourServicer(), server)
        dedup.add_to_server(server)

    ``url``: where completion records live (``memory:``, ``sqlite:///file``, ``redis://...``).
    ``methods``: how methods are declared, by ``/package.Service/Method``,
    ``/package.Service/*`` or ``*``: a ``MethodPolicy``, ``"plain"``,
    ``"idempotent"``, ``"atomic"``, or None for not deduplicated. ``default`` is
    for all others. ``term_s``: length of a client's lease. ``bounds``: what callers
    may take. ``drain_s``: how long ``close`` waits for running calls.
    ``peer_property``: the certificate property that ids, and the namespaces of keys, are
    bound to; by default all names in the certificate, each with its kind.
    ``observer``: one or several that get all events (``rifl.metrics``,
    ``rifl.tracing``). ``clock``: monotonic seconds, for tests.

    ``services``: descriptors of the services served, whose methods may declare
    themselves by the option ``(rifl.v1.exactly_once)``; of those without it protobuf's
    ``idempotency_level`` counts. A declaration in ``methods`` that fits a method outweighs its
    option, and the option outweighs ``default``. See ``check``.

    ``keys_from``: whose plain keys count, sent as ``idempotency-key`` or in a
    method's ``key_field`` by callers without a client id: those of
    ``"authenticated"`` peers, of ``"anyone"`` (all callers without a certificate
    then share one namespace: a caller that knows a key and its request reads the
    answer), or of ``"nobody"`` (the header means nothing). Records of keyed calls
    are kept for ``key_retention_s`` from their completion (None: without end), unless
    their method says otherwise; after that a retry runs again. Those of a named session
    stay as long as it does.

    ``sessions_from``: the callers that may open and close named sessions. ``"peers"``: those
    with a certificate. ``"secret"``: also those that show the session's secret. ``"anyone"``:
    also those without one; their sessions open by their names, and the first opener of a name
    has it (see ``end_session``). A list of names: callers whose certificate has one of them. A
    session that was opened with a secret opens by that secret only.

    ``seal`` and ``unseal``: the user's encryption of stored answers, ``seal(data, associated)``
    and ``unseal(data, associated)``, bytes to bytes, called from many threads. ``associated``
    names the call (``rifl.core.Call.place``): authenticate it, and a record that was moved to
    another call does not open. ``fingerprint_keys``, newest first, each of 16 bytes or more:
    given with them and kept nowhere. Payload fingerprints are HMACs under the newest; a call
    matches under any. ``require_sealed``: a record that is not sealed answers
    ``OutcomeUnknown``, and its call does not run again. ``memory:`` keeps nothing to seal.

    Thread-safe. Opening raises a ``StoreError``; a policy that cannot be honoured
    raises ``PolicyError`` or ``UnsupportedStore``, both ``ValueError``. Call ``close``
    (or leave the context) after the server has stopped; what a crash leaves depends on
    the store. It belongs to the process that made it: in a forked child every use raises
    ``ForkedProcess``, calls are refused with it, and ``close`` does nothing; make it again
    there.
    """

    def __init__(
        self,
        url: str,
        *,
        methods: Mapping[str, MethodPolicy | Kind | str | None] | None = None,
        default: MethodPolicy | Kind | str | None = Kind.PLAIN,
        term_s: float = TERM_S,
        drain_s: float = 10.0,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        peer_property: str | None = None,
        observer: Observer | Sequence[Observer] | None = None,
        services: Iterable[ServiceDescriptor] = (),
        keys_from: KeysFrom | str = KeysFrom.AUTHENTICATED,
        sessions_from: SessionsFrom | str | Collection[str] = SessionsFrom.SECRET,
        key_retention_s: float | None = DEFAULT_KEY_RETENTION_S,
        bounds: Bounds = Bounds(),  # noqa: B008 - frozen
        seal: Transform | None = None,
        unseal: Transform | None = None,
        fingerprint_keys: Sequence[bytes] = (),
        require_sealed: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if term_s <= 0 or drain_s < 0:
            raise ValueError("term_s is positive, drain_s not negative")
        self._policies = MethodPolicies({**_NEVER, **(methods or {})}, default)
        key_bounds = bounds.of_keys(key_retention_s)
        codec = RecordCodec(seal, unseal, require_sealed=require_sealed)
        if (seal is None) is not (not fingerprint_keys):
            raise ValueError("seal, unseal and fingerprint_keys are given together, or not at all")
        if isinstance(fingerprint_keys, bytes | str) or not all(
            isinstance(key, bytes) and len(key) >= _LEAST_KEY_BYTES for key in fingerprint_keys
        ):
            raise ValueError(f"a fingerprint key has {_LEAST_KEY_BYTES} bytes or more")
        self._keys_from = KeysFrom(keys_from)
        self._sessions_from = SessionOpeners.of(sessions_from)
        self._services = {service.full_name: service for service in services}
        take_options(self._policies, self._services.values())
        self._bounds = bounds
        self._drain_s = drain_s
        self._peer_property = peer_property
        self._observer = Observers.of(observer, _observer_failed)
        self._health = HealthStatus()
        # Why new calls are refused, and whom that is told, one at a time.
        self._refusal: RiflError | None = None
        self._refusals: OneByOne[None] = OneByOne()
        self._store = open_store(url, lock_timeout_s=lock_timeout_s, codec=codec)
        bounds = self._bounds = bounds.on_disk(self._store.free_bytes)
        key_bounds = bounds.of_keys(key_retention_s)
        self._store.observer = self._observer
        self._store.on_refusal = self._refusal_changed
        try:
            self._check_kinds(url)
            self.check()
            self._authority = open_authority(
                self._store.leases,
                term_s=term_s,
                clock=clock,
                max_clients=bounds.max_clients,
                max_clients_per_caller=bounds.max_clients_per_caller,
                events=get_logger("lease_server"),
            )
            self._store.bind(
                self._authority,
                self._policies,
                clock=clock,
                bounds=bounds,
                key_bounds=key_bounds,
            )
        except BaseException as error:
            with contextlib.suppress(Exception):
                self._store.close()
            if isinstance(error, StorageUnavailable):
                place = re.sub("//[^/]*@", "//", str(url))
                raise StoreUnreachable(f"cannot open {place}: {error}") from error
            raise
        self._engine = CallEngine(
            self._store,
            self._authority,
            self._policies,
            bounds=bounds,
            peer_property=peer_property,
            observer=self._observer,
            keys_from=self._keys_from,
            fingerprint_keys=tuple(fingerprint_keys),
        )
        self._interceptors = Interceptors(self._engine)
        # For those who hand work to the handlers themselves; see ``rifl._server.local_calls``.
        self._local_calls = LocalCalls(self._engine, self._interceptors)
        self._release: StoreRelease | None = None
        # How many handlers had been cancelled when the server began to drain.
        self._cancelled: int | None = None
        self._closing = OwnedLock(AssertionError, math.inf)
        self._sweeper = ClientSweeper(self._store, self._authority, self._local_calls.loops.look)
        self._sweeper.start()
        belongs_here(self, "Deduplicator")
        if self._observer is not None:
            self._observer.attached(self.statistics)
            if self._refusal is not None:
                # It may have been told before.
                self._refusals.post(None, self._tell_observer)

    def interceptor(self) -> grpc.ServerInterceptor:
        """Return the interceptor for ``grpc.server``."""
        return self._interceptors.for_server()

    def aio_interceptor(self) -> grpc.aio.ServerInterceptor:
        """Return the interceptor for ``grpc.aio.server``."""
        return self._interceptors.for_aio_server()

    def add_to_server(self, server: grpc.Server | grpc.aio.Server) -> None:
        """Host the lease service, and the one that resolves outcomes, on the server.

        Before it starts. The declarations are checked, as by ``check``, against the
        servicers that were added, and against later ones when they are added: their
        options count in any order. Raises ``PolicyError``, as the later registration then
        does; also if the interceptor for this kind of server was never asked for: clients
        would be told that calls happen once, and they would not. On a sync server this
        also learns the size of its thread pool, for the bound on waiting duplicates.
        """
        self.check(server)
        self._interceptors.require(server, "dedup")
        self._check_places(pool_size(server))
        deduplicated = self._policies.deduplicated()
        not_deduplicated = self._policies.not_deduplicated()
        add_lease_service(
            server,
            self._authority,
            deduplicated=deduplicated,
            not_deduplicated=not_deduplicated,
            window=self._bounds.client_window,
            peer_property=self._peer_property,
            sessions_from=self._sessions_from,
            message_s=self._bounds.max_message_s,
            audit=self._engine.audit,
        )
        add_outcomes_service(server, self._engine, self._interceptors.aio.shell)

        def added(services: list[ServiceDescriptor]) -> None:
            self._health.registered(server, services)
            self.check(None, services)
            # Grants tell what these lists hold.
            deduplicated[:] = self._policies.deduplicated()
            not_deduplicated[:] = self._policies.not_deduplicated()

        watch_registrations(server, added)
        self._engine.pool_queue = pool_queue(server)
        if self._bounds.max_waiters is None:
            self._engine.max_waiters = pool_size(server) // 4

    def add_health(self, server: grpc.Server | grpc.aio.Server, *services: str) -> None:
        """Serve gRPC health (``rifl-grpc[health]``): for the server, and the services named.

        NOT_SERVING while new calls are refused: the store is unavailable, or the
        server drains. Call it before the server starts, and on its loop for an aio one.
        Raises ``ImportError`` if grpcio-health-checking is not installed, and ``ValueError`` if
        the server has a health service already, as a later registration of one then does.
        """
        self._health.serve(server, services)

    def add_reflection(self, server: grpc.Server | grpc.aio.Server, *services: str) -> None:
        """Serve gRPC reflection (``rifl-grpc[health]``) for the services named, and rifl's.

        ``services`` are full names. Raises ``ImportError`` if grpcio-reflection
        is not installed.
        """
        add_reflection(server, (*services, LEASES, OUTCOMES))

    def rotate_secret(self) -> None:
        """Make a new secret for client tokens, durably.

        It signs after half a term; tokens of the old one stay valid for a term
        after that, and heartbeats hand out new ones. Rotate at most once in three
        terms: only two secrets are kept. Blocks on the store; raises
        ``lease_server.StorageUnavailable``.
        """
        with acting("rotate_secret", "store"):
            self._authority.rotate_secret()

    def end_session(self, name: str) -> list[int]:
        """End all open sessions of a name; return their ids.

        For an operator: as their owners' ``close`` does, durably and for good, a numbered
        session with those below it. The name is refused afterwards, as that of each session
        that was closed. Blocks on the store; raises ``lease_server.StorageUnavailable``.
        """
        with acting("end_session", name):
            return self._authority.end_session(name)

    def statistics(self) -> Statistics:
        """Count what is held now, without blocking calls. Any thread."""
        clients, unacknowledged, running = self._store.statistics()
        waiting = sum(count() for count in self._engine.waiting)
        unresolved = self._store.unresolved
        return Statistics(
            clients,
            len(self._authority),
            unacknowledged,
            running,
            waiting,
            self._store.held.total,
            self._engine.rooms.waiting,
            sum(runs.bound.unheard for runs in self._engine.unheard.all()),
            None if unresolved is None else unresolved.calls,
            0.0 if unresolved is None else unresolved.oldest_s,
            self._refusal is None,
        )

    def check(
        self,
        server: grpc.Server | grpc.aio.Server | None = None,
        services: Iterable[ServiceDescriptor] = (),
    ) -> None:
        """Refuse declarations that cannot be honoured, by raising ``PolicyError``.

        That is: a method or a service that does not exist; a bidirectional stream
        declared by name; ``atomic`` on a store without transactions, or for a
        response stream; an invalid key field. ``services`` join those
        given at construction; of a sync server the registered ones are found too
        (not on an aio server, which does not tell). Their options are taken here,
        so do this before the server starts.
        """
        found, complete = registered_services(server)
        named = (find_service(pattern[1:].partition("/")[0]) for pattern in self._declared())
        new = {
            service.full_name: service
            for service in (*services, *found, *(each for each in named if each is not None))
            if service.full_name not in self._services
        }
        take_options(self._policies, new.values())
        self._services |= new
        check_policies(
            self._policies,
            list(self._services.values()),
            complete=complete,
            atomic=self._store.transactions is not None,
            keys=self._keys_from is not KeysFrom.NOBODY,
        )

    def drain(self) -> None:
        """Refuse new calls from now on (DRAINING); duplicates are still answered."""
        if self._cancelled is None:
            self._cancelled = self._store.cancelled - self._engine.cancelled
        self._store.refuse_new(True)

    def drained(self, timeout_s: float) -> int:
        """Wait for the running calls; return how many still run. Blocks, at most ``timeout_s``."""
        self._store.settled(timeout_s)
        return self._store.running()

    def close(self, drain_s: float | None = None) -> None:
        """Wait for running calls, and close the store. Idempotent.

        At most ``drain_s`` seconds; None means the constructor's. On an event loop
        use ``aclose``: this would block the handlers it waits for.

        If handlers still run then, it logs so and returns, and this process keeps the
        store. No other process can open the file, or takes this replica for dead, before the
        last of them is recorded or the process ends. If an event loop cancelled one of them
        meanwhile, a thread that it left behind may go on: then the end of the process closes
        the store. Until then new calls are refused. A second ``close`` waits for that, at most
        ``drain_s`` more. Called within itself, by a signal's handler or an observer, it returns
        at once.
        """
        if not self._closing.owned:
            with self._closing:
                self._close(self._drain_s if drain_s is None else drain_s)

    async def aclose(self, drain_s: float | None = None) -> None:
        """Do what ``close`` does, letting the loop's handlers end meanwhile."""
        if self._release is not None and self._release.done:
            return
        self.drain()
        wait_s = self._drain_s if drain_s is None else drain_s
        await self._interceptors.aio.shell.drained(wait_s)
        await in_thread(self.close, drain_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _close(self, drain_s: float) -> None:
        release = self._release
        if release is not None and release.begun:
            if not _on_event_loop():
                release.wait(drain_s)
            return
        self.drain()
        if _on_event_loop():
            if self._store.running():
                _log.warning("closed_with_calls_running", hint="use aclose() on an event loop")
        elif not self._store.settled(drain_s):
            _log.warning("closed_with_calls_running", calls=self._store.running())
        self._release = StoreRelease(self._store, self._let_go, self._cancelled or 0)
        self._release.begin()

    def _die(self) -> None:
        """Do what a crash of the process does, for ``rifl.testing``: handlers end unrecorded."""
        with self._closing:
            if self._release is None:
                self.drain()
                self._release = StoreRelease(self._store, self._let_go, 0)
                self._release.at_once()

    def _let_go(self) -> None:
        self._sweeper.stop()
        if self._observer is not None:
            self._observer.detached(self.statistics)
        self._store.close()

    def _declared(self) -> list[str]:
        return [pattern for pattern in self._policies.declared() if pattern != "*"]

    def _check_kinds(self, url: str) -> None:
        if self._store.transactions is None and any(
            policy.kind is Kind.ATOMIC for policy in self._policies
        ):
            raise UnsupportedStore(f"an atomic method needs a store with transactions, not {url}")

    def _check_places(self, threads: int) -> None:
        for policy in self._policies:
            if 0 < threads <= (policy.max_running or 0):
                raise PolicyError(
                    f"max_running={policy.max_running} has no effect in a pool of {threads} "
                    "threads, as calls that wait for a place hold one each: give more threads"
                )

    def _refusal_changed(self, refusal: RiflError | None) -> None:
        if refusal is None:
            _log.info("taking_new_calls")
        elif isinstance(refusal, Draining):
            _log.info("refusing_new_calls", reason=refusal.reason, error=str(refusal))
        else:
            # Not requested: an operator has to look.
            _log.warning("refusing_new_calls", reason=refusal.reason, error=str(refusal))
        self._health.set(refusal is None)
        self._refusal = refusal
        if self._observer is not None:
            self._refusals.post(None, self._tell_observer)

    def _tell_observer(self, _: None) -> None:
        # In turn: the last to be told is what holds.
        self._observer.serving(self._refusal)  # type: ignore[union-attr]


def _observer_failed(method: str, error: Exception) -> None:
    _log.error("observer_failed", method=method, error=repr(error))


def _on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
