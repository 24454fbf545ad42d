"""A log that is elsewhere: the server that has it carries rules out, whole."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar

from sharedlog._core.calling import CalledRule
from sharedlog._core.commit import Commit
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.following import Follower, Start
from sharedlog._core.steps import Lsns, Rows, Rule
from sharedlog._engines.engine import Engine, Limits

_T = TypeVar("_T")


class Elsewhere(ABC):
    """An ``Engine`` without steps. Methods block; any thread."""

    @property
    @abstractmethod
    def durability(self) -> str:
        """What the store promises of an append that returned, in a sentence."""

    @property
    @abstractmethod
    def limits(self) -> Limits:
        """The limits of one commit."""

    @abstractmethod
    def ask(self, call: CalledRule[_T]) -> _T:
        """Have the server run a rule, and return its result, or raise its error."""

    @abstractmethod
    def steps(self, player: str) -> Engine:
        """Return an engine whose steps the server carries out, with this player's rights.

        ``""``: with the rights of an operator of all players.
        """

    @abstractmethod
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

    @abstractmethod
    def refresh(self, follower: Follower) -> None:
        """Have the follower's next read return what is there by now."""

    @abstractmethod
    def wait_for(self, follower: Follower, timeout_s: float) -> bool:
        """Wait until a follower may have something to return; False: the timeout has passed."""

    @abstractmethod
    def leave(self, follower: Follower) -> None:
        """End a follower; idempotent."""

    @abstractmethod
    def tail(self) -> int:
        """Return the LSN of the last entry, 0 if there was never one."""

    @abstractmethod
    def first(self) -> int:
        """Return the LSN of the oldest row that is there; tail + 1 if there is none."""

    @abstractmethod
    def close(self) -> None:
        """Close files and connections; idempotent."""

    def carry_out(self, rule: Rule[_T]) -> _T:
        """Have a rule carried out; one without a call has no steps."""
        found: _T
        if isinstance(rule, CalledRule):
            found = self.ask(rule)
            return found
        try:
            rule.send(None)
        except StopIteration as stop:
            found = stop.value
            return found
        raise _not_served()

    def commit(self, commit: Commit) -> Lsns:
        """Raise ``InvalidRequest``: it takes no steps over gRPC."""
        del commit
        raise _not_served()

    def get(self, keys: tuple[str, ...]) -> dict[str, bytes | None]:
        """Raise ``InvalidRequest``: it takes no steps over gRPC."""
        del keys
        raise _not_served()

    def scan(self, prefix: str) -> dict[str, bytes]:
        """Raise ``InvalidRequest``: it takes no steps over gRPC."""
        del prefix
        raise _not_served()

    def damaged(self) -> list[str]:
        """Raise ``InvalidRequest``: it takes no steps over gRPC."""
        raise _not_served()

    def remaining(self, key: str) -> float:
        """Raise ``InvalidRequest``: it takes no steps over gRPC."""
        del key
        raise _not_served()

    def read(self, after: int, limit: int, tag: str | None = None) -> Rows:
        """Raise ``InvalidRequest``: it takes no steps over gRPC."""
        del after, limit, tag
        raise _not_served()

    def wait(self, after: int, timeout_s: float) -> int:
        """Raise ``InvalidRequest``: it takes no steps over gRPC."""
        del after, timeout_s
        raise _not_served()

    def remove(self, through: int) -> None:
        """Raise ``InvalidRequest``: it takes no steps over gRPC."""
        del through
        raise _not_served()


def refuse_served(engine: object) -> None:
    """Raise ``InvalidRequest`` for a log that is served, of what is done where it is opened."""
    if isinstance(engine, Elsewhere):
        raise _not_served()


def _not_served() -> InvalidRequest:
    return InvalidRequest("this is not served over gRPC: do it where the log is opened itself")
