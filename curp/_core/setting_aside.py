"""The setting aside, by a recovery, of calls that killed who ran them (DESIGN §7: 12)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from curp._core.entries import Operation, SetAside
from curp._core.poison import (
    HELD,
    Case,
    Ledger,
    PoisonWatch,
    case_of,
    noted_together,
    unknown_record,
    watch_for,
)
from curp._core.poison_notes import NoteDown
from curp._core.state import GroupState, Witnessed
from curp._core.witnessed_call import WitnessedCall
from rifl.core._serving.namespace import is_namespace
from rifl.core._shared.identity import RpcId

_MOST_TOGETHER = 256
_MOST_GIVEN_UP = 2


class ReadPoison(NamedTuple):
    """Read the ledger, and what the last leader left noted; send back a ``Left``."""


class Left(NamedTuple):
    """What was known of such calls, and which ran, or were about to, when a leader died.

    ``configuration``: the number under which these were noted, 0 if none is known.
    """

    ledger: Ledger
    notes: tuple[Case, ...]
    configuration: int = 0


class CountDeaths(NamedTuple):
    """Count a death, or a suspicion, of each, and take all notes away; the ledger then.

    ``configuration``: the number under which they were noted.
    """

    fatal: tuple[Case, ...]
    configuration: int = 0


class AwaitDecision(NamedTuple):
    """Put down that the recovery waits for an operator's decision about a call; the ledger."""

    rpc_id: RpcId


class Conclude(NamedTuple):
    """Put down which were set aside, and which have an answer like any other; the ledger."""

    closed: tuple[RpcId, ...]
    answered: tuple[RpcId, ...]


class SettingAside:
    """Notes each request of a witness before it is run again; runs none that is condemned.

    Invariants:

    1. A request runs only when the engine has its note, under the recovery's number.
    2. One for which processes died ``bound`` times is not run again. It is set aside if
       no caller can have its answer: it is not in the log, and some witness of the list,
       which is frozen, does not hold it, so that it was never accepted by all
       (invariant 1 of DESIGN §7). Otherwise only an operator's word sets it aside, and the
       recovery waits for that, or until a leader that was taken for dead says that it lives.
    """

    def __init__(
        self,
        state: GroupState,
        configuration: int,
        bound: int,
        *,
        died: bool,
        may_be_final: Callable[[RpcId], Generator[Any, Any, bool]],
        wait: Callable[[str], Any],
    ) -> None:
        """``died``: the last leader did not end its number. ``wait``: the step that waits."""
        self._state = state
        self._configuration = configuration
        self._bound = bound
        self._died = died
        self._may_be_final = may_be_final
        self._wait = wait
        self._ledger = Ledger()
        self._careful = False
        self._noted: frozenset[RpcId] = frozenset()
        self._closed: list[RpcId] = []

    def begin(self) -> Generator[Any, Any, None]:
        """Count who died of what; the log was read to its end."""
        left: Left = yield ReadPoison()
        self._ledger = left.ledger
        # What is in the log did not kill; nor did what ran when a leader ended its number, or
        # stepped down and lived on.
        died = self._died and left.configuration not in left.ledger.outlived
        fatal = tuple(note for note in left.notes if died and not self._state.logged(note.rpc_id))
        self._careful = bool(fatal)
        if left.notes:
            self._ledger = yield CountDeaths(fatal, left.configuration)

    def given_up(self) -> list[Operation]:
        """Return the entries that say which operations in the log are not replayed any more.

        One that a leader has said, which died before it noted that, is not said again.
        """
        found = [
            case
            for case in self._ledger.cases
            if case.lsn and case.who and not case.closed and case.lsn <= self._state.applied
        ]
        found = found[:_MOST_GIVEN_UP]
        self._closed += [case.rpc_id for case in found]
        return [
            Operation(
                case.rpc_id.client_id,
                case.rpc_id.seq,
                case.rpc_id.key,
                case.method,
                b"",
                unknown_record(case),
                refusal=True,
                set_aside=SetAside(case.deaths, case.who, case.why, case.lsn),
            )
            for case in found
            if case.lsn not in self._state.left_out
            and (
                case.rpc_id.client_id in self._state.clients or is_namespace(case.rpc_id.client_id)
            )
        ]

    def judge(self, witnessed: WitnessedCall) -> Generator[Any, Any, Case | None]:
        """Return the case of a request that is set aside, None for one that is to run."""
        rpc_id = witnessed.call.rpc_id
        while (case := self._condemned(rpc_id)) is not None:
            if case.who or not (yield from self._may_be_final(rpc_id)):
                self._closed.append(rpc_id)
                return case
            if not case.awaited:
                self._ledger = yield AwaitDecision(rpc_id)
                continue
            yield self._wait(
                f"an operator: {case.deaths} processes died running {rpc_id} ({case.method}), "
                "which may have been answered before; see curp poison"
            )
            left: Left = yield ReadPoison()
            self._ledger = left.ledger
        return None

    def note(self, rest: Sequence[WitnessedCall]) -> Generator[Any, Any, None]:
        """Put down that the first of these is about to run; others with it, if they may be."""
        if rest[0].call.rpc_id in self._noted:
            return
        suspects = frozenset(case.rpc_id for case in self._ledger.cases)
        fresh = (
            case_of(each.call, HELD)
            for each in rest
            if self._state.witnessed(each.call) is Witnessed.FRESH
        )
        together = noted_together(fresh, suspects, _MOST_TOGETHER)
        self._noted = frozenset(case.rpc_id for case in together)
        yield NoteDown(tuple(together), (), self._configuration)

    def end(self) -> Generator[Any, Any, PoisonWatch]:
        """Put down what came of it; what the leadership is to look out for."""
        answered = tuple(
            case.rpc_id
            for case in self._ledger.cases
            if not (case.closed or case.lsn)
            and case.rpc_id not in self._closed
            and self._state.logged(case.rpc_id)
        )
        if answered or self._closed:
            self._ledger = yield Conclude(tuple(self._closed), answered)
        return watch_for(self._ledger, self._bound, careful=self._careful, wary=self._died)

    def _condemned(self, rpc_id: RpcId) -> Case | None:
        case = self._ledger.find(rpc_id)
        return case if case is not None and case.condemned(self._bound) else None
