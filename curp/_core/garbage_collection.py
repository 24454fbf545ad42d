"""Garbage collection on witnesses: who is told what is synced, and when (CURP §3.5, DESIGN §7)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple

from curp._core.state import Witnessed
from curp._core.steps import ROUNDING_S, ReportFailure, Rest
from curp._core.witness_table import WitnessVerdict
from curp._core.witnessed_call import WitnessedCall

# Some more come soon: to tell each by itself would make every call look stuck, which a
# witness finds by counting how often it was told something else.
_GATHER_S = 0.02
_RETRY_S = 0.2
_MAX_TOLD = 1000


class Collectable(NamedTuple):
    """A request that is in the log: its identity and its conflict keys."""

    client_id: int
    seq: int | None
    key: bytes | None
    keys: frozenset[int]


class Untold:
    """The requests that each witness is still to be told of.

    Invariant 12 (DESIGN §7): nothing is in it that is not in the log, and nothing
    enters it by a timer. A witness that is not told in time keeps its requests: it
    reports them as stuck, and they come in anew. So the queues are bounded, and drop
    the oldest. Not thread-safe.
    """

    def __init__(self, witnesses: Iterable[str], *, max_queued: int = 20_000) -> None:
        self._queues: dict[str, deque[Collectable]] = {
            address: deque(maxlen=max_queued) for address in witnesses
        }

    @property
    def witnesses(self) -> list[str]:
        """Whom there is to tell."""
        return list(self._queues)

    def synced(self, collectable: Collectable) -> None:
        """Take a request that is in the log."""
        for queue in self._queues.values():
            queue.append(collectable)

    def waiting(self, witness: str) -> int:
        """Return how many requests a witness must still be told of."""
        return len(self._queues.get(witness, ()))

    def take(self, witness: str, limit: int) -> list[Collectable]:
        """Take what a witness is told next."""
        queue = self._queues.get(witness)
        if queue is None:
            return []
        return [queue.popleft() for _ in range(min(limit, len(queue)))]

    def not_told(self, witness: str, taken: Sequence[Collectable]) -> None:
        """Put back what could not be told."""
        queue = self._queues.get(witness)
        if queue is not None:
            room = (queue.maxlen or 0) - len(queue)
            queue.extendleft(reversed(taken[max(0, len(taken) - room) :]))


class TellWitness(NamedTuple):
    """Tell a witness, under that number, what it may drop; then report ``told``."""

    witness: str
    configuration: int
    requests: tuple[Collectable, ...]


class Relist(NamedTuple):
    """A witness of that number forgot what it held: a new number is needed."""

    configuration: int


class LookUp(NamedTuple):
    """Send back what the state knows of a request that stays on a witness."""

    witnessed: WitnessedCall


class RunAgain(NamedTuple):
    """Have a request of that number's witnesses run, which was never heard of here."""

    witnessed: WitnessedCall
    configuration: int


class GarbageCollection:
    """Decides whom to tell, and when, as ``collect`` asks it.

    Invariants:

    1. (Invariant 12 of DESIGN §7) What is told was synced before; and nothing is told by
       a timer alone: time only lets more come together, or a witness answer again.
    2. A witness is told one thing at a time: 20 ms after there is something, and 200 ms
       after it did not answer. The others do not wait for it.
    3. What is heard under an earlier number changes nothing.

    Not thread-safe. No clock: ``now`` is seconds of the caller's.
    """

    def __init__(self) -> None:
        self.configuration = 0
        # Whether there is nothing left to do.
        self.over = False
        self._collection = Untold(())
        # When a witness is told next, of those for whom there is something.
        self._due: dict[str, float] = {}
        self._being_told: set[str] = set()
        self._forgot = False

    def serve(self, configuration: int, witnesses: Iterable[str]) -> None:
        """Tell these from now on, which begin with nothing."""
        self.configuration = configuration
        self._collection = Untold(witnesses)
        self._due = {}
        self._being_told = set()
        self._forgot = False

    def synced(self, collectable: Iterable[Collectable], now: float) -> bool:
        """Take requests that are in the log; whether someone is due now who was not before."""
        for each in collectable:
            self._collection.synced(each)
        planned = len(self._due)
        for witness in self._collection.witnesses:
            self._plan(witness, now + _GATHER_S)
        return len(self._due) > planned

    def next(self, now: float) -> TellWitness | Relist | Rest:
        """Return the next step."""
        if self._forgot:
            self._forgot = False
            return Relist(self.configuration)
        due_at: float | None = None
        for witness, at in self._due.items():
            if witness in self._being_told:
                continue
            if at <= now + ROUNDING_S:
                taken = self._collection.take(witness, _MAX_TOLD)
                del self._due[witness]
                self._being_told.add(witness)
                return TellWitness(witness, self.configuration, tuple(taken))
            due_at = at if due_at is None else min(due_at, at)
        return Rest(None if due_at is None else due_at - now)

    def told(self, tell: TellWitness, verdict: WitnessVerdict | None, now: float) -> None:
        """Take what a witness answered; None: nothing."""
        witness = tell.witness
        if tell.configuration != self.configuration:
            return
        self._being_told.discard(witness)
        if verdict is None:
            self._collection.not_told(witness, tell.requests)
            self._due[witness] = now + _RETRY_S
            return
        if verdict is not WitnessVerdict.ACCEPTED:
            self._forgot = True
        self._plan(witness, now + _GATHER_S)

    def stuck(self, witnessed: WitnessedCall, found: Witnessed, now: float) -> bool:
        """Take a request that stays on a witness; return whether it must run again.

        ``found``: what the state knows of it. A running request is waited for. The witness
        drops one that is known or never will be: its entry, or its client's end, is in the log.
        """
        if found is Witnessed.FRESH:
            return True
        if found is not Witnessed.RUNNING:
            call = witnessed.call
            self.synced([Collectable(call.client_id, call.seq, call.key, witnessed.keys)], now)
        return False

    def _plan(self, witness: str, at: float) -> None:
        if self._collection.waiting(witness):
            self._due.setdefault(witness, at)


def collect(
    collecting: GarbageCollection, clock: Callable[[], float]
) -> Generator[TellWitness | Relist | LookUp | RunAgain | ReportFailure | Rest, Any, None]:
    """Tell one witness after the other, until it is over.

    Several of these go on side by side, one at a time between two steps, so that a witness
    which hangs holds up no other. Nothing is lost if one ends anywhere: what a witness was
    not told, it reports as stuck.
    """
    while not collecting.over:
        step = collecting.next(clock())
        if isinstance(step, Rest):
            yield step
            continue
        try:
            if isinstance(step, TellWitness):
                yield from _tell(collecting, step, clock)
            else:
                yield step
        except Exception as error:  # noqa: BLE001 - reported; the next one may work
            yield ReportFailure("collection_failed", error)


def _tell(
    collecting: GarbageCollection, tell: TellWitness, clock: Callable[[], float]
) -> Generator[Any, Any, None]:
    verdict: WitnessVerdict | None = None
    stuck: list[WitnessedCall] = []
    try:
        reply: tuple[WitnessVerdict, list[WitnessedCall]] | None = yield tell
    except Exception:
        collecting.told(tell, None, clock())
        raise
    if reply is not None:
        verdict, stuck = reply
    collecting.told(tell, verdict, clock())
    for witnessed in stuck:
        found: Witnessed = yield LookUp(witnessed)
        if collecting.stuck(witnessed, found, clock()):
            yield RunAgain(witnessed, tell.configuration)
