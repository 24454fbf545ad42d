"""A log that a server has, as ``_log`` uses engines."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TypeVar

from sharedlog._core.calling import CalledRule
from sharedlog._core.draft import operations_for
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.following import Follower, Start
from sharedlog._engines.elsewhere import Elsewhere
from sharedlog._engines.engine import Engine, Limits
from sharedlog._engines.forks import belongs_here
from sharedlog._remote.address import parse
from sharedlog._remote.channel import LogChannel
from sharedlog._remote.follower import RemoteFollower
from sharedlog._remote.rules import Rules
from sharedlog._remote.steps import RemoteSteps
from sharedlog.v1 import log_pb2 as pb

_T = TypeVar("_T")


class RemoteLog(Elsewhere):
    """Any thread; of one process."""

    def __init__(self, url: str) -> None:
        """Ask the server what its log is; raises ``LogUnavailable``, ``NotAllowed``."""
        address = parse(url)
        self._timeout_s = address.timeout_s
        self._channel = LogChannel(address)
        try:
            self._described: pb.Description = self._channel.ask("Describe", pb.DescribeRequest())
        except BaseException:
            self._channel.close()
            raise
        self._rules = Rules(self._channel, self._described)
        self._followers: weakref.WeakSet[RemoteFollower] = weakref.WeakSet()
        belongs_here(self)

    @property
    def durability(self) -> str:
        """What the server's store promises of an append that returned."""
        return self._described.durability

    @property
    def limits(self) -> Limits:
        """The limits of one request."""
        found = self._described
        # Of the operations ``tags_for`` makes the tags again that the server takes.
        return Limits(found.append_entries, found.append_bytes, operations_for(found.append_tags))

    def ask(self, call: CalledRule[_T]) -> _T:
        """Have the server run a rule, and return its result, or raise its error."""
        found: _T = self._rules.ask(call)
        return found

    def steps(self, player: str) -> Engine:
        """Return an engine whose steps the server carries out, with this player's rights."""
        incarnation = self._described.incarnation
        return RemoteSteps(self._channel, incarnation, player, self.durability, self.limits)

    def follower(
        self,
        tags: Sequence[str],
        incarnation: str,
        start: Start,
        *,
        name: str | None,
        retention_us: int,
        committed: bool,
    ) -> Follower:
        """Return a follower that reads at the server; its rules take no steps."""
        made = RemoteFollower(
            self._channel,
            self._timeout_s,
            tags,
            incarnation,
            start,
            name=name,
            retention_us=retention_us,
            committed=committed,
        )
        self._followers.add(made)
        return made

    def refresh(self, follower: Follower) -> None:
        """Have the follower's next read return all that is there by now."""
        _mine(follower).refresh()

    def wait_for(self, follower: Follower, timeout_s: float) -> bool:
        """Wait until a follower may have something to return; False: the timeout has passed."""
        return _mine(follower).wait(timeout_s)

    def leave(self, follower: Follower) -> None:
        """End a follower; idempotent."""
        _mine(follower).close()

    def tail(self) -> int:
        """Return the LSN of the last entry, 0 if there was never one."""
        found: int = self._channel.ask("Describe", pb.DescribeRequest()).tail
        return found

    def first(self) -> int:
        """Return the LSN from which on the log is whole."""
        found: int = self._channel.ask("Describe", pb.DescribeRequest()).whole
        return found

    def close(self) -> None:
        """Close files and connections; idempotent."""
        for each in list(self._followers):
            each.close()
        self._channel.close()


def _mine(follower: Follower) -> RemoteFollower:
    if not isinstance(follower, RemoteFollower):
        raise InvalidRequest("a follower of another log")
    return follower
