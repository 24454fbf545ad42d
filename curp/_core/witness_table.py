"""A witness's table: what it holds, when it may accept (CURP §3.2.2, §4.2; DESIGN §7: 2)."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from _rifl_ground.numbers import check_counts
from rifl.core._shared.invariant import invariant

# Client id, and seq or key.
Identity: TypeAlias = tuple[int, int | bytes]


class WitnessMode(enum.Enum):
    """Whether a witness takes records."""

    # It just started, or restarted: it may have forgotten what it accepted.
    UNLISTED = "unlisted"
    NORMAL = "normal"
    FROZEN = "frozen"


class WitnessVerdict(enum.IntEnum):
    """What a witness says to a request, by the numbers of ``curp.v1.RecordReply``."""

    ACCEPTED = 1
    CONFLICT = 2
    FULL = 3
    OTHER_CONFIGURATION = 4
    FROZEN = 5
    TOO_LARGE = 6
    OTHER_GROUP = 7


_LOG_DIGITS = 16
_REFUSALS = tuple(verdict for verdict in WitnessVerdict if verdict is not WitnessVerdict.ACCEPTED)


def group_of_log(name: str, log: int) -> str:
    """Return what witnesses know a group by: its name, and its log's id."""
    return f"{name}@{log:0{_LOG_DIGITS}x}"


def log_of_group(group: str) -> int:
    """Return the id in what ``group_of_log`` made, 0 for any other text."""
    _, separator, digits = group.rpartition("@")
    try:
        return int(digits, 16) if separator and len(digits) == _LOG_DIGITS else 0
    except ValueError:
        return 0


def judge_serving(
    group: str, configuration: int, mode: WitnessMode | None, *, held: tuple[str, int]
) -> WitnessVerdict:
    """Judge a request of that group and number, at a witness in that mode.

    ``held``: the group and the number that the witness serves, or remembers.
    """
    if held[0] != group:
        return WitnessVerdict.OTHER_GROUP
    if configuration != held[1] or mode is WitnessMode.UNLISTED:
        return WitnessVerdict.OTHER_CONFIGURATION
    if mode is WitnessMode.FROZEN:
        return WitnessVerdict.FROZEN
    return WitnessVerdict.ACCEPTED


@dataclass(frozen=True, kw_only=True, slots=True)
class WitnessLimits:
    """Bounds on what a witness holds.

    ``slots``: conflict keys, one for a call without keys. ``max_request_bytes``: of
    one record; ``max_bytes``: of all. ``stuck_after_rounds``: collections that a call
    outlives before it is reported; ``max_reported``: calls in one report.
    """

    slots: int = 4096
    max_request_bytes: int = 64 << 10
    max_bytes: int = 64 << 20
    stuck_after_rounds: int = 3
    max_reported: int = 64

    def __post_init__(self) -> None:
        check_counts(
            self, 1, "slots", "max_request_bytes", "max_bytes", "stuck_after_rounds", "max_reported"
        )
        if self.max_bytes < self.max_request_bytes:
            raise ValueError("max_bytes is at least one request (max_request_bytes)")


class _Held:
    __slots__ = ("body", "fingerprint", "identity", "keys", "since", "size")

    def __init__(
        self,
        identity: Identity,
        keys: frozenset[int],
        fingerprint: bytes,
        body: Any,
        size: int,
        since: int,
    ) -> None:
        self.identity = identity
        self.keys = keys
        self.fingerprint = fingerprint
        self.body = body
        self.size = size
        # The round of collection it was stored in, or last reported in.
        self.since = since


