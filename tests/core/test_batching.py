"""Batches of calls in step: rifl.core._serving.batching (DESIGN §4, "Batched calls")."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rifl.core import (
    CompletionRecord,
    InProgress,
    Outcome,
    PayloadMismatch,
    RiflError,
    StaleRpc,
    StoreUnavailable,
)
from rifl.core._serving.admission import Wait
from rifl.core._serving.answer import Answer, HandlerResult
from rifl.core._serving.batching import serve_batch
from rifl.core._serving.client_table import Attempt
from rifl.core._serving.later import Later
from rifl.core._serving.policy import Kind, MethodPolicy
from rifl.core._shared.call import Call
from tests.stores.conformance import Opened

PLAIN = MethodPolicy(unrecorded={"UNAVAILABLE"})
ATOMIC = MethodPolicy(kind=Kind.ATOMIC)
UNAVAILABLE = 14


class Memory:
    """Where the store of these tests lives."""

    durable = False
    url = "memory:"


class Parts(Later):
    """What a group has yet to do, part by part, so that others can come in between."""

    def __init__(self, parts: Sequence[Callable[[], Any]]) -> None:
        self.left = list(parts)
        self.found: list[Any] = []

    def advance(self) -> bool:
        """Do one part; whether there are more."""
        try:
            self.found.append(self.left.pop(0)())
        except RiflError as error:
            self.found.append(error)
        return bool(self.left)

    def wait(self) -> Any:
        while self.left:
            self.advance()
        return self.found

    def __await__(self) -> Generator[Any, Any, Any]:
        raise NotImplementedError


class OneByOne:
    """A store whose claims of a batch are many steps, as one that is asked for each."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.commits: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def claim_all(self, calls: Sequence[Call], policy: MethodPolicy) -> Later:
        return Parts([lambda call=call: self._store.claim(call, policy) for call in calls])

    def start_all(self, attempts: Sequence[Attempt]) -> Later:
        return Parts([lambda attempt=attempt: self._store.start(attempt) for attempt in attempts])

    def finish_all(self, attempts: Any, records: Any) -> Later:
        self.commits.append(len(attempts))
        return Parts(
            [
                lambda attempt=attempt, record=record: self._store.finish(attempt, record)
                for attempt, record in zip(attempts, records, strict=True)
            ]
        )


class Handler:
    """Counts effects by identity; ``says`` what else it answers, by payload."""

    def __init__(self) -> None:
        self.effects: Counter[Any] = Counter()
        self.order: list[Any] = []
        self.says: dict[bytes, CompletionRecord] = {}

    def run(self, attempt: Attempt) -> HandlerResult:
        call = attempt.call
        payload = (call.fingerprint or b"").rstrip(b".")
        record = self.says.get(payload)
        if record is None or record.code != UNAVAILABLE:
            self.effects[call.identity] += 1
            self.order.append(call.identity)
        return HandlerResult(record or CompletionRecord(response=b"%r" % (call.identity,)))


def keyed(client: int, key: bytes, payload: bytes = b"p") -> Call:
    return Call(client, b"", None, key, fingerprint=payload.ljust(16, b"."), method="/s/M")


def begin(store: Any, calls: Sequence[Call], handler: Handler, **more: Any) -> Any:
    policy = more.pop("policy", PLAIN)
    gone = more.pop("gone", lambda: False)

    def run(attempts: Sequence[Attempt]) -> Parts:
        return Parts(
            [lambda one=one: None if gone() else handler.run(one) for one in attempts]  # type: ignore[misc]
        )

    def fetch(wanted: Sequence[Call]) -> Parts:
        return Parts([lambda call=call: store.fetch(call) for call in wanted])

    return serve_batch(store, calls, policy, run=run, fetch=fetch, gone=gone)


def finish(steps: Any, store: Any = None) -> list[Any]:
    """Carry a batch out that waits for nobody, or only for what has ended."""
    value: Any = None
    try:
        while True:
            step = steps.send(value)
            if isinstance(step, Wait):
                assert step.attempt.ended
                value = True
            else:
                value = step.wait()
    except StopIteration as stop:
        found: list[Any] = stop.value
        return found


@pytest.fixture
def opened() -> Any:
    opened = Opened(Memory())
    yield opened
    opened.close()


