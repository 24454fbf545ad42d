"""The list of a group's replicas, which they keep in its log engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from curp.log._commits import GroupLog
from curp.log._errors import ConditionFailed, LeadershipOver, LogError
from curp.log._values import MetadataCondition

_KEY = "curp-replicas"
_LOOK_S = 1.0
# For an engine that hangs: then the address stays listed.
_LEAVE_S = 1.0
_TRIES = 10


def read_replicas(engine: GroupLog) -> tuple[str, ...]:
    """Return the addresses that are listed, sorted. Raises ``LogError``."""
    return _addresses(engine.metadata(_KEY))


def change_replicas(engine: GroupLog, change: Callable[[set[str]], Iterable[str]]) -> None:
    """Put in force what ``change`` makes of the addresses.

    Raises ``LogError``; ``ConditionFailed`` before the first leader, and while the log is copied.
    """
    for _ in range(_TRIES):
        before = engine.metadata(_KEY)
        listed = _addresses(before)
        changed = tuple(sorted(change(set(listed))))
        if changed == listed:
            return
        leadership = engine.leadership()
        if leadership is None or not leadership.address:
            # A copy of the log compares what it wrote with what is here.
            raise ConditionFailed("no replica has the number that is current: nothing was changed")
        try:
            # Not the leader's own: under whatever number there is.
            engine.put_metadata(
                {_KEY: "\n".join(changed).encode() or None},
                configuration=leadership.configuration,
                condition=MetadataCondition(_KEY, before),
            )
        except (ConditionFailed, LeadershipOver):
            continue
        return
    raise ConditionFailed("the list of replicas changes all the time")


class ReplicaList:
    """Keeps one replica's address listed while it runs, and reads the others' every second.

    ``close`` removes the address. After a crash it stays, so that operators see who is missing,
    until the replica is closed or ``curp forget`` removes it.
    """

    def __init__(self, engine: GroupLog, address: str) -> None:
        self._engine = engine
        self._address = address
        # As they were read last.
        self.addresses: tuple[str, ...] = ()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="curp-replicas", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def close(self) -> None:
        """Remove the address, unless the engine takes longer than a second. Idempotent."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(_LEAVE_S)

    def _run(self) -> None:
        while True:
            self._do(self._look)
            if self._closing.wait(_LOOK_S):
                break
        self._do(lambda: change_replicas(self._engine, lambda found: found - {self._address}))

    def _look(self) -> None:
        self.addresses = read_replicas(self._engine)
        if self._address not in self.addresses:
            change_replicas(self._engine, lambda found: found | {self._address})
            self.addresses = read_replicas(self._engine)

    def _do(self, what: Callable[[], None]) -> None:
        try:
            what()
        except LogError:
            # The next look tries again.
            return


def _addresses(data: bytes | None) -> tuple[str, ...]:
    return tuple((data or b"").decode().split())