class WitnessTable:
    """The calls that a group's leader may have answered and not yet logged.

    Invariants (numbers of DESIGN §7):

    - 2: a call is accepted only in normal mode, under the configuration in force,
      if it shares no conflict key with a held one (one without keys shares with all)
      and there is room. The same call again is accepted. So all held calls commute,
      and may be run again in any order.
    - 2, 5: from ``freeze`` on nothing is ever accepted under that number or a lower one,
      and the held calls stay readable, under that number, until the next ``start``. Under
      any other number there is no answer: one that a witness did not hold calls under may
      be one that it served in an earlier life, and forgot.
    - 2: a table made with the past's ``highest`` is unlisted: it takes no record and
      gives no calls until started under a higher number.
    - 11: numbers in force only grow; a record under any other is refused.
    - 12: a held call goes only when the leader says that it is synced.

    The keys are an index without sets or ways: CURP's four-way sets refuse what does not
    conflict if a set is full, which a table in memory with pointers need not.

    A call's ``body`` is whatever the shell keeps of it. No I/O, no clock; not
    thread-safe. Who asks ``may_start`` or ``may_freeze`` and is told ACCEPTED makes the
    number durable, if it keeps any, and then calls ``start`` or ``freeze``.
    """

    def __init__(
        self, limits: WitnessLimits | None = None, *, highest: int = 0, group: str = ""
    ) -> None:
        self.limits = limits or WitnessLimits()
        self.mode = WitnessMode.UNLISTED
        # In force or frozen, and what the calls are held under; in an unlisted table the
        # one that is remembered; 0: none ever.
        self.configuration = highest
        # As ``group_of_log`` has it.
        self.group = group
        self._log = log_of_group(group)
        self.accepted = 0
        self.refusals: dict[WitnessVerdict, int] = dict.fromkeys(_REFUSALS, 0)
        self._calls: dict[Identity, _Held] = {}
        self._keys: set[int] = set()
        # Held calls without keys: one at most.
        self._keyless = 0
        self._bytes = 0
        self._round = 0

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def refused(self) -> int:
        """How many records were refused."""
        return sum(self.refusals.values())

    # Records.

    def record(
        self,
        configuration: int,
        identity: Identity,
        keys: frozenset[int],
        fingerprint: bytes,
        body: Any,
        size: int,
        log: int,
    ) -> WitnessVerdict:
        """Decide about a call and, if ACCEPTED, hold it; ``size`` is its bytes.

        ``fingerprint`` tells one request from another under the same identity. ``log``: the
        id of the group's log as the caller knows it.
        """
        if self.group and log != self._log:
            verdict = WitnessVerdict.OTHER_GROUP
        else:
            verdict = self._judge(configuration, identity, keys, fingerprint, size)
        if verdict is not WitnessVerdict.ACCEPTED:
            self.refusals[verdict] += 1
            return verdict
        self.accepted += 1
        if identity not in self._calls:
            self._calls[identity] = _Held(identity, keys, fingerprint, body, size, self._round)
            self._keys |= keys
            self._keyless += not keys
            self._bytes += size
        return verdict

    def _judge(
        self,
        configuration: int,
        identity: Identity,
        keys: frozenset[int],
        fingerprint: bytes,
        size: int,
    ) -> WitnessVerdict:
        if configuration != self.configuration or self.mode is WitnessMode.UNLISTED:
            return WitnessVerdict.OTHER_CONFIGURATION
        if self.mode is WitnessMode.FROZEN:
            return WitnessVerdict.FROZEN
        if size > self.limits.max_request_bytes:
            return WitnessVerdict.TOO_LARGE
        held = self._calls.get(identity)
        if held is not None:
            same = held.fingerprint == fingerprint and held.keys == keys
            return WitnessVerdict.ACCEPTED if same else WitnessVerdict.CONFLICT
        if self._keyless or (not keys and self._calls) or not self._keys.isdisjoint(keys):
            return WitnessVerdict.CONFLICT
        limits = self.limits
        slots = len(self._keys) + max(len(keys), 1)
        if slots > limits.slots or self._bytes + size > limits.max_bytes:
            return WitnessVerdict.FULL
        return WitnessVerdict.ACCEPTED

    # Collection.

    def collect(
        self, group: str, configuration: int, synced: Iterable[Identity]
    ) -> tuple[WitnessVerdict, list[Any]]:
        """Drop the calls that are synced; return the bodies of those that are stuck.

        A call is stuck when it outlived ``stuck_after_rounds`` collections: its
        record came after its collection, or its caller never reached the leader. It
        is held until the leader has run and collected it, and reported again after as
        many rounds more.
        """
        verdict = self._in_force(group, configuration)
        if verdict is not WitnessVerdict.ACCEPTED:
            return verdict, []
        for identity in synced:
            held = self._calls.pop(identity, None)
            if held is not None:
                self._keys -= held.keys
                self._keyless -= not held.keys
                self._bytes -= held.size
        self._round += 1
        return verdict, [held.body for held in list(self._stuck())]

    def _stuck(self) -> Iterator[_Held]:
        # Calls are kept by age, those reported being young again.
        since = self._round - self.limits.stuck_after_rounds
        size = 0
        found: list[_Held] = []
        for held in self._calls.values():
            size += held.size
            full = len(found) == self.limits.max_reported or size > self.limits.max_bytes // 64
            if held.since > since or (found and full):
                break
            found.append(held)
        for held in found:
            held.since = self._round
            self._calls[held.identity] = self._calls.pop(held.identity)
            yield held

    # Changes of leader.

    def may_freeze(self, group: str, configuration: int) -> WitnessVerdict:
        """Judge a freeze: ACCEPTED only under the number that the calls are held under.

        Also when frozen under it already. An unlisted table may have forgotten records; so
        may one that was started under another number, in a life before that.
        """
        if self.group != group:
            return WitnessVerdict.OTHER_GROUP
        if self.mode is WitnessMode.UNLISTED or configuration != self.configuration:
            return WitnessVerdict.OTHER_CONFIGURATION
        return WitnessVerdict.ACCEPTED

    def freeze(self, group: str, configuration: int) -> list[Any]:
        """Accept nothing under this number from now on; return the held calls' bodies."""
        verdict = self.may_freeze(group, configuration)
        invariant(verdict is WitnessVerdict.ACCEPTED, "a freeze is judged before it is made")
        self.mode = WitnessMode.FROZEN
        return [held.body for held in self._calls.values()]

    def may_start(self, group: str, configuration: int, *, refresh: bool = False) -> WitnessVerdict:
        """Judge a start: under a number never in force nor frozen here, or a refresh.

        A refresh changes nothing in the table; it is accepted under the number in force.
        """
        if self.group and self.group != group:
            return WitnessVerdict.OTHER_GROUP
        if refresh:
            return self._in_force(group, configuration)
        if configuration == self.configuration and self.mode is WitnessMode.FROZEN:
            return WitnessVerdict.FROZEN
        if configuration == self.configuration and self.mode is WitnessMode.NORMAL:
            # Asked again for want of a reply.
            return WitnessVerdict.ACCEPTED
        if configuration <= self.configuration:
            return WitnessVerdict.OTHER_CONFIGURATION
        return WitnessVerdict.ACCEPTED

    def start(self, group: str, configuration: int) -> None:
        """Hold nothing, and accept records under this number; again: no change."""
        verdict = self.may_start(group, configuration)
        invariant(verdict is WitnessVerdict.ACCEPTED, "a start is judged before it is made")
        if configuration > self.configuration:
            self._begin(configuration)
            self.group = group
            self._log = log_of_group(group)
            self.mode = WitnessMode.NORMAL

    def _in_force(self, group: str, configuration: int) -> WitnessVerdict:
        held = self.group, self.configuration
        return judge_serving(group, configuration, self.mode, held=held)

    def _begin(self, configuration: int) -> None:
        invariant(configuration > self.configuration, "configuration numbers only grow")
        self.configuration = configuration
        self._calls.clear()
        self._keys.clear()
        self._keyless = self._bytes = self._round = 0