class Running:
    """One batch under way, a step at a time; a wait is over when its attempt is."""

    def __init__(self, steps: Any) -> None:
        self.steps = steps
        self.step = next(steps)
        self.answers: list[Any] | None = None

    @property
    def blocked(self) -> bool:
        return isinstance(self.step, Wait) and not self.step.attempt.ended

    def advance(self) -> None:
        value: Any = True
        if isinstance(self.step, Parts):
            if self.step.left and self.step.advance():
                return
            value = self.step.found
        elif isinstance(self.step, Later):
            value = self.step.wait()
        try:
            self.step = self.steps.send(value)
        except StopIteration as stop:
            self.answers = stop.value


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=8), min_size=2, max_size=4),
    st.integers(0, 2**32),
    st.sets(st.integers(0, 5), max_size=2),
)
def test_batches_in_any_order_never_block_each_other(
    batches: list[list[int]], seed: int, nothing: set[int]
) -> None:
    """Each identity runs once, all get its answer, and nobody waits in a ring (DESIGN §4)."""
    opened = Opened(Memory())
    client, handler, random = opened.client(), Handler(), Random(seed)
    for number in nothing:
        handler.says[b"%d" % number] = CompletionRecord(UNAVAILABLE)
    store = OneByOne(opened.store)
    running = []
    for numbers in batches:
        calls = [keyed(client, b"k%d" % number, b"%d" % number) for number in numbers]
        running.append(Running(begin(store, calls, handler)))
    while left := [batch for batch in running if batch.answers is None]:
        free = [batch for batch in left if not batch.blocked]
        assert free, "every batch waits for another"
        random.choice(free).advance()
    wanted = {number for numbers in batches for number in numbers}
    assert handler.effects == {b"k%d" % number: 1 for number in wanted - nothing}
    for numbers, batch in zip(batches, running, strict=True):
        for number, answer in zip(numbers, batch.answers or (), strict=True):
            assert isinstance(answer, Answer)
            expected = UNAVAILABLE if number in nothing else 0
            assert answer.record.code == expected
            assert expected or answer.record.response == b"%r" % (b"k%d" % number,)
    executed = Counter(
        number
        for numbers, batch in zip(batches, running, strict=True)
        for number, answer in zip(numbers, batch.answers or (), strict=True)
        if answer.outcome is Outcome.EXECUTED
    )
    assert executed == dict.fromkeys(wanted - nothing, 1)
    assert opened.store.running() == 0


def test_a_batch_is_run_in_order_and_recorded_in_one_group(opened: Any) -> None:
    """What was won is run in the batch's order, and its records are one group (DESIGN §4)."""
    client, handler = opened.client(), Handler()
    store = OneByOne(opened.store)
    calls = [keyed(client, b"%d" % number) for number in (3, 1, 2)]
    answers = finish(begin(store, calls, handler))
    assert [answer.outcome for answer in answers] == [Outcome.EXECUTED] * 3
    assert handler.order == [b"3", b"1", b"2"]
    assert store.commits == [3]


def test_equal_items_share_a_slot(opened: Any) -> None:
    """The first has its answer, the others a replay; another payload is refused (DESIGN §4)."""
    client, handler = opened.client(), Handler()
    calls = [keyed(client, b"k"), keyed(client, b"k", b"other"), keyed(client, b"k")]
    first, other, again = finish(begin(opened.store, calls, handler))
    assert (first.outcome, again.outcome) == (Outcome.EXECUTED, Outcome.REPLAYED)
    assert first.record == again.record
    assert isinstance(other, PayloadMismatch)
    assert handler.effects == {b"k": 1}


def test_the_payload_that_is_recorded_is_the_one_that_fits(opened: Any) -> None:
    """Which of two payloads is refused is what stands, not who comes first (DESIGN §4)."""
    client, handler = opened.client(), Handler()
    finish(begin(opened.store, [keyed(client, b"k", b"old")], handler))
    calls = [keyed(client, b"k", b"new"), keyed(client, b"k", b"old")]
    new, old = finish(begin(opened.store, calls, handler))
    assert isinstance(new, PayloadMismatch)
    assert old.outcome is Outcome.REPLAYED
    assert handler.effects == {b"k": 1}


