"""The fast path of a call, held against the generators that it hands over to (DESIGN §4)."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from typing import Any

import pytest

from rifl.core import (
    CompletionRecord,
    InProgress,
    Outcome,
    RecordPending,
    RiflError,
    StoreUnavailable,
    Verdict,
    WindowExceeded,
)
from rifl.core._serving.admission import Steps
from rifl.core._serving.answer import Answer, Handled
from rifl.core._serving.client_table import Attempt, Decision
from rifl.core._serving.fast_path import Remaining, claim, end, start
from rifl.core._serving.policy import Kind, MethodPolicy
from rifl.core._serving.records import Records
from rifl.core._serving.serving import serve
from rifl.core._shared.call import Call
from tests.core.test_serving import (
    BUSY,
    CANCELLED,
    COMMITTED,
    HUGE,
    PENDING_METHODS,
    RAISED,
    REJECTED,
    RETURNED,
    UNAVAILABLE,
    UNDONE,
    Due,
    Script,
    attempt_of,
    drive,
    policy_of,
)


def serve_fast(
    store: Records, call: Call, policy: MethodPolicy, remaining_s: Remaining = None
) -> Steps:
    """Take the fast path, and the rules from where it hands over: as the aio shell.

    With ``remaining_s`` as the sync one, which waits where the store has yet to answer.
    """
    admitted: Any = claim(store, call, policy, remaining_s)
    if not isinstance(admitted, Attempt):
        admitted = yield from admitted
    if isinstance(admitted, Answer):
        return admitted
    started = start(store, admitted, remaining_s)
    if not isinstance(started, Attempt):
        return (yield from started)
    ended = end(store, started, (yield started), remaining_s)
    if isinstance(ended, CompletionRecord):
        return Answer(ended, ended.outcome)
    return (yield from ended)


HANDLED: list[Handled] = [
    RETURNED.record,
    REJECTED.record,
    BUSY.record,
    HUGE.record,
    RETURNED,
    BUSY,
    RAISED,
    UNDONE,
    CANCELLED,
]
# Of one method of the store's, or of none.
FAILURES: list[tuple[str, Exception]] = [
    ("", RiflError()),
    ("claim", WindowExceeded("full")),
    ("start", StoreUnavailable("disk full")),
    ("start", InProgress("taken over")),
    ("finish", RecordPending("disk full")),
    ("finish", InProgress("taken over")),
    ("finish", ValueError("no such text")),
    ("finish", RuntimeError("a defect")),
    ("committed", RecordPending("nobody can tell")),
    ("adopt", RecordPending("disk full")),
    ("adopt", InProgress("taken over")),
]
# What a handler's transaction left, and whether its run was claimed before.
LEFT: list[tuple[CompletionRecord | None, bool]] = [
    (None, False),
    (COMMITTED, False),
    (COMMITTED, True),
    (COMMITTED._replace(outcome=Outcome.UNKNOWN), False),
    (REJECTED.record, True),
]


class Told(Due):
    """What a store has yet to say, for whoever blocks; noted as a shell that drives does."""

    def __init__(self, store: Script, method: str) -> None:
        super().__init__(method)
        self._store, self._result = store, store.result

    def wait(self) -> Any:
        self._store.asked.append(f"({self.method})")
        if (error := self._store.failing.get(self.method)) is not None:
            raise error
        return self._result


class Blocking(Script):
    """A script over which a shell may block."""

    def _say(self, method: str, result: Any) -> Any:
        said = super()._say(method, result)
        return Told(self, method) if isinstance(said, Due) else said


def told(
    steps: Generator[Any, Any, Any], store: Script, handled: Handled
) -> tuple[list[str], list[CompletionRecord], Any]:
    """Return what the store was asked, what it kept, and what came of the call."""
    came: Any
    try:
        came = drive(store, steps, handled, waits=(True,) * 3)  # type: ignore[arg-type]
    except Exception as error:  # noqa: BLE001 - compared
        came = (type(error), str(error))
    return store.asked, store.kept, came


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("remaining_s", [None, lambda: None], ids=["awaits", "blocks"])
@pytest.mark.parametrize(
    "pending", [(), ("claim",), ("start",), ("finish",), ("committed",), PENDING_METHODS]
)
def test_the_fast_path_does_what_the_generators_do(
    kind: Kind, remaining_s: Remaining, pending: tuple[str, ...]
) -> None:
    """Whatever the store says, and the handler ends with: the store is asked the same in the
    same order, and the same comes of the call (DESIGN §4)."""
    rooms = (True, False)
    lefts = LEFT if kind is Kind.ATOMIC else LEFT[:1]
    for (method, error), handled, left, room in itertools.product(FAILURES, HANDLED, lefts, rooms):
        stores = []
        for _ in range(2):
            first = attempt_of(policy_of(kind, UNAVAILABLE))
            standing, first.unclaimed = left
            if first.unclaimed:
                first.committed = first.recorded = COMMITTED
            others = [Decision(Verdict.COMPLETED, record=COMMITTED)] * 3
            stores.append(
                Blocking(
                    [Decision(Verdict.NEW, first), *others],
                    standing=standing,
                    pending=frozenset(pending),
                    failing={method: error},
                    room=room,
                )
            )
        call, policy = first.call, first.policy
        fast = told(serve_fast(stores[0], call, policy, remaining_s), stores[0], handled)
        slow = told(serve(stores[1], call, policy), stores[1], handled)
        assert fast == slow, (method, error, handled, left, room)


def test_the_fast_path_finishes_where_nobody_waits() -> None:
    """Over a store that answers at once most calls make no generator (DESIGN §4)."""
    store = Script()
    attempt = attempt_of(policy_of(Kind.PLAIN))
    assert isinstance(start(store, attempt), Attempt)
    assert end(store, attempt, RETURNED.record) == RETURNED.record
    assert store.asked == ["start", "finish"]


def test_the_fast_path_finishes_where_it_may_block() -> None:
    """A shell that blocks waits for the store in place, and makes no generator (DESIGN §4)."""
    store = Blocking(pending=frozenset(PENDING_METHODS))
    attempt = attempt_of(policy_of(Kind.PLAIN))
    assert isinstance(start(store, attempt, lambda: None), Attempt)
    assert end(store, attempt, RETURNED.record, lambda: None) == RETURNED.record
    assert store.asked == ["start", "(start)", "finish", "(finish)"]


def test_the_fast_path_ends_atomic_calls() -> None:
    """What the handler's transaction is known to have left is the answer (DESIGN §4, step 7)."""
    store = Script(standing=COMMITTED)
    assert end(store, attempt_of(policy_of(Kind.ATOMIC)), RETURNED.record) == COMMITTED
    assert store.asked == ["committed", "adopt"]
