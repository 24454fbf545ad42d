"""Replicated groups (DESIGN §7): durable in one round trip, exactly once through leader changes.

- ``_core``: the rules. ``_replica``, ``witness``, ``client``: those who keep to them.
- ``log``: where a group's log lives.
- ``_wire``: the bytes; ``_key_declarations``: what methods say of their conflicts.
- ``_security``, ``_group_token``: certificates, and who may stop a group.
- ``observer``, ``metrics``: who watches; ``_events``: the table of events.
- ``_cli``: the ``curp`` command, ``python -m curp``.
"""

from typing import TYPE_CHECKING

from _rifl_ground.exports import exported

if TYPE_CHECKING:
    from curp._replica import Diverged as Diverged
    from curp._replica import NotServed as NotServed
    from curp._replica import Replica as Replica
    from curp._replica import ReplicaStopped as ReplicaStopped
    from curp._replica import StateHooks as StateHooks
    from curp._replica import Tuning as Tuning
    from curp._replica import now as now
    from curp._replica import random as random
    from curp.log import create_log as create_log
else:
    __all__, __getattr__, __dir__ = exported(
        __name__,
        {
            "curp._replica": (
                "Diverged NotServed Replica ReplicaStopped StateHooks Tuning now random"
            ),
            "curp.log": "create_log",
        },
    )
