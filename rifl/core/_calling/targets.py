"""Targets: which of several a client asks next, following leaders and replicas (DESIGN §3)."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from rifl.core._calling.answer import AttemptAnswer
from rifl.core._calling.one_store import OneStore, Trial
from rifl.core._shared import errors
from rifl.core._shared.codes import UNREACHED_CODES, UNREACHED_HEARTBEAT_CODES
from rifl.core._shared.reasons import ELSEWHERE_REASONS

_MAX_TARGETS = 64
# Leaders that were not among the targets given; more are not followed.
MAX_FOLLOWED = 16
# For so long a target that failed is not gone back to because another one says
# that it leads: the other one may not know the latest leader.
_HINT_HOLD_S = 1.0
# gRPC's own lists of addresses, which contain commas.
_GRPC_LISTS = ("ipv4:", "ipv6:", "vsock:", "unix:", "unix-abstract:")
# What a server may name: a host and a port, and no scheme that would resolve to
# something else.
_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[\w.-]+):[0-9]{1,5}")
_PLAIN_SCHEMES = ("dns:///", "dns:", "ipv4:", "ipv6:")
_BEST_FIRST = ("READY", "CONNECTING", "IDLE", "TRANSIENT_FAILURE", "SHUTDOWN")


class Targets:
    """The rule by which calls, heartbeats and resolutions choose their target.

    All go to ``current``, but for calls while several are known to be over one store: those take
    ``one_store.turn``. An answer that says that nothing can be had there (an
    unlabelled UNAVAILABLE, DRAINING, STORE_UNAVAILABLE, NOT_LEADER; a heartbeat that
    timed out) moves ``current`` on: to the leader that was named, else to the target
    that failed longest ago, those that never did first, in the order given. It stays
    there until that one fails, too: nothing returns by itself.

    Invariants:

    1. Only an answer of the current target moves on, so that many calls failing
       at once move once; or the word of another that it leads now (``leads``). Among several
       over one store it moves to those alone.
    2. Only targets that were given are ever current, or with ``follow`` at most 16
       others that a given one named (and those named in turn).

    Says only where the next attempt goes; whether there is one is for ``judge``. Times
    are seconds of any monotonic clock. No I/O; serialised by the shell, which may read
    ``current`` and ``addresses`` at any time: they only grow.
    """

    def __init__(self, addresses: Sequence[str], *, follow: bool = False) -> None:
        if not 1 <= len(addresses) <= _MAX_TARGETS:
            raise ValueError(f"1 to {_MAX_TARGETS} targets are needed")
        plain = [_plain(address) for address in addresses]
        if len(set(plain)) < len(plain):
            raise ValueError("the same target is given twice")
        self.addresses = list(addresses)
        self.current = 0
        self.one_store = OneStore(len(addresses))
        self._plain = plain
        self._given = len(addresses)
        self._follow = follow
        self._failed_at: dict[int, float] = {}

    @property
    def several(self) -> bool:
        """Whether there is a choice, or there may be one."""
        return self._follow or self._given > 1

    @property
    def choices(self) -> int:
        """Among how many targets ``choose`` chooses."""
        return len(self._others(None))

    def choose(self, avoid: Collection[int] = (), prefer: int | None = None) -> int:
        """Return where an attempt goes: to the current target, unless it must be avoided.

        Where there are turns, to ``prefer``, else to the next one. ``avoid``: where this call's
        other attempts are, or timed out. If all must be avoided, none is.
        """
        if self.one_store.used:
            found = self.one_store.choose(avoid, prefer)
            if found is not None:
                return found
        elif self.current not in avoid:
            return self.current
        others = [index for index in self._others(None) if index not in avoid]
        return self._longest_ago(others) if others else self.current

    def answered(
        self, index: int, answer: AttemptAnswer, now: float, *, heartbeat: bool = False
    ) -> bool:
        """Take the answer of an attempt at ``index``; True if ``current`` changed.

        ``heartbeat``: it was a request of the lease server's, which no handler holds up.
        """
        if not _elsewhere(answer, heartbeat):
            return False
        if answer.reason == errors.NotLeader.reason:
            self.one_store.end()
        elif answer.reason == errors.Overloaded.reason and self.one_store.used:
            # It takes the next call, maybe: only this one's next attempt goes elsewhere.
            return False
        self._failed_at[index] = now
        self.one_store.failed(index, now)
        if index != self.current:
            return False
        leader = answer.info.get("leader") if answer.reason == errors.NotLeader.reason else None
        found = self._find(leader, now) if leader else None
        if found is None:
            found = self._next()
        self.current = found
        return found != index

    def refused(self, index: int, now: float) -> bool:
        """Leave out a target over another store; False unless several are over the lease's."""
        found = self.one_store.refused(index, now)
        if found:
            self._stay_known()
        return found

    def tried(self, index: int, trial: Trial, now: float) -> None:
        """Take the end of a trial: see ``OneStore``."""
        self.one_store.tried(index, trial, now)
        if self.one_store.several:
            self._stay_known()

    def leads(self, index: int) -> bool:
        """Take a target's own word that it leads, and takes calls; True if ``current`` changed."""
        self.one_store.end()
        self._failed_at.pop(index, None)
        moved = index != self.current
        self.current = index
        return moved

    def _find(self, leader: str, now: float) -> int | None:
        """Return the leader's index, None where it is not to be followed."""
        plain = _plain(leader)
        if plain not in self._plain:
            known = len(self._plain) - self._given
            if not self._follow or known >= MAX_FOLLOWED or not _HOST_AND_PORT.fullmatch(leader):
                return None
            # The address last: a reader in another thread looks at that list.
            self._plain.append(plain)
            self.addresses.append(leader)
        index = self._plain.index(plain)
        failed_at = self._failed_at.get(index)
        return index if failed_at is None or now - failed_at >= _HINT_HOLD_S else None

    def _stay_known(self) -> None:
        one = self.one_store
        if self.current not in one.may_take:
            self.current = self._longest_ago(list(one.used) or one.known)

    def _next(self) -> int:
        """Return where to go from the current target."""
        if self.one_store.used:
            return self.one_store.used[0]
        others = self._others(self.current)
        return self._longest_ago(others) if others else self.current

    def _others(self, index: int | None) -> list[int]:
        """Return the targets but for one: if several are over one store, those that may be."""
        one = self.one_store
        among = one.may_take if one.several else range(len(self.addresses))
        return [other for other in among if other != index]

    def _longest_ago(self, indices: list[int]) -> int:
        ahead, count = self.current, len(self.addresses)
        return min(
            indices,
            key=lambda index: (self._failed_at.get(index, float("-inf")), (index - ahead) % count),
        )


