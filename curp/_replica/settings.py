"""The settings of a replica, checked when it is built."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import grpc

from _rifl_ground.numbers import check_counts, is_whole
from curp._core.leader import LeaderBounds
from curp._core.poison import POISON_DEATHS
from curp._core.read_lease import ReadLease
from curp._group_token import tokens_of
from curp._key_declarations import KeyDeclaration
from lease_server._authority import TERM_S
from rifl._leases.openers import SessionOpeners
from rifl._server.call_engine import KeysFrom
from rifl.core._serving.bounds import Bounds
from rifl.core._serving.policy import Kind, MethodPolicy

_VERSIONS = 1 << 63
# An address of callers without a name has a quarter of these.
_SHARED_KEYS, _SHARED_KEY_BYTES = 100_000, 64 << 20
_LEADER = LeaderBounds()

_ANY_HOST = ("0.0.0.0", "[::]", "::", "*", "")  # noqa: S104 - nothing is bound to it


def _host(address: str) -> str:
    host, colon, _ = address.rpartition(":")
    return host if colon else address


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """Times and sizes of one replica, for ``Replica(tuning=curp.Tuning(...))``.

    ``lease_term_s`` (1 s): length of the leadership's lease, and so about how long a failover
    takes; longer while the log is slow. ``drift`` (0.1): the share of it that reads
    give up for clock drift. ``client_term_s`` (60 s): length of a client's lease.
    ``witness_timeout_s`` (2 s): timeout of a request to a witness.

    ``batch_entries`` (64): entries are appended to the log when so many wait, or when one
    has waited for ``batch_delay_s`` (0.02 s), or when a caller waits for one of them.
    ``max_unsynced`` (1024): beyond so many entries that are not in the log, no call is answered
    before its entry is in the log. ``snapshot_entries`` (10,000): the leader saves a snapshot
    after so many. ``poison_deaths`` (3): a call that so many leaders died of does not run again.

    ``engine_wait_s`` (60 s): how long a starting replica waits for a log engine that does not
    answer; 0: not at all.

    Raises ``ValueError`` for a time or a size that is not valid.
    """

    lease_term_s: float = 1.0
    drift: float = 0.1
    client_term_s: float = TERM_S
    witness_timeout_s: float = 2.0
    batch_entries: int = _LEADER.batch_entries
    batch_delay_s: float = _LEADER.batch_delay_s
    max_unsynced: int = _LEADER.max_unsynced
    snapshot_entries: int = 10_000
    poison_deaths: int = POISON_DEATHS
    engine_wait_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("lease_term_s", "client_term_s", "witness_timeout_s"):
            seconds = getattr(self, name)
            if not (math.isfinite(seconds) and seconds > 0):
                raise ValueError(f"{name} must be positive and finite")
        if not (math.isfinite(self.engine_wait_s) and self.engine_wait_s >= 0):
            raise ValueError("engine_wait_s must be finite, and 0 or more")
        check_counts(self, 1, "snapshot_entries", "poison_deaths")
        # These raise for the other settings.
        ReadLease(self.lease_term_s, drift=self.drift)
        self.leader_bounds()

    def leader_bounds(self) -> LeaderBounds:
        """Return what a leader appends by."""
        return replace(
            _LEADER,
            batch_entries=self.batch_entries,
            batch_delay_s=self.batch_delay_s,
            max_unsynced=self.max_unsynced,
        )

    def bounds_over_log(self, given: Bounds) -> Bounds:
        """Return the bounds that calls meet where those of a server are ``given``."""
        return replace(
            given,
            # Acknowledgements count from their entry: what is not synced stays known.
            window=2 * given.window + self.max_unsynced,
            max_keys=min(given.max_keys or _SHARED_KEYS, _SHARED_KEYS),
            max_key_bytes=min(given.max_key_bytes or _SHARED_KEY_BYTES, _SHARED_KEY_BYTES),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaSettings:
    """One replica's own settings.

    Of the entries that a snapshot holds, the last ``snapshot_kept_behind`` stay in the log for
    standbys that are not far behind. ``append_entries``: how many one append holds at most.
    ``application_version``: of the services, grows with each upgrade that must be finalized.
    """

    name: str
    address: str
    group: str = "group"
    witnesses: tuple[str, ...] = ()
    replicas: tuple[str, ...] = ()
    application_version: int = 0
    tuning: Tuning = Tuning()
    snapshot_kept_behind: int = 1000
    append_entries: int = _LEADER.append_entries

    def __post_init__(self) -> None:
        if not self.name or not self.address or not self.group:
            raise ValueError("a replica has a name, an address and a group")
        if _host(self.address) in _ANY_HOST:
            raise ValueError(
                f"{self.address} is where to listen, and nowhere that others could reach: say "
                "under which address they do (--advertise)"
            )
        if len(set(self.witnesses)) != len(self.witnesses):
            raise ValueError("the same witness is given twice")
        if not (is_whole(self.application_version) and 0 <= self.application_version < _VERSIONS):
            raise ValueError("an application version is a number from 0 to 2^63-1")

    @property
    def bounds(self) -> LeaderBounds:
        """What a leader appends by, whatever the engine takes."""
        return replace(self.tuning.leader_bounds(), append_entries=self.append_entries)


@dataclass(frozen=True, kw_only=True, slots=True)
class StateHooks:
    """How the services' own state is made anew, written and read: ``Replica(hooks=...)``.

    ``reset`` brings it to how it was before the first entry: needed to follow again
    after a leadership, and to begin over. ``snapshot`` returns it as bytes, and ``restore``
    takes them; they go together.
    """

    reset: Callable[[], None] | None = None
    snapshot: Callable[[], bytes] | None = None
    restore: Callable[[bytes], None] | None = None

    def __post_init__(self) -> None:
        if (self.snapshot is None) is not (self.restore is None):
            raise ValueError("snapshot and restore go together")


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodSettings:
    """What is declared of the services' methods; see ``Replica``."""

    conflict_keys: Mapping[str, KeyDeclaration] | None
    read_only: Iterable[str]
    nondeterministic: Iterable[str]
    methods: Mapping[str, MethodPolicy | Kind | str | None] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CallerSettings:
    """Who callers are taken for, and what they may take; see ``Replica``."""

    peer_property: str | None
    keys_from: KeysFrom
    openers: SessionOpeners
    key_retention_s: float | None
    bounds: Bounds


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupSecrets:
    """By what the group's replicas and witnesses know each other; see ``Replica``."""

    witness_credentials: grpc.ChannelCredentials | None
    group_token: str | Sequence[str] | None = field(repr=False)
    plaintext_secrets: bool = False
    open_group: bool = False

    def __post_init__(self) -> None:
        if self.group_token is not None and self.open_group:
            raise ValueError("a group with a token is open to those who show it: no open_group")
        tokens_of(self.group_token)
