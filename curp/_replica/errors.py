"""The errors of a replica that does not serve, or stopped."""

from __future__ import annotations

__all__ = ["Diverged", "NotServed", "ReplicaStopped"]


class ReplicaStopped(Exception):
    """The replica cannot go on by itself; ``str()`` says why.

    ::

        ReplicaStopped
        ├── Diverged      a handler answered in replay otherwise than the log says
        └── NotServed     the log holds calls of a method that is not served here
    """


class Diverged(ReplicaStopped):
    """A handler is not deterministic in state, request and stamp: the state is not the log's."""


class NotServed(ReplicaStopped):
    """Replay needs a handler that this server does not have."""
