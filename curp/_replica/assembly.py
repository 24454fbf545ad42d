"""The assembly of a replica: its parts made from its settings, each once (DESIGN §7)."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from curp._group_token import tokens_of
from curp._replica.authority import GroupAuthority
from curp._replica.driver import Driver
from curp._replica.engine_at_start import open_at_start
from curp._replica.group_engine import GroupEngine
from curp._replica.group_service import SERVICE as GROUP
from curp._replica.group_store import GroupStore
from curp._replica.group_view import GroupView
from curp._replica.parts import Parts
from curp._replica.replay_guard import ReplayGuard
from curp._replica.replica_list import ReplicaList
from curp._replica.services import Services
from curp._replica.settings import (
    CallerSettings,
    GroupSecrets,
    MethodSettings,
    ReplicaSettings,
    StateHooks,
)
from curp._replica.watched_engine import EngineWatch, watched
from curp._replica.witnesses import Witnesses
from curp.log._commits import GroupLog
from curp.observer import GroupObservers
from rifl._server.outcomes_service import SERVICE as OUTCOMES
from rifl.core._serving.policy import Kind, MethodPolicies, MethodPolicy, PolicyError

# Served by every replica by itself.
_NEVER = {
    "/lease_server.v1.LeaseServer/*": None,
    f"/{OUTCOMES}/*": None,
    f"/{GROUP}/*": None,
    "/grpc.health.v1.Health/*": None,
    "/grpc.reflection.v1alpha.ServerReflection/*": None,
}


def group_policies(
    methods: Mapping[str, MethodPolicy | Kind | str | None] | None,
) -> MethodPolicies:
    """Return the policies; raises ``PolicyError`` for one that cannot be honoured."""
    policies = MethodPolicies({**_NEVER, **(methods or {})}, MethodPolicy(required=True))
    for policy in policies:
        if policy.kind is Kind.ATOMIC:
            raise PolicyError("an atomic method has a database of its own, and a group has its log")
        if policy.unrecorded:
            # A later leader may run what is on a witness: it must find an answer (13).
            raise PolicyError("in a group every answer is recorded: unrecorded cannot be honoured")
        if policy.batch_concurrency > 1:
            raise PolicyError(
                "in a group a batch's calls run in its order, which is the log's: "
                "batch_concurrency cannot be honoured"
            )
    return policies


class Assembled(NamedTuple):
    """The parts, and what only the server that calls arrive at needs beside them."""

    parts: Parts
    policies: MethodPolicies
    engine: GroupEngine
    watch: EngineWatch
    replicas: ReplicaList


def assemble(
    engine: str | GroupLog,
    settings: ReplicaSettings,
    declared: MethodSettings,
    callers: CallerSettings,
    secrets: GroupSecrets,
    hooks: StateHooks,
    observer: GroupObservers | None,
) -> Assembled:
    """Make a replica's parts; waits for a log engine that is named by its URL."""
    name, tuning, version = settings.name, settings.tuning, settings.application_version
    policies = group_policies(declared.methods)
    services = Services(
        declared.conflict_keys,
        declared.read_only,
        declared.nondeterministic,
        excluded=lambda method: policies.find(method) is None,
        application_version=version,
    )
    witnesses = Witnesses(
        settings.group,
        services,
        timeout_s=tuning.witness_timeout_s,
        credentials=secrets.witness_credentials,
        group_token=next(iter(tokens_of(secrets.group_token)), None),
        plaintext_secrets=secrets.plaintext_secrets,
    )
    opened = (
        open_at_start(engine, name, tuning.engine_wait_s) if isinstance(engine, str) else engine
    )
    log_engine, watch = watched(opened)
    store = GroupStore()
    store.max_entry_bytes = log_engine.limits.append_bytes
    store.application_version = version
    store.observer = store.watcher = observer
    authority = GroupAuthority(
        tuning.client_term_s, store.takes_calls, lambda: store.not_leader().leader
    )
    over_log = tuning.bounds_over_log(callers.bounds)
    store.bind(
        authority,
        policies,
        clock=time.monotonic,
        bounds=over_log,
        key_bounds=callers.bounds.of_keys(callers.key_retention_s),
    )
    incarnation = f"{name}/{os.urandom(4).hex()}"
    guard = ReplayGuard(
        log_engine, name, incarnation, tuning.poison_deaths, partial(setattr, store, "ledger")
    )
    parts = Parts(
        engine=log_engine,
        store=store,
        services=services,
        authority=authority,
        witnesses=witnesses,
        settings=settings,
        hooks=hooks,
        driver=Driver(),
        picture=GroupView(log_engine),
        incarnation=incarnation,
        guard=guard,
        observer=observer,
        bounds=callers.bounds,
    )
    group_engine = GroupEngine(
        store,
        services,
        authority,
        policies,
        bounds=over_log,
        peer_property=callers.peer_property,
        observer=observer,
        keys_from=callers.keys_from,
    )
    # Not by the watched one: that the list can be read says nothing of what the log does.
    replicas = ReplicaList(opened, settings.address)
    return Assembled(parts, policies, group_engine, watch, replicas)
