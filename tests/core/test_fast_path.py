"""The fast path of a call, held against the generators that it hands over to (DESIGN §4)."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from typing import Any

import pytest

from chaos.sim.shell import serve_fast
from rifl.core import (
    CompletionRecord,
    InProgress,
    RecordPending,
    RiflError,
    StoreUnavailable,
    Verdict,
    WindowExceeded,
)
from rifl.core._serving.answer import Handled
from rifl.core._serving.client_table import Attempt, Decision
from rifl.core._serving.fast_path import end, start
from rifl.core._serving.policy import Kind
from rifl.core._serving.serving import serve
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
    Script,
    attempt_of,
    drive,
    policy_of,
)

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
]


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
@pytest.mark.parametrize("pending", [(), ("claim",), ("start",), ("finish",), PENDING_METHODS])
def test_the_fast_path_does_what_the_generators_do(kind: Kind, pending: tuple[str, ...]) -> None:
    """Whatever the store says, and the handler ends with: the store is asked the same in the
    same order, and the same comes of the call (DESIGN §4)."""
    rooms = (True, False)
    for (method, error), handled, room in itertools.product(FAILURES, HANDLED, rooms):
        stores = []
        for _ in range(2):
            first = attempt_of(policy_of(kind, UNAVAILABLE))
            others = [Decision(Verdict.COMPLETED, record=COMMITTED)] * 3
            stores.append(
                Script(
                    [Decision(Verdict.NEW, first), *others],
                    pending=frozenset(pending),
                    failing={method: error},
                    room=room,
                )
            )
        call, policy = first.call, first.policy
        fast = told(serve_fast(stores[0], call, policy), stores[0], handled)
        slow = told(serve(stores[1], call, policy), stores[1], handled)
        assert fast == slow, (method, error, handled, room)


def test_the_fast_path_finishes_where_nobody_waits() -> None:
    """Over a store that answers at once most calls make no generator (DESIGN §4)."""
    store = Script()
    attempt = attempt_of(policy_of(Kind.PLAIN))
    assert isinstance(start(store, attempt), Attempt)
    assert end(store, attempt, RETURNED.record) == RETURNED.record
    assert store.asked == ["start", "finish"]
