"""The budget for retries and hedges, in virtual time: counts of arrivals (DESIGN §3)."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rifl.core import Outcome
from rifl.core._calling.answer import AttemptAnswer
from rifl.core._calling.batch_flow import BatchFlow
from rifl.core._calling.batch_rpc import BatchAction, BatchLimits
from rifl.core._calling.call_flow import Action, CallFlow
from rifl.core._calling.client_lease import LeaseGrant
from rifl.core._calling.client_session import ClientSession
from rifl.core._calling.invocation import Invocation
from rifl.core._calling.retry import RetryPolicy

METHOD = "/p.S/M"
OK = AttemptAnswer("OK", Outcome.EXECUTED)
LATE = AttemptAnswer("DEADLINE_EXCEEDED")
LOST = AttemptAnswer("UNAVAILABLE")
AWAY = LOST._replace(unconnected=True)
BUSY = AttemptAnswer("UNAVAILABLE", Outcome.NOT_EXECUTED, "STORE_UNAVAILABLE")
DEPOSED = AttemptAnswer("ABORTED", Outcome.UNKNOWN, "DEPOSED")
NOT_LEADER = AttemptAnswer("FAILED_PRECONDITION", Outcome.NOT_EXECUTED, "NOT_LEADER")
DRAINING = AttemptAnswer("UNAVAILABLE", Outcome.NOT_EXECUTED, "DRAINING")

# What a server says to an attempt that is sent at a time, and after how long; None: nothing.
Server = Callable[[float], tuple[float, AttemptAnswer] | None]


class World:
    """Calls of one client, and a server that counts arrivals; a clock of its own."""

    def __init__(self, server: Server, *, hedge_after_s: float | None = None, **policy: Any):
        self.session = ClientSession(retry=RetryPolicy(**policy), window=4096)
        self.session.granted(
            LeaseGrant(client_id=7, token=b"t", term_s=1e6, deduplicated=("*",), window=4096),
            0.0,
        )
        self.now = 0.0
        self.connected = True
        self.sent: list[float] = []
        self.ended: list[tuple[float, Action, CallFlow]] = []
        self._server = server
        self._hedge_after_s = hedge_after_s
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), event))

    def call(self, when: float, deadline_s: float | None) -> None:
        def begin() -> None:
            deadline = None if deadline_s is None else self.now + deadline_s
            _Call(
                self,
                CallFlow(
                    self.session,
                    Invocation(METHOD, self.now, deadline, hedge_after_s=self._hedge_after_s),
                ),
            )

        self.at(when, begin)

    def run(self) -> None:
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()

    @property
    def busiest(self) -> int:
        """How many attempts arrived in the worst second."""
        return max(Counter(int(at) for at in self.sent).values())


class _Call:
    def __init__(self, world: World, flow: CallFlow) -> None:
        self._world = world
        self._flow = flow
        self._cut: set[int] = set()
        self._over: set[int] = set()
        self._timer = 0
        self._take(flow.start(world.now))

    def _take(self, action: Action) -> None:
        world, flow = self._world, self._flow
        if action in (Action.RETURN, Action.RAISE):
            world.ended.append((world.now, action, flow))
            return
        if action is Action.SEND:
            assert flow.call is not None
            self._send(flow.call.attempt)
        if action is Action.CUT:
            for number in flow.attempts_under_way:
                self._answer(number, LATE)
        if not flow.done and flow.wake_at is not None:
            self._timer += 1
            timer = self._timer
            world.at(max(flow.wake_at, world.now), lambda: self._wake(timer))

    def _send(self, number: int) -> None:
        world = self._world
        world.sent.append(world.now)
        answer = world._server(world.now)
        limit_s = self._flow.attempt_timeout_s
        if answer is not None and (limit_s is None or answer[0] < limit_s):
            world.at(world.now + answer[0], lambda: self._answer(number, answer[1]))
        elif limit_s is not None:
            world.at(world.now + limit_s, lambda: self._answer(number, LATE))

    def _answer(self, number: int, answer: AttemptAnswer) -> None:
        if not self._flow.done and number in self._flow.attempts_under_way:
            self._take(self._flow.answered(number, answer, self._world.now, 0.5))

    def _wake(self, timer: int) -> None:
        if timer == self._timer and not self._flow.done:
            self._take(self._flow.woken(self._world.now, connected=self._world.connected))


def test_attempts_are_not_cut_off_while_all_is_slow() -> None:
    """With a time of each attempt an overload gets its calls, a tenth, and one a second."""
    world = World(lambda now: (1.5, OK), attempt_timeout_s=0.2)
    for number in range(1000):
        world.call(number / 100, 2.0)
    world.run()
    # Ten tokens, twelve seconds; nothing is cut off beyond them, so that all are answered.
    assert len(world.sent) <= 1000 * 1.2
    assert world.busiest <= 100 * 1.3
    answered = sum(action is Action.RETURN for _, action, _ in world.ended)
    assert answered >= 900


def test_without_a_budget_it_gets_several_times_its_calls() -> None:
    """What the bound above is worth."""
    world = World(lambda now: (1.5, OK), attempt_timeout_s=0.2, budget_tokens=None)
    for number in range(200):
        world.call(number / 100, 2.0)
    world.run()
    assert len(world.sent) > 800


def test_a_call_that_is_refused_at_once_is_not_sent_ten_times() -> None:
    """Retries wait for tokens within the deadline, and the last refusal is what it ends with."""
    world = World(lambda now: (0.001, BUSY))
    for number in range(100):
        world.call(number / 100, 1.0)
    world.run()
    assert len(world.sent) <= 100 + 10 + 3
    assert len(world.ended) == 100
    for now, action, flow in world.ended:
        assert action is Action.RAISE
        assert flow.reason == "STORE_UNAVAILABLE"
        assert now >= flow.ends_at - 0.05  # type: ignore[operator]


def test_who_waits_for_a_token_is_sent_and_answered_once_one_is_there() -> None:
    """A call waits and does not fail: answered calls bring the tokens."""
    world = World(lambda now: (0.001, BUSY if now < 1.0 else OK))
    for number in range(60):
        world.call(number / 100, 20.0)
    for number in range(1000):
        world.call(1.0 + number / 100, 20.0)
    world.run()
    assert {action for _, action, _ in world.ended} == {Action.RETURN}
    # A tenth of a hundred answers a second, and one: all that waited were sent in six seconds.
    first = [now for now, _, flow in world.ended if flow.ends_at < 20.9]  # type: ignore[operator]
    assert len(first) == 60
    assert max(first) < 7.0


@pytest.mark.parametrize("answer", [AWAY, NOT_LEADER, DRAINING, DEPOSED])
def test_what_sends_on_needs_no_token(answer: AttemptAnswer) -> None:
    """A lost or missing connection, and what a change of leader says: as quick as ever."""
    world = World(lambda now: (0.001, answer if now < 1.0 else OK), max_backoff_s=0.1)
    for _ in range(200):
        world.call(0.5, 5.0)
    world.run()
    assert {action for _, action, _ in world.ended} == {Action.RETURN}
    assert max(now for now, _, _ in world.ended) < 1.2
    assert world.session.take_held() == []


def test_one_probe_a_second_goes_without_a_token() -> None:
    """Also if nothing was answered for long; alone, without a deadline, until it gives up."""
    world = World(lambda now: (0.001, LOST), max_elapsed_s=60.0)
    world.call(0.0, None)
    world.run()
    seconds = Counter(int(at) for at in world.sent)
    assert all(seconds[second] >= 1 for second in range(20, 59))
    assert max(seconds[second] for second in range(20, 59)) <= 2
    ((now, action, flow),) = world.ended
    assert action is Action.RAISE
    assert flow.outcome is Outcome.UNKNOWN
    assert 59.0 <= now <= 60.1


def test_each_target_has_its_own_bucket() -> None:
    """An empty one does not keep attempts from another target."""
    session = World(lambda now: None).session
    while session.may_send(METHOD, 0, 0.0):
        pass
    assert session.may_send(METHOD, 1, 0.0)
    assert not session.may_send(METHOD, 0, 0.5)
    assert session.may_send(METHOD, 0, 1.0)


def test_an_attempt_without_a_connection_is_cut_off_for_nothing() -> None:
    """It waits for a connection, which is no load."""
    world = World(lambda now: None, attempt_timeout_s=0.1)
    world.connected = False
    for _ in range(100):
        world.call(0.0, 1.0)
    world.run()
    assert len(world.sent) > 400
    assert world.session.take_held() == []


def test_hedges_go_only_above_what_is_usual() -> None:
    """Where most answers take longer than ``hedge_after``, few calls are hedged."""
    # One in fifty takes a second.
    turns = itertools.count(1)
    world = World(lambda now: (1.0 if next(turns) % 50 == 0 else 0.2, OK), hedge_after_s=0.1)
    for number in range(1000):
        world.call(number / 10, 5.0)
    world.run()
    # A fixed time would have hedged all thousand, as the first twenty are.
    assert 1000 + 20 <= len(world.sent) <= 1000 + 60


def test_what_is_usual_is_the_handlers_time_not_that_of_a_hedge_which_waits_for_it() -> None:
    """The answer of a slow handler may come to the hedge first: it is no quick one."""
    begun: list[float] = []
    ends: list[float] = []

    def serve(now: float) -> tuple[float, AttemptAnswer]:
        # Calls are two seconds apart; what comes later is a hedge, and answered sooner.
        if begun and now < begun[-1] + 1.0:
            return ends[-1] - 0.001 - now, OK._replace(outcome=Outcome.REPLAYED)
        begun.append(now)
        ends.append(now + 0.5 + 0.02 * (len(begun) % 20))
        return ends[-1] - now, OK

    world = World(serve, hedge_after_s=0.1, budget_tokens=None)
    for number in range(400):
        world.call(number * 2.0, 5.0)
    world.run()
    assert len(begun) == 400
    # The first twenty, and one in twenty.
    assert len(world.sent) <= 400 + 20 + 40


def test_hedges_are_held_back_while_the_bucket_is_low() -> None:
    """All is slow at once: hedges take half of the tokens, then those that answers bring."""
    world = World(lambda now: (0.01 if now < 10.0 else 3.0, OK), hedge_after_s=0.1)
    for number in range(200):
        world.call(number / 20, 5.0)
    for number in range(100):
        world.call(10.0 + number / 100, 5.0)
    world.run()
    # Five tokens, and a tenth of the answers.
    assert 300 + 5 <= len(world.sent) <= 300 + 5 + 10
    held = world.session.take_held()
    assert all(each.hedge for each in held)
    assert [each.first for each in held].count(True) == 1
    assert {action for _, action, _ in world.ended} == {Action.RETURN}


def test_each_wait_is_told_once() -> None:
    """However often it looks for a token; ``first`` once, until the bucket is full."""
    world = World(lambda now: (0.001, BUSY), budget_ratio=0.0)
    for _ in range(30):
        world.call(0.0, 3.0)
    world.run()
    held = world.session.take_held()
    assert 20 <= len(held) <= 34
    assert [each.first for each in held].count(True) == 1
    assert {each.method for each in held} == {METHOD}


def test_unanswered_calls_bring_no_token() -> None:
    """Also when they are acknowledged later, as what is unresolved is."""
    world = World(lambda now: None)
    for _ in range(300):
        world.call(0.0, 1.0)
    world.run()
    session = world.session
    session._drop_unresolved(1e9)
    for _ in range(10):
        assert session.may_send(METHOD, 0, 1.0)
    assert not session.may_send(METHOD, 0, 1.5)


def _batch(session: ClientSession, deadline: float | None = None) -> BatchFlow:
    invocation = Invocation(METHOD, 0.0, deadline)
    return BatchFlow(session, invocation, [1] * 3, [None] * 3, BatchLimits())


def test_batches_have_the_same_budget() -> None:
    """A batch that is sent again takes a token; it waits, and its RPC is not cut, without one."""
    session = World(lambda now: None, attempt_timeout_s=0.2).session
    flow = _batch(session, 10.0)
    assert flow.step(0.0) is BatchAction.SEND
    assert flow.rpc is not None
    assert (flow.rpc.timeout_s, flow.rpc.cut_at) == (10.0, 0.2)
    assert flow.overdue(0.2, 0, connected=True) is None
    flow.refused(LATE, None, 0.2, 0.0)
    assert flow.step(0.2) is BatchAction.SEND
    while session.may_send(METHOD, 0, 0.2):
        pass
    look_at = flow.overdue(0.4, 0, connected=True)
    assert look_at is not None
    assert look_at > 0.4
    flow.refused(BUSY, None, 0.5, 0.0)
    assert flow.step(0.5) is BatchAction.PAUSE
    assert flow.step(1.3) is BatchAction.SEND
    flow.refused(DRAINING, None, 1.3, 0.0)
    assert flow.step(1.4) is BatchAction.SEND


def test_a_batch_gives_up_in_time_without_a_token() -> None:
    """Its deadline ends it as ever."""
    session = World(lambda now: None, budget_ratio=0.0).session
    flow = _batch(session, 2.0)
    flow.step(0.0)
    while session.may_send(METHOD, 0, 1.5):
        pass
    flow.refused(BUSY, None, 1.6, 0.0)
    assert flow.step(1.7) is BatchAction.PAUSE
    assert flow.step(2.0) is BatchAction.DONE
    assert {ended.reason for ended in flow.ended if ended} == {"STORE_UNAVAILABLE"}


def test_numbers_that_make_no_sense_are_refused() -> None:
    """See ``RetryPolicy``."""
    for wrong in ({"budget_tokens": 0.5}, {"budget_ratio": -0.1}):
        with pytest.raises(ValueError, match="budget_"):
            replace(RetryPolicy(), **wrong)
