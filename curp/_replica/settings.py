"""What a replica is told, checked when it is built."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from curp._core.leader import LeaderBounds

_VERSIONS = 1 << 63


_ANY_HOST = ("0.0.0.0", "[::]", "::", "*", "")  # noqa: S104 - nothing is bound to it


def _host(address: str) -> str:
    host, colon, _ = address.rpartition(":")
    return host if colon else address


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaSettings:
    """One replica's own settings.

    ``term_s``: length of the leadership's lease, and so about how long a killed leader
    is missed. ``drift``: the share of it that reads give up for clocks that run
    differently. ``client_term_s``: of clients' leases. ``witness_timeout_s``: how long
    a witness is waited for. ``snapshot_entries``: a snapshot after so many entries, of which
    the last ``snapshot_kept_behind`` stay in the log for standbys that are not far behind.
    ``application_version``: of the services, grows with each upgrade that is to be finalized.
    ``poison_deaths``: a call that so many leaders died of is not run again.
    """

    name: str
    address: str
    group: str = "group"
    witnesses: tuple[str, ...] = ()
    replicas: tuple[str, ...] = ()
    term_s: float = 1.0
    drift: float = 0.1
    client_term_s: float = 60.0
    window: int = 512
    witness_timeout_s: float = 2.0
    snapshot_entries: int = 10_000
    snapshot_kept_behind: int = 1000
    application_version: int = 0
    poison_deaths: int = 3
    bounds: LeaderBounds = field(default_factory=LeaderBounds)

    def __post_init__(self) -> None:
        if not self.name or not self.address or not self.group:
            raise ValueError("a replica has a name, an address and a group")
        if _host(self.address) in _ANY_HOST:
            raise ValueError(
                f"{self.address} is where to listen, and nowhere that others could reach: say "
                "under which address they do (--advertise)"
            )
        for seconds in (self.term_s, self.client_term_s, self.witness_timeout_s):
            if not (math.isfinite(seconds) and seconds > 0):
                raise ValueError("terms and timeouts are positive and finite")
        if len(set(self.witnesses)) != len(self.witnesses):
            raise ValueError("the same witness is given twice")
        if self.window < 1 or self.snapshot_entries < 1 or self.poison_deaths < 1:
            raise ValueError("window, snapshot_entries and poison_deaths are at least 1")
        if not 0 <= self.application_version < _VERSIONS:
            raise ValueError("an application version is a number from 0 to 2^63-1")


@dataclass(frozen=True, kw_only=True, slots=True)
class StateHooks:
    """How the services' own state is made anew, written and read.

    ``reset`` brings it to how it was before the first entry: needed to follow again
    after a leadership, and to begin over. ``snapshot`` and ``restore`` go together.
    """

    reset: Callable[[], None] | None = None
    snapshot: Callable[[], bytes] | None = None
    restore: Callable[[bytes], None] | None = None

    def __post_init__(self) -> None:
        if (self.snapshot is None) is not (self.restore is None):
            raise ValueError("snapshot and restore go together")
