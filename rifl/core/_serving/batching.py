"""A batch of calls on the server: one rule for each item, all in step (DESIGN §4).

Each item runs through the steps of ``rifl.core._serving.serving``, as a call of its own would;
here is only what they do together. Whatever several items ask of the store is asked at
once, and in this order: all claims, then what is durable before handlers run, then the
handlers, then the records. Only when nothing of its own is left to do does the batch
wait for others' calls, one after another: so two batches that hold each other's
identities cannot block each other.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Protocol

from _rifl_ground.refusals import Outcome
from rifl.core._serving.admission import Fetch, Wait, admit
from rifl.core._serving.answer import Answer, replayed
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.decision import Decision
from rifl.core._serving.later import AllLater, Later, Replies
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.records import Records, Reply, waited
from rifl.core._serving.room import HandlerPlace, enters_first
from rifl.core._serving.serving import execute
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.call import Call
from rifl.core._shared.errors import InProgress, RiflError
from rifl.core._shared.invariant import InvariantViolated
from rifl.core._shared.record import CompletionRecord

# An item's answer, or the error that refuses it.
BatchAnswer = Answer | Exception
_Moved = Iterable[tuple[int, Any]]


class BatchRecords(Records, Protocol):
    """``Records``, asked for many items at once.

    Each method does for every item, in order, what the one it is named after does for
    one, and gives ``Replies``, or a ``Later`` whose result they are. One item's error
    is its own. The order matters: of two claims of one identity the first one wins.
    """

    def claim_all(self, calls: Sequence[Call], policy: MethodPolicy) -> Replies | Later:
        """Decide about calls of one client and claim those that are new."""

    def start_all(self, attempts: Sequence[Attempt]) -> Replies | Later:
        """Make durable, in one commit, what must be durable before their handlers run."""

    def finish_all(
        self, attempts: Sequence[Attempt], records: Sequence[CompletionRecord]
    ) -> Replies | Later:
        """Make the records durable, one commit for all, then settle the attempts."""


def serve_batch(
    store: BatchRecords,
    calls: Sequence[Call],
    policy: MethodPolicy,
    *,
    run: Callable[[list[Attempt]], Later],
    fetch: Callable[[list[Call]], Later],
    gone: Callable[[], bool],
    place: HandlerPlace | None = None,
) -> Generator[Any, Any, list[BatchAnswer]]:
    """Serve calls of one client and method that came together; in their order.

    Yields, for a shell that is not cancelled, a ``Later`` or a ``Wait``. ``run`` gives
    a ``Later`` of a ``HandlerResult`` for each attempt, None for one whose handler
    was not begun: that call is new again. ``fetch`` gives one of the record of each
    call, or None. ``gone`` tells that the caller has stopped waiting. ``place``: what the
    handlers need, if they need one; it is left when they have ended.

    Equal calls share one slot: the first has its answer, the others a replay of it. The
    same identity with another payload is refused by the store, like any such call.
    """
    slots: dict[tuple[int | bytes, bytes | None], int] = {}
    slot_of = [slots.setdefault((call.identity, call.fingerprint), len(slots)) for call in calls]
    if len(slots) == len(calls):
        return (yield from _Batch(store, calls, policy, run, fetch, gone, place).serve())
    firsts = [calls[slot_of.index(slot)] for slot in range(len(slots))]
    found = yield from _Batch(store, firsts, policy, run, fetch, gone, place).serve()
    answers: list[BatchAnswer] = []
    seen: set[int] = set()
    for slot in slot_of:
        answers.append(_repeated(found[slot]) if slot in seen else found[slot])
        seen.add(slot)
    return answers


def _repeated(answer: BatchAnswer) -> BatchAnswer:
    if isinstance(answer, Answer) and answer.outcome is Outcome.EXECUTED:
        return Answer(answer.record, replayed(answer.record))
    return answer


class _Asked(Later):
    """What one item asks, to be asked for all items at once."""

    __slots__ = ("record", "subject")

    def __init__(self, subject: Any, record: Any = None) -> None:
        self.subject = subject
        self.record = record

    def wait(self) -> Any:
        raise InvariantViolated("what an item of a batch asks is asked for all of them")

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.wait()  # type: ignore[no-any-return]


class _Claim(_Asked):
    __slots__ = ()


class _Start(_Asked):
    __slots__ = ()


class _Finish(_Asked):
    __slots__ = ()


class _ItemStore:
    """The store as the items' rules see it: what can be asked together is put off."""

    def __init__(self, store: Records) -> None:
        self._store = store
        self.decides_here = store.decides_here
        self.held = store.held
        self.may_have_run = store.may_have_run
        self.adopt = store.adopt
        self.abandon = store.abandon

    def claim(self, call: Call, policy: MethodPolicy) -> _Claim:
        return _Claim(call)

    def start(self, attempt: Attempt) -> _Start:
        return _Start(attempt)

    def committed(self, attempt: Attempt) -> CompletionRecord | Later | None:
        return self._store.committed(attempt)

    def finish(self, attempt: Attempt, record: CompletionRecord) -> _Finish:
        return _Finish(attempt, record)


