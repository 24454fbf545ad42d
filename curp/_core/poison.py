"""Calls whose handlers kill the process: counted, and set aside (DESIGN §7, invariant 12)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from rifl.core._serving.serving import refusal_record
from rifl.core._shared.call import Call
from rifl.core._shared.errors import OutcomeUnknown
from rifl.core._shared.identity import RpcId
from rifl.core._shared.record import CompletionRecord

# How a call came to be run: from a witness, by a recovery; sent again by its client.
HELD = "held"
RETRIED = "retried"
# From the log, by a replica that follows.
LOGGED = "logged"

# Cases with deaths, and mere suspects, that are kept; a metadata value is bounded.
_MOST_CASES = 64
_MOST_SUSPECTS = 512


class Case(NamedTuple):
    """One call that is about to run, or that ran when a process died.

    ``deaths``: of processes that ran this call and no other one that was noted; 0 for a
    suspect, which ran among others. ``how``: ``HELD``, ``RETRIED`` or ``LOGGED``, at
    ``lsn``. ``since_us``, ``last_us``: the first death and the last, microseconds since the
    Unix epoch. ``who``, ``why``: the operator's who had it set aside, if one did.
    ``closed``: it was set aside.
    """

    rpc_id: RpcId
    method: str
    how: str
    deaths: int = 0
    since_us: int = 0
    last_us: int = 0
    who: str = ""
    why: str = ""
    closed: bool = False
    lsn: int = 0

    def condemned(self, bound: int) -> bool:
        """Whether it is not to be run again."""
        return self.deaths >= bound or bool(self.who)


def case_of(call: Call, how: str) -> Case:
    """Return what is put down of a call before it runs."""
    return Case(call.rpc_id, call.method, how)


class Ledger(NamedTuple):
    """What the engine keeps of such calls, for all leaders to come; never changed in place."""

    cases: tuple[Case, ...] = ()

    def find(self, rpc_id: RpcId) -> Case | None:
        """Return the case of a call, None if there is none."""
        return next((case for case in self.cases if case.rpc_id == rpc_id), None)

    def died(self, notes: Sequence[Case], now_us: int, *, at_least: int = 1) -> Ledger:
        """Take that a process died with these noted.

        One alone died of it. Of several nobody knows which: each is a suspect, and is run
        with nobody else noted the next time. ``at_least``: so many are known to have died of
        the one.
        """
        found = self
        for note in notes:
            before = self.find(note.rpc_id) or note
            if len(notes) == 1:
                since_us = before.since_us or now_us
                before = before._replace(
                    how=note.how,
                    lsn=note.lsn,
                    deaths=max(before.deaths + 1, at_least),
                    since_us=since_us,
                    last_us=now_us,
                )
            found = found._with(before)
        return found._bounded()

    def decided(self, case: Case, who: str, why: str) -> Ledger:
        """Take an operator's word that a call is to be set aside."""
        return self._with(case._replace(who=who, why=why))

    def close(self, rpc_ids: Collection[RpcId]) -> Ledger:
        """Take that calls were set aside."""
        return self._each(lambda case: case._replace(closed=True), rpc_ids)

    def forget(self, rpc_ids: Collection[RpcId]) -> Ledger:
        """Take that calls have an answer like any other."""
        return Ledger(tuple(case for case in self.cases if case.rpc_id not in rpc_ids))

    def _each(self, change: Callable[[Case], Case], rpc_ids: Collection[RpcId]) -> Ledger:
        return Ledger(
            tuple(change(case) if case.rpc_id in rpc_ids else case for case in self.cases)
        )

    def _with(self, case: Case) -> Ledger:
        others = (each for each in self.cases if each.rpc_id != case.rpc_id)
        return Ledger((*others, case))

    def _bounded(self) -> Ledger:
        # What came last is what is going on; an operator's word is not forgotten.
        cases = [case for case in self.cases if case.deaths or case.who]
        suspects = [case for case in self.cases if not (case.deaths or case.who)]
        cases.sort(key=lambda case: (bool(case.who), case.last_us))
        return Ledger((*suspects[-_MOST_SUSPECTS:], *cases[-_MOST_CASES:]))


class Watch(NamedTuple):
    """What a leadership looks out for.

    ``condemned``: calls that are not to be run again. ``careful``: its predecessor died
    with calls noted, so that noted ones run one at a time. ``wary``: it died, and so a call
    which does not say whether it is sent again is noted, too.
    """

    condemned: dict[RpcId, Case] = {}  # noqa: RUF012 - never changed
    suspects: frozenset[RpcId] = frozenset()
    careful: bool = False
    wary: bool = False


def watch_for(ledger: Ledger, bound: int, *, careful: bool, wary: bool) -> Watch:
    """Return what a leadership with that ledger looks out for."""
    condemned = {case.rpc_id: case for case in ledger.cases if case.condemned(bound)}
    suspects = frozenset(case.rpc_id for case in ledger.cases if not case.lsn)
    suspects = suspects.difference(condemned)
    return Watch(condemned, suspects, careful, wary)


def unknown_record(case: Case) -> CompletionRecord:
    """Return the answer of a call that is set aside, for ever."""
    by = f"by {case.who}: {case.why}" if case.who else f"{case.deaths} processes died running it"
    return refusal_record(OutcomeUnknown(f"{case.rpc_id} was set aside ({by})"))


def noted_together(cases: Iterable[Case], suspects: Collection[RpcId], most: int) -> list[Case]:
    """Return those of calls in a row that one note stands for: a suspect has its own."""
    found: list[Case] = []
    for case in cases:
        if found and (case.rpc_id in suspects or len(found) == most):
            break
        found.append(case)
        if case.rpc_id in suspects:
            break
    return found
