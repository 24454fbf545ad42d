"""The parts of a replica that the others are given, and what one leadership of it has."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from _rifl_ground.system import boottime
from curp._core.leader import Leader
from curp._core.poison import PoisonWatch
from curp._core.state import GroupState
from curp._core.witness_list import WitnessList
from curp._replica.authority import GroupAuthority
from curp._replica.driver import Driver
from curp._replica.group_store import GroupStore
from curp._replica.group_view import GroupView
from curp._replica.lease_keeper import LeadershipKeeper
from curp._replica.replay_guard import ReplayGuard
from curp._replica.services import Services
from curp._replica.settings import ReplicaSettings, StateHooks
from curp._replica.witnesses import Witnesses
from curp.log._commits import GroupLog
from curp.observer import GroupObservers
from rifl.core._serving.bounds import Bounds


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What the parts of one replica share.

    ``incarnation``: what the engine knows this process by; another one under the same name is
    another replica to it, and must wait until this one's reads are over. ``guard``: against
    what kills in replay; None: nothing is noted. ``bounds``: what callers may take.
    ``boottime``: the seconds that read leases are counted by. ``random_bytes``: draws what
    secrets and appends are made of.
    """

    engine: GroupLog
    store: GroupStore
    services: Services
    authority: GroupAuthority
    witnesses: Witnesses
    settings: ReplicaSettings
    hooks: StateHooks
    driver: Driver
    picture: GroupView
    incarnation: str
    guard: ReplayGuard | None = None
    observer: GroupObservers | None = None
    bounds: Bounds = Bounds()  # noqa: RUF009 - frozen
    boottime: Callable[[], float] = boottime
    random_bytes: Callable[[int], bytes] = os.urandom


class Tenure(NamedTuple):
    """What one leadership has, from when it was recovered.

    ``listed``: the witness list that it begins with. ``watch``: what may have killed those who
    led before.
    """

    state: GroupState
    leader: Leader
    keeper: LeadershipKeeper
    listed: WitnessList
    watch: PoisonWatch