class _Batch:
    """The items' rules, and what each of them waits for."""

    def __init__(
        self,
        store: BatchRecords,
        calls: Sequence[Call],
        policy: MethodPolicy,
        run: Callable[[list[Attempt]], Later],
        fetch: Callable[[list[Call]], Later],
        gone: Callable[[], bool],
        place: HandlerPlace | None,
    ) -> None:
        self._place = place
        self._store = store
        self._policy = policy
        self._run = run
        self._fetch = fetch
        self._gone = gone
        self._calls = calls
        self._rules: list[Any] = []
        self._answers: list[Any] = [None] * len(calls)
        self._asked: dict[type, list[tuple[int, Any]]] = {kind: [] for kind, _ in self._asking}
        # Once one wait took too long there is no time left for others.
        self._late = False

    def serve(self) -> Generator[Any, Any, list[BatchAnswer]]:
        """Carry all items to their ends."""
        moved: _Moved = yield from self._begin()
        while True:
            self._advance(moved)
            for kind, ask in self._asking:
                if self._asked[kind]:
                    moved = yield from ask(self)
                    break
            else:
                return self._answers

    def _begin(self) -> Generator[Any, Any, _Moved]:
        """Claim all calls, start those that are new, and make each one's rule."""
        calls, policy, items_store = self._calls, self._policy, _ItemStore(self._store)
        place = self._place
        if place is not None and enters_first(self._store, calls[0]):
            yield from waited(place.enter())
        decisions = yield from _replies(len(calls), self._store.claim_all, calls, policy)
        won = _won(decisions)
        if won and place is not None and not place.held:
            try:
                yield from waited(place.enter())
            except RiflError as refusal:
                decisions = [_refused_if_new(each, refusal) for each in decisions]
                yield AllLater([self._store.abandon(attempt) for attempt in won])
                won = []
        started: dict[Any, Reply] = {}
        if won:
            replies = yield from _replies(len(won), self._store.start_all, won)
            started = dict(zip(won, replies, strict=True))
        for call, decision in zip(calls, decisions, strict=True):
            if isinstance(decision, Exception):
                self._rules.append(_refused(decision))
            elif decision.verdict is Verdict.NEW:
                self._rules.append(
                    execute(items_store, decision.attempt, started[decision.attempt])
                )
            else:
                self._rules.append(_serve_rest(items_store, call, policy, decision))
        return ((at, None) for at in range(len(calls)))

    def _advance(self, moved: _Moved) -> None:
        rules, asked = self._rules, self._asked
        for at, value in moved:
            rule = rules[at]
            try:
                step = rule.throw(value) if isinstance(value, Exception) else rule.send(value)
            except StopIteration as stop:
                self._answers[at] = stop.value
            except Exception as error:  # noqa: BLE001 - the item's answer; the others go on
                self._answers[at] = error
            else:
                waiting = asked.get(type(step))
                if waiting is None:
                    waiting = asked[Attempt if isinstance(step, Attempt) else Later]
                waiting.append((at, step))

    def _take(self, kind: type) -> tuple[list[int], list[Any]]:
        taken, self._asked[kind] = self._asked[kind], []
        return [at for at, _ in taken], [step for _, step in taken]

    def _claims(self) -> Generator[Any, Any, _Moved]:
        items, steps = self._take(_Claim)
        calls = [step.subject for step in steps]
        replies = yield from _replies(len(items), self._store.claim_all, calls, self._policy)
        return zip(items, replies, strict=True)

    def _starts(self) -> Generator[Any, Any, _Moved]:
        items, steps = self._take(_Start)
        attempts = [step.subject for step in steps]
        replies = yield from _replies(len(items), self._store.start_all, attempts)
        return zip(items, replies, strict=True)

    def _finishes(self) -> Generator[Any, Any, _Moved]:
        items, steps = self._take(_Finish)
        attempts, records = [step.subject for step in steps], [step.record for step in steps]
        replies = yield from _replies(len(items), self._store.finish_all, attempts, records)
        return zip(items, replies, strict=True)

    def _runs(self) -> Generator[Any, Any, _Moved]:
        items, attempts = self._take(Attempt)
        results = yield self._run(attempts)
        if self._place is not None:
            self._place.leave()
        if None not in results:
            return zip(items, results, strict=True)
        moved: list[tuple[int, Any]] = []
        given_up: list[Any] = []
        for at, attempt, result in zip(items, attempts, results, strict=True):
            if result is not None:
                moved.append((at, result))
                continue
            self._rules[at].close()
            self._answers[at] = InProgress(
                "its turn came too late: the caller had left, or the server was suspended"
            )
            given_up.append(self._store.abandon(attempt))
        yield AllLater(given_up)
        return moved

    def _fetches(self) -> Generator[Any, Any, _Moved]:
        items, steps = self._take(Fetch)
        records = yield self._fetch([step.call for step in steps])
        return zip(items, records, strict=True)

    def _others(self) -> Generator[Any, Any, _Moved]:
        items, steps = self._take(Later)
        return zip(items, (yield AllLater(steps)), strict=True)

    def _waits(self) -> Generator[Any, Any, _Moved]:
        if self._late or self._gone():
            items, steps = self._take(Wait)
            return [(at, step.attempt.ended) for at, step in zip(items, steps, strict=True)]
        at, step = self._asked[Wait].pop(0)
        ended = yield step
        self._late = not ended
        return [(at, ended)]

    # What is done first, if anything asks for it.
    _asking: Sequence[tuple[type, Callable[[_Batch], Generator[Any, Any, _Moved]]]] = (
        (_Claim, _claims),
        (_Start, _starts),
        (Attempt, _runs),
        (Later, _others),
        (_Finish, _finishes),
        (Fetch, _fetches),
        (Wait, _waits),
    )