def test_each_item_has_its_own_verdict(opened: Any) -> None:
    """Stale, completed, refused and new ones in one batch do not touch each other (DESIGN §4)."""
    client, handler = opened.client(), Handler()

    def call(seq: int, payload: bytes = b"p", first: int = 1) -> Call:
        return Call(client, b"", seq, None, first, (), 1, payload.ljust(16, b"."), "/s/M")

    finish(begin(opened.store, [call(1), call(2)], handler))
    handler.says[b"bad"] = CompletionRecord(5, "not found")
    answers = finish(
        begin(
            opened.store,
            [call(3, first=2), call(1), call(2), call(2, b"q"), call(4, b"bad")],
            handler,
        )
    )
    assert answers[0].outcome is Outcome.EXECUTED
    assert isinstance(answers[1], StaleRpc)
    assert answers[2].outcome is Outcome.REPLAYED
    assert isinstance(answers[3], PayloadMismatch)
    assert (answers[4].record.code, answers[4].outcome) == (5, Outcome.EXECUTED)


def test_a_handler_without_its_record_fails_its_item_alone(opened: Any) -> None:
    """Of an atomic method, an item that recorded nothing is unknown, for good (DESIGN §4)."""
    client, handler = opened.client(), Handler()
    handler.says[b"bad"] = CompletionRecord(5, "not found")
    calls = [keyed(client, b"a"), keyed(client, b"b", b"bad")]
    first, second = finish(begin(opened.store, calls, handler, policy=ATOMIC))
    assert (first.record.reason, first.outcome) == ("NOT_RECORDED", Outcome.UNKNOWN)
    assert (second.record.code, second.outcome) == (5, Outcome.EXECUTED)
    again, _ = finish(begin(opened.store, calls, handler, policy=ATOMIC))
    assert again == first
    assert handler.effects == {b"a": 1, b"b": 1}


@pytest.mark.parametrize("when", ["called", "waited"])
def test_a_store_that_fails_a_group_fails_each_item(opened: Any, when: str) -> None:
    """A refusal of the whole group is each item's, and leaves nothing claimed (DESIGN §4)."""

    class Failing(OneByOne):
        def start_all(self, attempts: Sequence[Attempt]) -> Later:
            def fail() -> Any:
                raise StoreUnavailable("no")

            if when == "called":
                fail()
            return Parts([fail for _ in attempts])

    client, handler = opened.client(), Handler()
    calls = [keyed(client, b"a"), keyed(client, b"b")]
    answers = finish(begin(Failing(opened.store), calls, handler))
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 2
    assert handler.effects == {}
    assert opened.store.running() == 0


def test_no_handler_is_begun_for_a_caller_that_is_gone(opened: Any) -> None:
    """What has run is recorded; the others are new again, and run for a retry (DESIGN §4.6)."""
    client, handler = opened.client(), Handler()
    calls = [keyed(client, b"%d" % number) for number in range(4)]
    answers = finish(begin(opened.store, calls, handler, gone=lambda: len(handler.order) >= 2))
    assert [isinstance(answer, InProgress) for answer in answers] == [False, False, True, True]
    assert opened.store.running() == 0
    again = finish(begin(opened.store, calls, handler))
    assert [answer.outcome for answer in again] == [Outcome.REPLAYED] * 2 + [Outcome.EXECUTED] * 2
    assert handler.effects == {call.key: 1 for call in calls}


def test_a_wait_that_takes_too_long_is_the_last(opened: Any) -> None:
    """There is no time left for the other waits: IN_PROGRESS at once (DESIGN §3)."""
    client, handler = opened.client(), Handler()
    for key in (b"a", b"b"):
        opened.begin(keyed(client, key))
    calls = [keyed(client, key) for key in (b"a", b"c", b"b")]
    steps = begin(opened.store, calls, handler)
    value: Any = None
    waits = 0
    try:
        while True:
            step = steps.send(value)
            if isinstance(step, Wait):
                assert handler.effects == {b"c": 1}, "its own come first"
                waits += 1
                value = False
            else:
                value = step.wait()
    except StopIteration as stop:
        answers = stop.value
    assert waits == 1
    assert [isinstance(answer, InProgress) for answer in answers] == [True, False, True]
