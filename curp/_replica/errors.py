"""The errors of a replica that does not serve, or stopped."""

from __future__ import annotations

import grpc

from lease_server._errors import LeaseError

__all__ = ["Diverged", "NotLeading", "NotServed", "ReplicaStopped"]


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


class NotLeading(LeaseError):
    """Another replica leads, or none does yet: nothing was granted or renewed here.

    ``leader`` is its address, if it is known, which clients are told as a call's refusal tells it.
    """

    reason = "NOT_LEADER"
    code = grpc.StatusCode.UNAVAILABLE
    retry_after_s = 0.05

    def __init__(self, message: str = "", leader: str = "") -> None:
        super().__init__(message, leader)
        self.info = {"leader": leader} if leader else {}

    def __str__(self) -> str:
        return str(self.args[0])
