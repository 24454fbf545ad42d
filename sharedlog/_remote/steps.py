"""The steps of a player's rules at a log that a server has (DESIGN-LOG §15)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sharedlog._core.commit import Commit, Refused, Stamp
from sharedlog._core.entry import Row
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.steps import Lsns, Rows
from sharedlog._engines.engine import Limits
from sharedlog._remote.channel import LogChannel
from sharedlog.v1 import steps_pb2

_MOST_ROWS = 10_000
_STAMPS = {Stamp.NONE: steps_pb2.StepPut.NONE, Stamp.LAST: steps_pb2.StepPut.LAST}


class RemoteSteps:
    """An ``Engine`` as far as one player needs it: no terms, and nothing is removed. Any thread."""

    def __init__(
        self, channel: LogChannel, incarnation: str, player: str, durability: str, limits: Limits
    ) -> None:
        """``player``: whose steps these are; the server asks for its caller's right to that."""
        self._channel = channel
        self._whose = {"incarnation": incarnation, "player": player}
        self._durability = durability
        self._limits = limits

    @property
    def durability(self) -> str:
        """What the server's store promises of an append that returned."""
        return self._durability

    @property
    def limits(self) -> Limits:
        """The limits of one commit."""
        return self._limits

    def commit(self, commit: Commit) -> Lsns:
        """Commit by the server's time, or raise ``Refused`` with the values of the conditions."""
        puts = []
        for each in commit.puts:
            stamp = _STAMPS.get(each.stamp)
            if stamp is None or each.term_s is not None:
                raise InvalidRequest(f"{each.key} cannot be put so over gRPC")
            puts.append(steps_pb2.StepPut(key=each.key, value=each.value, stamp=stamp))
        reply = self._ask(
            "Commit",
            steps_pb2.CommitStep(
                **self._whose,
                conditions=[
                    steps_pb2.StepValue(key=key, value=value) for key, value in commit.conditions
                ],
                puts=puts,
                entries=[
                    steps_pb2.StepEntry(body=body, tags=tags) for body, tags in commit.entries
                ],
            ),
        )
        if reply.refused:
            raise Refused(_values(reply.found))
        return Lsns(reply.lsns.first, reply.lsns.last)

    def get(self, keys: tuple[str, ...]) -> dict[str, bytes | None]:
        """Return the values of these keys as of one moment."""
        found = _values(self._ask("Get", steps_pb2.GetStep(**self._whose, keys=keys)).values)
        return {key: found.get(key) for key in keys}

    def scan(self, prefix: str) -> dict[str, bytes]:
        """Return the keys with this prefix, and their values, as of one moment."""
        reply = self._ask("Scan", steps_pb2.ScanStep(**self._whose, prefix=prefix))
        return {each.key: each.value for each in reply.values}

    def damaged(self) -> list[str]:
        """Raise ``InvalidRequest``: keys are verified where the log is opened itself."""
        raise InvalidRequest("keys are verified where the log is opened itself")

    def remaining(self, key: str) -> float:
        """Raise ``InvalidRequest``: there are no terms over gRPC."""
        raise InvalidRequest(f"{key} has no term over gRPC")

    def read(self, after: int, limit: int, tag: str | None = None) -> Rows:
        """Return rows with LSN above ``after``, with the tag if one is given."""
        reply = self._ask(
            "Read",
            steps_pb2.ReadStep(**self._whose, after=after, limit=min(limit, _MOST_ROWS), tag=tag),
        )
        rows = [Row(each.lsn, each.body, tuple(each.tags), each.at_us) for each in reply.rows]
        return Rows(rows, reply.through)

    def tail(self) -> int:
        """Return the LSN of the last entry, 0 if there was never one."""
        return self._ends().last

    def first(self) -> int:
        """Return the LSN of the oldest row that is there; tail + 1 if there is none."""
        return self._ends().first

    def wait(self, after: int, timeout_s: float) -> int:
        """Wait until the tail is above ``after``, for about a second at most; return the tail."""
        timeout_ms = max(0, int(timeout_s * 1000))
        request = steps_pb2.WaitStep(**self._whose, after=max(0, after), timeout_ms=timeout_ms)
        found: int = self._ask("Wait", request).last
        return found

    def remove(self, through: int) -> None:
        """Raise ``InvalidRequest``: the server removes rows."""
        raise InvalidRequest(f"what is through LSN {through} is its server's to remove")

    def close(self) -> None:
        """Do nothing: the connection belongs to the log."""

    def _ends(self) -> Lsns:
        reply = self._ask("Ends", steps_pb2.EndsStep(**self._whose))
        return Lsns(reply.first, reply.last)

    def _ask(self, method: str, request: Any) -> Any:
        return self._channel.ask(f"Steps/{method}", request)


def _values(found: Iterable[steps_pb2.StepValue]) -> dict[str, bytes | None]:
    return {each.key: each.value if each.HasField("value") else None for each in found}
