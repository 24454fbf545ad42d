"""Poison calls, whose handlers kill the process: counted and set aside (DESIGN §7: 12)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from rifl.core._serving.answer import refusal_record
from rifl.core._shared.call import Call
from rifl.core._shared.errors import OutcomeUnknown
from rifl.core._shared.identity import RpcId
from rifl.core._shared.record import CompletionRecord

# How a call came to be run: from a witness, by a recovery; sent again by its client.
HELD = "held"
RETRIED = "retried"
# From the log, by a replica that follows.
LOGGED = "logged"

# By default a call that so many processes died of does not run again.
POISON_DEATHS = 3

# Cases with deaths, and mere suspects, that are kept; a metadata value is bounded.
_MOST_CASES = 64
_MOST_SUSPECTS = 512
# Deaths of a case whose numbers are kept, and numbers that were outlived: of these only the
# newest that has notes matters.
_MOST_NUMBERS = 16


class ProcessDeath(NamedTuple):
    """A process is taken for dead: the number under which it noted the call, and when."""

    configuration: int
    time_us: int


class Case(NamedTuple):
    """One call that is about to run, or that ran when a process died.

    ``deaths``: of processes that ran this call and no other one that was noted; 0 for a
    suspect, which ran among others. ``how``: ``HELD``, ``RETRIED`` or ``LOGGED``, at
    ``lsn``. ``since_us``, ``last_us``: the first death and the last, microseconds since the
    Unix epoch. ``who``, ``why``: the operator's who had it set aside, if one did.
    ``closed``: it was set aside. ``died``: those of the deaths whose number is known.
    ``awaited``: the group waits for an operator's decision about it.
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
    died: tuple[ProcessDeath, ...] = ()
    awaited: bool = False

    def killed(self, death: ProcessDeath, at_least: int) -> Case:
        """Count a death, once."""
        if any(each.configuration == death.configuration for each in self.died):
            # The step that counted it was asked for again, after a lost reply.
            return self
        return self._replace(
            deaths=max(self.deaths + 1, at_least),
            since_us=self.since_us or death.time_us,
            last_us=death.time_us,
            died=(*self.died, death)[-_MOST_NUMBERS:] if death.configuration else self.died,
        )

    def spared(self, numbers: Collection[int]) -> Case:
        """Take the deaths back that were noted under these numbers."""
        left = tuple(death for death in self.died if death.configuration not in numbers)
        deaths = self.deaths - (len(self.died) - len(left))
        if deaths == self.deaths or self.closed:
            return self
        times = [death.time_us for death in left]
        if deaths > len(left):
            # The other deaths have no number: they were counted long ago, or in replay.
            times.insert(0, self.since_us)
        since_us, last_us = (times[0], times[-1]) if times else (0, 0)
        return self._replace(
            deaths=deaths, since_us=since_us, last_us=last_us, died=left, awaited=False
        )

    def condemned(self, bound: int) -> bool:
        """Whether it is not to be run again."""
        return self.deaths >= bound or bool(self.who)


def case_of(call: Call, how: str) -> Case:
    """Return what is put down of a call before it runs."""
    return Case(call.rpc_id, call.method, how)


class Ledger(NamedTuple):
    """What the engine keeps of such calls, for all leaders to come; never changed in place.

    ``outlived``: numbers whose leader stepped down and lived on, so that the calls it left
    noted killed no process. It may say so before or after the death is counted.
    """

    cases: tuple[Case, ...] = ()
    outlived: tuple[int, ...] = ()

    def find(self, rpc_id: RpcId) -> Case | None:
        """Return the case of a call, None if there is none."""
        return next((case for case in self.cases if case.rpc_id == rpc_id), None)

    def died(
        self, notes: Sequence[Case], now_us: int, *, at_least: int = 1, configuration: int = 0
    ) -> Ledger:
        """Count that a process died with these noted under a number, 0 if none is known.

        A single noted call is the cause. Of several the cause is unknown: each is a suspect,
        and the next time it runs with no other call noted. ``at_least``: how many processes
        are known to have died of the single one.
        """
        if configuration in self.outlived:
            return self
        found = self
        for note in notes:
            before = self.find(note.rpc_id) or note
            if len(notes) == 1:
                before = before._replace(how=note.how, lsn=note.lsn)
                before = before.killed(ProcessDeath(configuration, now_us), at_least)
            found = found._with(before)
        return found._bounded()

    def lived(self, numbers: Collection[int]) -> Ledger:
        """Note that the leaders under these numbers are alive.

        A call stays a suspect, as it may have been before.
        """
        outlived = sorted({*self.outlived, *numbers})[-_MOST_NUMBERS:]
        return Ledger(tuple(case.spared(numbers) for case in self.cases), tuple(outlived))

    def decided(self, case: Case, who: str, why: str) -> Ledger:
        """Note an operator's decision to set a call aside."""
        return self._with(case._replace(who=who, why=why))

    def wait(self, rpc_ids: Collection[RpcId]) -> Ledger:
        """Record that the group waits for an operator's decision about calls."""
        return self._each(lambda case: case._replace(awaited=True), rpc_ids)

    def close(self, rpc_ids: Collection[RpcId]) -> Ledger:
        """Note that calls were set aside."""
        return self._each(lambda case: case._replace(closed=True), rpc_ids)

    def forget(self, rpc_ids: Collection[RpcId]) -> Ledger:
        """Drop calls that have an answer like any other."""
        left = tuple(case for case in self.cases if case.rpc_id not in rpc_ids)
        return self._replace(cases=left)

    def _each(self, change: Callable[[Case], Case], rpc_ids: Collection[RpcId]) -> Ledger:
        return self._replace(
            cases=tuple(change(case) if case.rpc_id in rpc_ids else case for case in self.cases)
        )

    def _with(self, case: Case) -> Ledger:
        others = (each for each in self.cases if each.rpc_id != case.rpc_id)
        return self._replace(cases=(*others, case))

    def _bounded(self) -> Ledger:
        # What came last is what is going on; an operator's word is not forgotten.
        cases = [case for case in self.cases if case.deaths or case.who]
        suspects = [case for case in self.cases if not (case.deaths or case.who)]
        cases.sort(key=lambda case: (bool(case.who), case.last_us))
        return self._replace(cases=(*suspects[-_MOST_SUSPECTS:], *cases[-_MOST_CASES:]))


class PoisonWatch(NamedTuple):
    """What a leadership looks out for.

    ``condemned``: calls that are not to be run again. ``careful``: its predecessor died
    with calls noted, so that noted ones run one at a time. ``wary``: it died, and so a call
    which does not say whether it is sent again is noted, too.
    """

    condemned: dict[RpcId, Case] = {}  # noqa: RUF012 - never changed
    suspects: frozenset[RpcId] = frozenset()
    careful: bool = False
    wary: bool = False


def watch_for(ledger: Ledger, bound: int, *, careful: bool, wary: bool) -> PoisonWatch:
    """Return what a leadership with that ledger looks out for."""
    condemned = {case.rpc_id: case for case in ledger.cases if case.condemned(bound)}
    suspects = frozenset(case.rpc_id for case in ledger.cases if not case.lsn)
    suspects = suspects.difference(condemned)
    return PoisonWatch(condemned, suspects, careful, wary)


def unknown_record(case: Case) -> CompletionRecord:
    """Return the final answer of a call that is set aside."""
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
