"""Replicated groups (DESIGN §7): durable in one round trip, exactly once through leader changes.

- ``_core``: the rules. ``_replica``, ``witness``, ``client``: those who keep to them.
- ``log``: where a group's log lives.
- ``_wire``: the bytes; ``_key_declarations``: what methods say of their conflicts.
- ``_security``, ``_group_token``: certificates, and who may stop a group.
- ``observer``, ``metrics``: who watches; ``_cli``: the ``curp`` command, ``python -m curp``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from curp._replica import (
        Diverged,
        NotServed,
        Replica,
        ReplicaStopped,
        StateHooks,
        Tuning,
        now,
        random,
    )
    from curp.log import create_log

__all__ = [
    "Diverged",
    "NotServed",
    "Replica",
    "ReplicaStopped",
    "StateHooks",
    "Tuning",
    "create_log",
    "now",
    "random",
]


def __getattr__(name: str) -> Any:
    # A client imports its path from here, and needs nothing of a server.
    if name == "create_log":
        from curp.log import create_log

        return create_log
    if name in __all__:
        import curp._replica

        return getattr(curp._replica, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
