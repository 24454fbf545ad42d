"""A client's knowledge of its group, and when it asks again (DESIGN §7)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from _rifl_ground.log import get_logger
from _rifl_ground.owned_lock import OwnedLock
from curp._core.pending_records import QuickDuration
from curp._core.recording_choice import UNCOUNTED, BegunCall, RecordingChoice
from curp._core.silent_witnesses import SilentWitnesses
from curp.client._messages import number_field, record_fields
from curp.v1 import curp_pb2
from rifl._client.errors import reentrant
from rifl._client.settings import DEFAULT_GROUP_PATH
from rifl.core._calling.retry import RetryPolicy

_log = get_logger("curp.client")

# Between two requests for the configuration, if the first one told nothing new.
_ASK_EVERY_S = 0.1
# How long a call waits for witnesses once the leader has answered: so many times as long
# as the leader took, within these bounds.
_PATIENCE = 3.0
_LEAST_PATIENCE_S = 0.05
_MOST_PATIENCE_S = 0.5
_MAX_WITNESSES = 16

# For applications that gave no policy: a leader that hangs is left, and a new one is not
# missed for longer than it takes to find it. A slow handler costs an attempt a second,
# each of which waits for the first one's answer. As many calls as hang with a leader
# go on at once at the next one.
GROUP_RETRY = RetryPolicy(max_backoff_s=0.2, attempt_timeout_s=1.0, budget_tokens=100.0)


class KnownConfiguration(NamedTuple):
    """One configuration: its number, its witnesses, and the methods recorded on them.

    ``by_callable``: those of the methods whose keys the caller has to find.
    ``number_field`` and ``record_fields``: see ``curp.client._messages``.
    """

    number: int
    witnesses: tuple[str, ...]
    recorded: frozenset[str]
    by_callable: frozenset[str] = frozenset()
    number_field: bytes = b""
    record_fields: bytes = b""


class GroupStatistics(NamedTuple):
    """How many answers were final, since the channel was made, and how.

    ``fast``: in one round trip, by the witnesses' word; ``synced``: marked so by the
    leader, or sent to it alone while a witness was silent, in one round trip and an append;
    ``asked``: after a sync request; ``skipped``: as ``synced``, sent to the leader alone since
    that took no longer (``group_path``).
    """

    fast: int
    synced: int
    asked: int
    skipped: int = 0


class GroupKnowledge:
    """The newest view, and what was learnt of witnesses. Any thread; never blocks.

    Invariant 11 (DESIGN §7): a view is replaced only by one with a higher number, of
    the same group; what is recorded is sent under one view's number to all its
    witnesses, and to no others.
    """

    def __init__(
        self, group_path: str = DEFAULT_GROUP_PATH, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``group_path``: see ``rifl.connect``; ``clock``: for attempts, too."""
        self.clock = clock
        self.view: KnownConfiguration | None = None
        # How long the leader's quick answers take.
        self.leader = QuickDuration()
        self._adaptive = group_path == "adaptive"
        self._fast = group_path == "fast"
        # One for each method: how often calls conflict, and what they cost, differ.
        self._choices: dict[str, RecordingChoice] = {}
        self._group = ""
        self._log = 0
        self.lock = OwnedLock(reentrant)
        self._asking = False
        self._ask_at = 0.0
        self._silent = SilentWitnesses()
        self._counts = [0, 0, 0, 0]

    def may_ask(self, now: float) -> bool:
        """Whether to ask for the configuration now; if so, ``asked`` is to follow."""
        with self.lock:
            if self._asking or now < self._ask_at:
                return False
            self._asking = True
            self._ask_at = now + _ASK_EVERY_S
            return True

    def asked(self, reply: curp_pb2.GroupConfiguration | None) -> None:
        """Take the configuration, None if there was no answer."""
        with self.lock:
            self._asking = False
            if reply is None or not reply.configuration:
                return
            if self._group and (reply.group, reply.log) != (self._group, self._log):
                _log.error("other_group_answered", expected=self._group, found=reply.group)
                self.view = None
                return
            self._group, self._log = reply.group, reply.log
            if self.view is not None and reply.configuration <= self.view.number:
                return
            witnesses = tuple(dict.fromkeys(reply.witnesses))
            if len(witnesses) > _MAX_WITNESSES:
                witnesses = ()
            recorded = frozenset(
                method.method
                for method in reply.methods
                if not method.read_only and not method.synced
            )
            # That was worth it: the next change may be asked for at once.
            self._ask_at = 0.0
            by_callable = frozenset(method.method for method in reply.methods if method.by_callable)
            number = reply.configuration
            self.view = KnownConfiguration(
                number,
                witnesses,
                recorded,
                by_callable,
                number_field(number),
                record_fields(number, self._log),
            )
            self._silent = SilentWitnesses()
        _log.info("configuration", number=reply.configuration, witnesses=witnesses)

    @property
    def number(self) -> int:
        """The newest configuration's, 0 while none is known."""
        view = self.view
        return 0 if view is None else view.number

    def view_for(self, method: str) -> KnownConfiguration | None:
        """Return the view to record a call under; None: send it to the leader alone."""
        view = self.view
        if view is None or not view.witnesses or method not in view.recorded:
            return None
        return view

    def unlisted(self, addresses: Iterable[str]) -> list[str]:
        """Return those that are no witnesses any more; none while no view is known."""
        view = self.view
        return [] if view is None else [at for at in addresses if at not in view.witnesses]

    def patience_s(self, elapsed_s: float) -> float:
        """How long to wait for witnesses after a leader that took ``elapsed_s``."""
        return min(max(_LEAST_PATIENCE_S, _PATIENCE * elapsed_s), _MOST_PATIENCE_S)

    def may_record(self) -> bool:
        """Whether to record a call, not send it to the leader only (see ``SilentWitnesses``).

        The latter is counted as synced.
        """
        suspects = self._silent
        if not suspects or suspects.may_record(self.clock()):
            return True
        self.count(fast=False, asked=False)
        return False

    def heard(self, witness: str) -> None:
        """Note that a witness answered."""
        self._silent.heard(witness, self.clock())

    def silent(self, witness: str, since: float) -> None:
        """Note that a call which began at ``since`` waited for a witness in vain."""
        self._silent.silent(witness, since, self.clock())

    def begin(self, method: str) -> BegunCall | None:
        """Begin a call that may be recorded; ``ended`` follows. None: it is not to be."""
        if not self._adaptive:
            return UNCOUNTED if self._fast else None
        with self.lock:
            choice = self._choices.get(method)
            if choice is None:
                choice = self._choices[method] = RecordingChoice()
            return choice.begin()

    def ended(self, method: str, begun: BegunCall | None, seconds: float | None) -> None:
        """Take how long such a call took to its final answer; None: it came to none."""
        if not self._adaptive or begun is None:
            return
        with self.lock:
            choice = self._choices[method]
            if seconds is None:
                choice.failed(begun)
            else:
                choice.ended(begun, seconds)

    def count_skipped(self) -> None:
        """Count an answer to a call that was not recorded since that was no slower."""
        with self.lock:
            self._counts[3] += 1

    def count(self, *, fast: bool, asked: bool) -> None:
        """Count a final answer."""
        with self.lock:
            self._counts[0 if fast else 2 if asked else 1] += 1

    def statistics(self) -> GroupStatistics:
        """Return the counts."""
        with self.lock:
            return GroupStatistics(*self._counts)