def _won(decisions: Replies) -> list[Any]:
    return [
        decision.attempt
        for decision in decisions
        if isinstance(decision, Decision) and decision.verdict is Verdict.NEW
    ]


def _refused_if_new(decision: Any, refusal: RiflError) -> Any:
    if not isinstance(decision, Decision) or decision.verdict is not Verdict.NEW:
        return decision
    # A new one for each, as below.
    each = type(refusal)(*refusal.args)
    each.outcome = refusal.outcome
    return each


def _refused(error: Exception) -> Generator[Any, Any, Answer]:
    raise error
    yield


def _serve_rest(
    store: Records, call: Call, policy: MethodPolicy, first: Decision
) -> Generator[Any, Any, Answer]:
    """Do what ``serve`` does, of a call that was decided about."""
    admitted = yield from admit(store, call, policy, first)
    return admitted if isinstance(admitted, Answer) else (yield from execute(store, admitted))


def _replies(
    count: int, ask: Callable[..., Replies | Later], *arguments: Any
) -> Generator[Any, Any, Replies]:
    """Ask the store; a refusal of all is each item's own."""
    try:
        replies = ask(*arguments)
        return (yield replies) if isinstance(replies, Later) else replies
    except RiflError as error:
        # A new one for each: what is raised again and again keeps its tracebacks.
        return [type(error)(*error.args) for _ in range(count)]