def split_targets(target: str | Sequence[str]) -> list[str]:
    """Return the targets of ``connect``'s argument: a sequence, or separated by commas.

    A string in one of gRPC's schemes that take lists or paths (``ipv4:a,b``) is one
    target. Raises ``ValueError`` for an empty one.
    """
    if not isinstance(target, str):
        parts = list(target)
    elif target.startswith(_GRPC_LISTS):
        parts = [target]
    else:
        parts = [part.strip() for part in target.split(",")]
    if not parts or not all(parts):
        raise ValueError(f"no target, or an empty one: {target!r}")
    return parts


def best_connectivity(states: Collection[str]) -> str:
    """Return the state of several channels taken as one: the best of theirs.

    READY if a call would reach a server, at the latest by its second attempt.
    """
    return min(states, key=_BEST_FIRST.index)


def _elsewhere(answer: AttemptAnswer, heartbeat: bool) -> bool:
    if answer.reason:
        return answer.reason in ELSEWHERE_REASONS
    if answer.outcome is not None or answer.permanent:
        return False
    return answer.code in (UNREACHED_HEARTBEAT_CODES if heartbeat else UNREACHED_CODES)


def _plain(address: str) -> str:
    for scheme in _PLAIN_SCHEMES:
        if address.startswith(scheme):
            return address[len(scheme) :].lower()
    return address.lower()
