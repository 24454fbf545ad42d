"""A CURP group: the product's rules, store, log and witnesses, over an engine in memory.

The rules are ``curp._core``'s, ``GroupStore``'s and ``WitnessHandlers``'s. Here stands what
is a thread or a socket in ``curp._replica``: when a batch is appended, a lease renewed, a
witness asked.

- ``log``: the store that has the log, and the faults on the way to it.
- ``deployment``: replicas, witnesses and one log, and the faults that are theirs.
- ``replica``, ``leadership``, ``servicer``, ``witnesses``: one replica, by its ``driver``.
- ``operator``: who asks for changes.
"""

from __future__ import annotations

from chaos.sim.group.deployment import GroupDeployment

__all__ = ["GroupDeployment"]
