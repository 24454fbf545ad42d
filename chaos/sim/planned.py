"""Model of the world: the plan of a run, its setting, its calls and its faults."""

from __future__ import annotations

from dataclasses import dataclass, replace

from chaos.sim.faults import PlannedFault

__all__ = ["ACTIVE_S", "PlannedCall", "Schedule", "Setting"]

# For how long calls are made, and faults strike.
ACTIVE_S = 30.0


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One call: who makes it when, what it asks for, and what becomes of it there.

    ``work_s``: how long its handler works. ``resolves``: its caller asks later what
    became of it, if it was told that the outcome is unknown. ``key``: the caller's own identity
    for it, in a named session. ``batch``: the calls that have the same number here
    travel in one RPC; 0 for one that travels alone. ``plain``: it is made without the SDK,
    by its key in a header. ``messages``: how many its stream has, one each ``pace_s``; 0
    where it has none.
    """

    number: int
    client: int
    at: float
    method: str
    op: str
    account: str
    amount: int
    behaviour: str
    work_s: float
    deadline_s: float | None
    resolves: bool
    session: str = ""
    key: bytes = b""
    batch: int = 0
    plain: bool = False
    messages: int = 0
    pace_s: float = 0.0
    # Sent to a group's leader alone, by a client that knows its witnesses.
    unrecorded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is fixed for a run."""

    servers: int = 1
    clients: int = 3
    term_s: float = 6.0
    window: int = 64
    max_waiters: int = 4
    hedge_after_s: float | None = None
    attempt_timeout_s: float | None = None
    max_elapsed_s: float = 20.0
    unresolved_s: float = 10.0
    drift: float = 0.0
    # Seconds that a server's clocks count in one, but for their drift.
    server_rate: float = 1.0
    # Of a group; None where there is none.
    witnesses: int | None = None
    # Not in the first list.
    spare_witnesses: int = 0
    # A snapshot after so many entries; how many of them stay behind one.
    snapshot_entries: int = 10_000
    kept_behind: int = 0
    # Clients that know nothing of groups: they send to the leader alone.
    plain_clients: int = 0
    # One that says other conflict keys than the server finds; None for none.
    misled_client: int | None = None
    batch_entries: int = 64
    batch_delay_s: float = 0.005
    max_unsynced: int = 1024
    # Each server has a store of its own; a proxy sends what one lost to the other. Or there is
    # none, and the two are copies of one machine, made while it ran.
    apart: bool = False
    cloned: bool = False
    # Replicas have a method that is never claimed.
    never_claimed: bool = False
    # The lives of a group's replicas are of two versions of the application.
    upgrades: bool = False


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything that is planned of a run; the seed decides the rest."""

    kind: str
    seed: int
    setting: Setting
    calls: tuple[PlannedCall, ...]
    faults: tuple[PlannedFault, ...]
    # When a driver closes which session.
    closings: tuple[tuple[float, str], ...] = ()

    def only(self, calls: tuple[int, ...] | None, faults: tuple[int, ...] | None) -> Schedule:
        """Return the schedule with some calls (by number) and faults (by place) only."""
        kept_calls, kept_faults = self.calls, self.faults
        if calls is not None:
            wanted = set(calls)
            kept_calls = tuple(call for call in self.calls if call.number in wanted)
        if faults is not None:
            kept_faults = tuple(self.faults[at] for at in faults if at < len(self.faults))
        return replace(self, calls=kept_calls, faults=kept_faults)
