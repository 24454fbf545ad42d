"""The errors of a replica that does not serve, or stopped."""

from __future__ import annotations

__all__ = ["Diverged", "NotServed", "ReplicaStopped"]


class ReplicaStopped(Exception):
    """The replica cannot go on by itself; ``str()`` says why.

    ::

        ReplicaStopped
        ├── Diverged      in replay a handler gave another answer than the log holds
        └── NotServed     the log holds calls of a method that this replica does not serve
    """


class Diverged(ReplicaStopped):
    """A handler is not deterministic in state, request and stamp: the state is not the log's.

    Correct the handler: docs/reference/curp.md#replicas.
    """


class NotServed(ReplicaStopped):
    """Replay needs a handler that this server does not have.

    Add the servicer, or run the newer release.
    """
