"""A group's replica: follows the log, leads when no other replica does (DESIGN §7).

``replica``, ``settings``, ``parts``: the public object, what it is told, what its parts share;
``assembly`` makes these, ``engine_at_start`` waits for a log engine that is down.

``runner`` carries the role out (``curp._core.role``) by ``driver``; ``follower`` applies the log,
``replay_guard`` and ``survival`` see to calls that kill, ``recovery_steps`` takes over.

``leading`` is one leadership: ``appender``, ``collector``, ``witness_list_keeper``,
``snapshot_taker``, ``lease_keeper``, and the lease service over the log (``authority``,
``lease_storage``).

``group_store`` is the store that calls meet: ``group_engine`` and ``arrival`` bring them,
``proposals`` has them wait for the log, ``waiting`` for their turn.

``services`` run the user's handlers; ``now_and_random`` is for these.

``group_service`` and ``group_servicer`` answer ``curp.v1.Group``, from ``group_view`` and
``watched_engine``; ``witnesses`` asks witnesses, several at once by ``fan_out``.

``metadata``, ``poisoning`` and ``replica_list`` are what the engine keeps beside the log;
``errors``.
"""

from curp._replica.errors import Diverged, NotServed, ReplicaStopped
from curp._replica.now_and_random import now, random
from curp._replica.replica import Replica
from curp._replica.settings import StateHooks, Tuning

__all__ = [
    "Diverged",
    "NotServed",
    "Replica",
    "ReplicaStopped",
    "StateHooks",
    "Tuning",
    "now",
    "random",
]
