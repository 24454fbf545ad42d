"""The one object a server in a group needs (DESIGN §7)."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self
from urllib.parse import parse_qs

import grpc
import grpc.aio

from _rifl_ground.audit import acting
from _rifl_ground.log import get_logger
from _rifl_ground.owned_lock import OwnedLock
from _rifl_ground.threads import in_thread
from _rifl_ground.urls import split_url
from curp._core.role import Role
from curp._group_token import denied_change, tokens_of, why_kept_off
from curp._key_declarations import KeyDeclaration
from curp._replica.assembly import assemble
from curp._replica.driver import drive
from curp._replica.group_service import SERVICE as GROUP
from curp._replica.group_service import add_group_service
from curp._replica.group_servicer import GroupServicer
from curp._replica.runner import RoleRunner
from curp._replica.services import Registrar
from curp._replica.settings import (
    CallerSettings,
    GroupSecrets,
    MethodSettings,
    ReplicaSettings,
    StateHooks,
    Tuning,
)
from curp.log._commits import GroupLog
from curp.observer import GroupObservers, GroupReport
from curp.v1 import curp_pb2 as pb
from lease_server import SessionsFrom
from rifl._grpc.pool import pool_size
from rifl._grpc.status import rich_status
from rifl._leases.openers import SessionOpeners
from rifl._leases.service import SERVICE_NAME as LEASES
from rifl._leases.service import add_lease_service
from rifl._server.call_engine import KeysFrom
from rifl._server.health import HealthStatus, add_reflection
from rifl._server.interceptors import Interceptors
from rifl._server.outcomes_service import SERVICE as OUTCOMES
from rifl._server.outcomes_service import add_outcomes_service
from rifl._stores.forks import belongs_here
from rifl.core._serving.bounds import DEFAULT_KEY_RETENTION_S, Bounds
from rifl.core._serving.policy import Kind, MethodPolicy
from rifl.core._shared.errors import NotYours
from rifl.core._shared.observer import Observer, Statistics


class Servicers:
    """The servicers of a replica that were given by how they are made.

    If each has ``snapshot() -> bytes`` and ``restore(bytes)``, snapshots are made of
    them; else there are none.
    """

    def __init__(self) -> None:
        self._made: list[_Made] = []

    def add(self, factory: Callable[[], Any]) -> Any:
        """Return what stands for the servicer, whichever one is current."""
        made = _Made(factory)
        self._made.append(made)
        return made

    def hooks(self, given: StateHooks) -> StateHooks:
        """Return the hooks of the user, completed by what the servicers can do."""
        if not self._made:
            return given

        def reset() -> None:
            if given.reset is not None:
                given.reset()
            for made in self._made:
                made.renew()

        able = all(made.can_be_kept() for made in self._made)
        if given.snapshot is not None or not able:
            return StateHooks(reset=reset, snapshot=given.snapshot, restore=given.restore)
        return StateHooks(reset=reset, snapshot=self._snapshot, restore=self._restore)

    def _snapshot(self) -> bytes:
        parts: list[bytes] = [made.current.snapshot() for made in self._made]
        return b"".join(len(part).to_bytes(8, "big") + part for part in parts)

    def _restore(self, data: bytes) -> None:
        at = 0
        for made in self._made:
            length = int.from_bytes(data[at : at + 8], "big")
            made.current.restore(data[at + 8 : at + 8 + length])
            at += 8 + length


class _Made:
    """Passes every method on to the servicer of the moment."""

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._factory = factory
        self.current = factory()

    def renew(self) -> None:
        self.current = self._factory()

    def can_be_kept(self) -> bool:
        return hasattr(self.current, "snapshot") and hasattr(self.current, "restore")

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.current, name)
        if not callable(method):
            return method
        if inspect.iscoroutinefunction(method):

            async def call_async(request: Any, context: Any) -> Any:
                return await getattr(self.current, name)(request, context)

            return call_async

        def call(request: Any, context: Any) -> Any:
            return getattr(self.current, name)(request, context)

        return call


# What clients load to send their calls by: an entry point of the group `rifl.paths`.
PATH = "curp"

_log = get_logger("curp.replica")


class Replica:
    """A gRPC server's membership in a group that survives the loss of its leader.

    ::

        url = "sqlite:////var/lib/bank.log?group=bank"
        replica = curp.Replica(url, name="r1", address="10.0.0.1:50051")
        server = grpc.server(pool, interceptors=[replica.interceptor()])
        bank = replica.servicer(Bank)
        bank_pb2_grpc.add_BankServicer_to_server(bank, replica.registrar(server))
        replica.add_to_server(server)
        server.start()
        replica.start()

    ``engine``: the log engine's URL, or an open one, shared by the group's replicas;
    it names the ``group``, too. Create the log first, with ``curp init`` or
    ``curp.create_log``; else ``curp.log._errors.NoSuchLog`` is raised. While the engine does
    not answer, this waits for ``Tuning.engine_wait_s``, and then raises ``LogUnavailable``.
    ``name`` is unique in the group; ``address`` is where clients reach this replica.
    ``witnesses``: the group's first witness list; later the engine holds the list.
    ``replicas``: addresses of others that ``curp status`` names even if they never ran; those
    that run list themselves in the log engine.
    ``conflict_keys``: by full method name the fields, or a callable of the request,
    that name the call's conflict keys. ``read_only`` methods change nothing; the leader
    alone answers them. ``nondeterministic`` methods depend on more than state,
    request and stamp; they are synced before their answer. Proto options can declare all
    three, too. ``methods``: as for ``rifl.Deduplicator``; every replica serves a method
    declared as None by itself.

    State is what handlers change. A replica rebuilds it by running the same handlers on the
    log's requests, so they must be deterministic: use ``curp.now`` and ``curp.random``
    for time and randomness. If the replica must begin over, it makes a servicer given by
    ``servicer`` anew; for any other, ``reset`` of ``hooks`` does that. With
    ``snapshot`` and ``restore`` (of ``hooks``, or methods of these names on servicers given by
    ``servicer``) the log is compacted every ``Tuning.snapshot_entries`` entries.

    Raise ``application_version`` when the handlers' answers change: replicas of neighbouring
    versions follow each other until the upgrade is finalized (``curp upgrade --finalize``).

    A call that killed ``Tuning.poison_deaths`` leaders does not run again. If no caller can have
    its answer it is logged as unknown, else the group waits for an operator (``curp poison``).

    ``witness_credentials`` are used to reach witnesses; None: plaintext. ``group_token``: a
    secret that the group's replicas, witnesses and operators share, or several, of which each is
    accepted and the first is shown: so a new one comes into use. No client without it
    can change the witness list or the leader; give it to the witnesses, too. None: callers of
    this machine can, by loopback addresses or unix sockets, and with ``open_group`` all callers;
    they name no new witness, which would learn the secrets that sign clients' tokens. Behind a
    proxy on this machine every caller is of this machine: use a token. Without
    ``witness_credentials`` neither the token nor the secrets that sign clients' tokens go to a
    witness beyond this machine (a loopback address, ``localhost``, a unix socket), unless
    ``plaintext_secrets``, for a mesh that encrypts; ``ValueError`` if ``witnesses`` has one.

    ``tuning``: times and sizes, see ``curp.Tuning``. ``bounds``: callers' limits, see
    ``rifl.Bounds``, as counted by the leader since it leads. For callers without a name
    a group keeps at most 100,000 keys and 64 MiB of them, and for one address a quarter.

    Every call needs an identity: ``rifl.connect`` gives one, or an ``idempotency-key``.
    A handler must not call its own group.

    Call ``start`` after the server's, and ``close`` before the server stops. Thread-safe. After
    a crash the log holds the entries, and the witnesses the calls answered before their entry.
    """

    def __init__(
        self,
        engine: str | GroupLog,
        *,
        name: str,
        address: str,
        group: str | None = None,
        witnesses: Sequence[str] = (),
        replicas: Sequence[str] = (),
        conflict_keys: Mapping[str, KeyDeclaration] | None = None,
        read_only: Iterable[str] = (),
        nondeterministic: Iterable[str] = (),
        methods: Mapping[str, MethodPolicy | Kind | str | None] | None = None,
        hooks: StateHooks = StateHooks(),  # noqa: B008 - frozen
        application_version: int = 0,
        witness_credentials: grpc.ChannelCredentials | None = None,
        group_token: str | Sequence[str] | None = None,
        plaintext_secrets: bool = False,
        open_group: bool = False,
        peer_property: str | None = None,
        keys_from: KeysFrom | str = KeysFrom.AUTHENTICATED,
        sessions_from: SessionsFrom | str | Collection[str] = SessionsFrom.SECRET,
        key_retention_s: float | None = DEFAULT_KEY_RETENTION_S,
        bounds: Bounds = Bounds(),  # noqa: B008 - frozen
        tuning: Tuning = Tuning(),  # noqa: B008 - frozen
        observer: Observer | Sequence[Observer] | None = None,
    ) -> None:
        self.settings = ReplicaSettings(
            name=name,
            address=address,
            group=group or _group_of(engine),
            witnesses=tuple(witnesses),
            replicas=tuple(replicas),
            application_version=application_version,
            tuning=tuning,
        )
        self._callers = CallerSettings(
            peer_property=peer_property,
            keys_from=KeysFrom(keys_from),
            openers=SessionOpeners.of(sessions_from),
            key_retention_s=key_retention_s,
            bounds=bounds,
        )
        self._secrets = GroupSecrets(
            witness_credentials=witness_credentials,
            group_token=group_token,
            plaintext_secrets=plaintext_secrets,
            open_group=open_group,
        )
        if open_group:
            _log.warning("no_group_token", address=address)
        for witness in witnesses:
            if why := why_kept_off(witness, witness_credentials, allowed=plaintext_secrets):
                raise ValueError(why)
        self._observer = _watching(observer)
        self._servicers = Servicers()
        self._owns_engine = isinstance(engine, str)
        built = assemble(
            engine,
            self.settings,
            MethodSettings(
                conflict_keys=conflict_keys,
                read_only=read_only,
                nondeterministic=nondeterministic,
                methods=methods,
            ),
            self._callers,
            self._secrets,
            hooks,
            self._observer,
        )
        self._parts = parts = built.parts
        self._log_engine, self._watch, self._picture = parts.engine, built.watch, parts.picture
        self._policies, self._services = built.policies, parts.services
        self._store, self._authority = parts.store, parts.authority
        self._witnesses = parts.witnesses
        self._engine = built.engine
        self._interceptors = Interceptors(built.engine)
        # The health of calls, which the leader takes; the replica's own is ``curp.v1.Group``'s.
        self._health = HealthStatus(serving=False)
        self._group_servicer = GroupServicer(parts, built.watch, lambda: built.replicas.addresses)
        self._replicas = built.replicas
        self._closing = OwnedLock(AssertionError, math.inf)
        self._closed = False
        belongs_here(self, "Replica")

    # -- building a server ----------------------------------------------------------------

    def interceptor(self) -> grpc.ServerInterceptor:
        """Return the interceptor for ``grpc.server``."""
        return self._interceptors.for_server()

    def aio_interceptor(self) -> grpc.aio.ServerInterceptor:
        """Return the interceptor for ``grpc.aio.server``."""
        return self._interceptors.for_aio_server()

    def servicer(self, factory: Callable[[], Any]) -> Any:
        """Return the object to register in place of the servicer that ``factory`` makes."""
        return self._servicers.add(factory)

    def registrar(self, server: grpc.Server | grpc.aio.Server) -> Any:
        """Return the object to add servicers to in place of the server.

        The replica finds handlers there for replay. Raises ``PolicyError`` for a stream that
        is not declared as None.
        """
        return Registrar(server, self._services)

    def add_to_server(self, server: grpc.Server | grpc.aio.Server) -> None:
        """Host the lease service, outcomes and ``curp.v1.Group``.

        Call it after the servicers were added, and before the server starts. Raises
        ``PolicyError`` for declarations of methods that are not served, and if the
        interceptor for this kind of server was never asked for.
        """
        self._services.settle()
        self._interceptors.require(server, "replica")
        add_lease_service(
            server,
            self._authority,
            deduplicated=self._policies.deduplicated(),
            not_deduplicated=self._policies.not_deduplicated(),
            window=self._callers.bounds.window,
            peer_property=self._callers.peer_property,
            path=PATH,
            sessions_from=self._callers.openers,
            message_s=self._callers.bounds.max_message_s,
            audit=self._engine.audit,
        )
        add_outcomes_service(server, self._engine, self._interceptors.aio.shell)
        add_group_service(
            server,
            self._group_servicer,
            peer_property=self._callers.peer_property,
            group_token=self._secrets.group_token,
            open_group=self._secrets.open_group,
            message_s=self._callers.bounds.max_message_s,
            audit=self._engine.audit,
        )
        if isinstance(server, grpc.aio.Server):
            self._services.loop = asyncio.get_running_loop()
        elif self._callers.bounds.max_waiters is None:
            self._engine.max_waiters = pool_size(server) // 4

    def add_health(self, server: grpc.Server | grpc.aio.Server, *services: str) -> None:
        """Serve gRPC health (``rifl-grpc[health]``): for the server, and the services named.

        SERVING on the replica that leads, NOT_SERVING on all others, so that a load
        balancer sends calls to the leader. The service ``curp.v1.Group`` is SERVING on
        every replica that has not stopped: ask for that one to learn whether the process
        must be replaced. Call this before the server starts, and on its loop for an aio one.
        """
        self._health.serve(server, services)
        self._health.set_named(GROUP, serving=self.role != Role.STOPPED)

    def add_reflection(self, server: grpc.Server | grpc.aio.Server, *services: str) -> None:
        """Serve gRPC reflection (``rifl-grpc[health]``) for the services named, and rifl's.

        Of a group with a token, to callers that show it.
        """
        tokens = tokens_of(self._secrets.group_token)

        def refuses(context: Any) -> grpc.Status | None:
            denied = denied_change(context, tokens) if tokens else None
            if denied is None:
                return None
            error = NotYours("only who has the group's token may ask what is served", denied)
            self._engine.audit.refused(error, context.peer)
            return rich_status(grpc.StatusCode.PERMISSION_DENIED, error.reason, str(error))

        add_reflection(server, (*services, LEASES, OUTCOMES, GROUP), refuses)

    def start(self) -> None:
        """Begin to follow, and to lead when no other replica does. Returns at once."""
        if self._group_servicer.runner is not None:
            raise RuntimeError("a replica is started once")
        hooks = self._servicers.hooks(self._parts.hooks)
        parts = replace(self._parts, hooks=hooks)
        self._group_servicer.runner = RoleRunner(parts, role_changed=self._role_changed)
        if self._observer is not None:
            self._observer.attached(self.statistics)
            self._observer.group_attached(self.report)
            self._role_changed(self._group_servicer.runner.role)
        self._group_servicer.runner.start()
        self._replicas.start()

    def close(self) -> None:
        """Hand the leadership over if it is here, and release everything. Idempotent.

        Blocks until running calls end, for some seconds at most, and for up to five seconds
        while the log engine does not answer. Do not call it on the event loop that
        serves: see ``aclose``. Called from within itself it returns at once.
        """
        if self._closing.owned:
            return
        with self._closing:
            if self._closed:
                return
            if self._group_servicer.runner is not None:
                self._end(self._group_servicer.runner)
                self._replicas.close()
                if self._observer is not None:
                    self._observer.group_detached(self.report)
                    self._observer.detached(self.statistics)
            self._witnesses.close()
            if self._owns_engine:
                self._log_engine.close()
            # Last: an interrupted one can be called again.
            self._closed = True

    def _end(self, runner: RoleRunner) -> None:
        """End following or leading, and tell what an engine that is gone has kept from it."""
        leads = runner.role in (Role.LEADER, Role.RECOVERING)
        ended = runner.close(self._watch.unanswered_s)
        if ended and runner.not_handed_over is None:
            return
        # As a crash does: what was answered and is not in the log is on the witnesses.
        self._store.step_down()
        why = self._watch.trouble() or f"{runner.not_handed_over}"
        if leads:
            _log.warning(
                "stopped_without_the_engine",
                replica=self.settings.name,
                why=why,
                cost="the next leader asks a witness, and waits for the lease: stop no witness",
            )
        else:
            _log.info("stopped_without_the_engine", replica=self.settings.name, why=why)

    async def aclose(self) -> None:
        """Do what ``close`` does, letting the loop's handlers end meanwhile."""
        await in_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- changing the group ---------------------------------------------------------------

    def snapshot(self) -> int | None:
        """Save a snapshot now and return its LSN; None if this replica does not lead."""
        leading = self._group_servicer.leading
        if leading is None:
            return None
        taking = leading.taking_snapshot()
        lsn: int | None = drive(taking.rule, taking.do)
        return lsn

    def change_witnesses(self, witnesses: list[str], configuration: int) -> pb.GroupConfiguration:
        """Replace the witness list of that configuration number (invariant 11). Blocks.

        Raises ``NotLeader``, and ``Deposed`` if the list may have changed.
        """
        with acting("change_witnesses", ", ".join(witnesses) or "none"):
            return self._group_servicer.change_witnesses(witnesses, configuration)

    def transfer(self, replica: str) -> None:
        """Hand the leadership over, to a replica by name or to any other.

        Raises ``NotLeader``, ``StoreUnavailable``.
        """
        with acting("transfer", replica or "any"):
            self._group_servicer.transfer(replica)

    def finalize_upgrade(self, version: int, who: str) -> int:
        """Make this leader's application version the active one, and return it.

        From then on older replicas stop, and the upgrade cannot be undone. Raises
        ``NotLeader``, ``RiflError`` if the leader is of another version, and ``Deposed`` if
        the outcome is unknown.
        """
        with acting("finalize_upgrade", str(version), who):
            return self._group_servicer.finalize_upgrade(version, who)

    # -- what is told of it. Any thread -----------------------------------------------------

    @property
    def role(self) -> str:
        """What it does: "leader", "standby", "recovering" or "stopped"."""
        return self._group_servicer.role

    @property
    def waiting_for(self) -> str:
        """What it waits for, or why it stopped; empty if neither."""
        return self._group_servicer.waiting_for

    def answered(self) -> dict[str, int]:
        """Return how many operations were answered first, or why they were not, so far."""
        return {speed.value: count for speed, count in self._store.speeds.items()}

    def end_session(self, name: str) -> list[int]:
        """End all open sessions of a name; return their ids.

        As ``rifl.Deduplicator.end_session``, on the leader. Raises ``NotLeader``, and
        ``StorageUnavailable`` if the outcome is unknown: do it again.
        """
        with acting("end_session", name):
            return self._group_servicer.end_session(name)

    def rotate_secret(self) -> int:
        """Make a new secret for client tokens; return its key id.

        As ``rifl.Deduplicator.rotate_secret``, on the leader. Raises ``NotLeader``, and
        ``StorageUnavailable`` if the outcome is unknown.
        """
        with acting("rotate_secret", "group"):
            return self._group_servicer.rotate_secret()

    def statistics(self) -> Statistics:
        """Count what is held now, without holding calls up. Any thread."""
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
            unknown=None if unresolved is None else unresolved.calls,
            oldest_unknown_s=0.0 if unresolved is None else unresolved.oldest_s,
            serving=self.role == Role.LEADER,
        )

    def report(self) -> GroupReport:
        """Look at the replica, and at what it saw last of the log. Any thread; never waits."""
        leading = self._group_servicer.leading
        leader = self._store.leader
        listed = self._picture.listed if leading is None else leading.listed
        applied = self._store.state.applied
        tail = max(applied, self._picture.tail) if leader is None else leader.synced
        return GroupReport(
            group=self.settings.group,
            replica=self.settings.name,
            role=self.role,
            configuration=0 if listed is None else listed.configuration,
            applied=applied,
            # While the engine does not answer, it is not known.
            tail=None if self._watch.trouble() else tail,
            unsynced=0 if leader is None else leader.unsynced,
            wanted=0 if listed is None else len(listed.wanted),
            listed=0 if listed is None else len(listed.witnesses),
            answers=self.answered(),
            serves=self._store.takes_calls(),
            engine_silent_s=self._watch.silent_s(),
        )

    def configuration(self) -> pb.GroupConfiguration:
        """Return who makes up the group, as this replica saw it last. Never waits."""
        return self._group_servicer.configuration()

    def status(self) -> pb.GroupStatusReply:
        """Tell what it does, from memory; on the leader, what its witnesses say, too.

        Those are waited for, a second at most; the log engine is not.
        """
        return self._group_servicer.status()

    def _role_changed(self, role: str) -> None:
        leads = role == Role.LEADER
        self._health.set(leads)
        self._health.set_named(GROUP, serving=role != Role.STOPPED)
        if self._observer is not None:
            self._observer.role_changed(self.settings.name, role)
            self._observer.serving(None if leads else self._store.not_leader())


def _group_of(engine: str | GroupLog) -> str:
    named = parse_qs(split_url(engine).query).get("group") if isinstance(engine, str) else None
    return named[-1] if named else "group"


def _watching(observer: Observer | Sequence[Observer] | None) -> GroupObservers | None:
    observers = (observer,) if isinstance(observer, Observer) else tuple(observer or ())
    return GroupObservers(observers, _observer_failed) if observers else None


def _observer_failed(method: str, error: Exception) -> None:
    _log.error("observer_failed", method=method, error=repr(error))
