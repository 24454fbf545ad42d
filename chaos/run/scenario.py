"""Scenarios: named files that say what runs, what breaks, and what must hold.

A file of ``chaos/run/scenarios``::

    title = "A server killed in the middle of everything"
    topology = "server"           # server, group, spark or log
    seconds = 10                  # how long faults strike
    short = true                  # in the short selection

    [deployment]
    store = "sqlite"              # of a server, of a log, or of a group its log
    servers = 1                   # replicas, of a group

    [load]
    clients = 2                   # processes, each with so many callers; of a log, publishers
    callers = 4

    [[fault]]
    kind = "kill"
    target = "server-1"
    at = [1, 2]                   # seconds; a pair is drawn between from the seed
    lasts = 0.5                   # until it is mended
    times = 3                     # struck so often,
    every = [2, 3]                # so far apart

    [expect]
    answers = 100                 # at least, or the run shows nothing

What a fault of each kind takes beside these is in ``KINDS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["KINDS", "Deployed", "Expected", "FaultSpec", "Kind", "Load", "Range", "Scenario"]

# A fixed number, or drawn between the two.
Range = tuple[float, float]

# Of a log: from each of its processes to where it is; from players to a target, and from consumers
# to what they call.
_OF_LOGS = ("publisher", "follower", "keeper", "player", "target", "consumer", "ledger")
_PATHS = ("server", "replica", "witness", "store", "log", "leader", "standby", *_OF_LOGS)
_PROCESSES = (
    *("server", "replica", "witness", "leader", "standby"),
    *("redis", "postgresql", "etcd", "client", "driver"),
    *_OF_LOGS,
)
_CLOCKS = (
    *("server", "replica", "witness", "leader", "standby"),
    *("redis", "postgresql", "client"),
)
# Who writes into files.
_WRITERS = (
    "log",
    *("server", "replica", "leader", "standby", "redis", "postgresql"),
    *(each for each in _OF_LOGS if each != "ledger"),
)
# Kinds of faults.
_ABOUT_TIME = ("clock", "drift", "slow")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of fault: what it strikes, and what has to be said of it."""

    targets: tuple[str, ...]
    attributes: tuple[str, ...] = ()
    # Attributes may be below 0.
    signed: bool = False
    # A toxic of a path, on one stream or both.
    toxic: bool = False


KINDS: Mapping[str, Kind] = {
    # On the path that leads to the target; milliseconds, kilobytes a second, bytes.
    "latency": Kind(targets=_PATHS, attributes=("latency", "jitter"), toxic=True),
    "bandwidth": Kind(targets=_PATHS, attributes=("rate",), toxic=True),
    "slow_close": Kind(targets=_PATHS, attributes=("delay",), toxic=True),
    "timeout": Kind(targets=_PATHS, attributes=("timeout",), toxic=True),
    "reset_peer": Kind(targets=_PATHS, attributes=("timeout",), toxic=True),
    "limit_data": Kind(targets=_PATHS, attributes=("bytes",), toxic=True),
    # Everything sent one way is lost, and no side is told.
    "loss": Kind(targets=_PATHS, toxic=True),
    # A node of a group's etcd is cut off from its peers, too.
    "down": Kind(targets=(*_PATHS, "etcd")),
    # To a process.
    "kill": Kind(targets=_PROCESSES),
    "stop": Kind(targets=_PROCESSES),
    # The wall clock of a process, until it is put right: seconds forward or back; or so
    # much too fast or too slow, and what it gained stays. Another start of it has the same.
    "clock": Kind(targets=_CLOCKS, attributes=("seconds",), signed=True),
    "drift": Kind(targets=_CLOCKS, attributes=("percent",), signed=True),
    # Each write of the process into a file, and each sync of one, takes so many milliseconds
    # longer, and one where the file ends so far grow_ms more. Another start of it has the same.
    # "log": of all processes, as they share its disk.
    "slow": Kind(targets=_WRITERS, attributes=("write_ms", "grow_ms", "sync_ms")),
    # Redis loses its files, and comes back empty.
    "wipe": Kind(targets=("redis",)),
    # The target's disk is full: a server's, Redis's, that of a log in a file, PostgreSQL's of a
    # log. Who
    # ended because of that is started again when there is room.
    "fill": Kind(targets=("server", "redis", "log", "postgresql")),
}


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """What runs."""

    # sqlite, redis or postgresql; of a group or a log also etcd, three nodes: etcd-1 to etcd-3, and
    # the one that leads them, etcd-leader. The path of a group's replica to its log is log-1, and
    # so on.
    store: str = "sqlite"
    servers: int = 1
    witnesses: int = 0
    # How payments are declared: plain, idempotent or atomic; grpc leaves rifl out.
    method: str = "plain"
    # Of servers: how long a client's lease is.
    term_s: float = 60.0
    # So many processes of each server are forked when its Deduplicator is made, and serve by it.
    forked_workers: int = 0
    # Of servers: so much is kept with each payment; the ledger grows by a page for some 3,000.
    receipt_bytes: int = 0
    # Of a log: who follows it, the first two by holds; who sweeps and trims; and whether all of
    # them come by a server of it, which does that then.
    followers: int = 0
    keepers: int = 0
    served: bool = False
    # Of a log: processes of one player, and its targets, which they call.
    players: int = 0
    targets: int = 0
    # Of a log: processes of one consumer, and where its effects are: sqlite, the kind of server
    # that has the log, or log; they call ledger-1.
    consumers: int = 0
    effects: str = "sqlite"
    # Of a group: each replica's monotonic clocks are so far ahead of the one before it.
    clocks_apart_s: int = 0


@dataclass(frozen=True, kw_only=True)
class Load:
    """Who calls, how often, and what."""

    clients: int = 2
    callers: int = 4
    accounts: int = 12
    # Of calls: those that only read.
    reads: float = 0.2
    # Whether the clients make calls under common keys of a named session, too.
    keyed: bool = False
    # Seconds until a second attempt is sent beside the first; 0 for never.
    hedge_after: float = 0.0
    pause_ms: float = 15.0
    call_timeout_s: float = 8.0


@dataclass(frozen=True, kw_only=True)
class FaultSpec:
    """One ``[[fault]]``; ranges are drawn from the seed, for each time anew."""

    kind: str
    targets: tuple[str, ...]
    at: Range
    lasts: Range = (0.0, 0.0)
    times: int = 1
    every: Range = (0.0, 0.0)
    stream: str = "both"
    toxicity: float = 1.0
    attributes: Mapping[str, Range] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What must hold beside ``chaos.check``'s rules."""

    answers: int = 100
    # Answers from a completion record: the faults came between a call and its answer.
    replayed: int = 0
    # Calls that a forked worker refused as FORKED_PROCESS; what else one answers is wrong.
    forked: int = 0
    # No call is answered after the last fault: it stops, rather than be wrong.
    stands_still: bool = False
    # Rules that the scenario's deployment does not promise, and why.
    exempt: tuple[str, ...] = ()
    because: str = ""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One file."""

    name: str
    title: str
    topology: str
    seconds: float
    short: bool
    deployment: Deployed
    load: Load
    faults: tuple[FaultSpec, ...]
    expect: Expected

    @property
    def alone(self) -> bool:
        """Whether no other scenario runs beside it: it is about clocks, speed or silence.

        A Spark job fills the machine by itself.
        """
        kinds = {fault.kind for fault in self.faults}
        return (
            not kinds.isdisjoint(_ABOUT_TIME)
            or self.expect.stands_still
            or self.topology == "spark"
        )
