"""Targets over one store: which calls go where, and what a stranger's word does (DESIGN §5)."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import grpc
import pytest

import rifl
from lease_server.v1 import lease_server_pb2
from rifl._client.routing import Route, Router
from rifl.core import Outcome
from rifl.core._calling import one_store
from rifl.core._calling.one_store import Trial
from rifl.core._calling.retry import RetryPolicy
from rifl.core._calling.targets import Targets
from tests.client.protocol_server import Arrival, ProtocolServer, label, refuse
from tests.helpers.forgetting import ForgettingProxy
from tests.helpers.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.client.conftest import Caller, Connect

STORE = 7
OTHER = {"store": f"{9:016x}"}
FAST = RetryPolicy(initial_backoff_s=0.01, max_backoff_s=0.05)


def answer(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
    if arrival.attempt > 1:
        label(context, "executed")
    return b"reply"


@pytest.fixture
def servers() -> Iterator[list[ProtocolServer]]:
    """Three over one store; a slow test meets no renewal for the time's sake."""
    with ExitStack() as stack:
        made = [ProtocolServer(answer, store=STORE, term_s=3600.0) for _ in range(3)]
        yield [stack.enter_context(each) for each in made]


def targets(servers: list[ProtocolServer]) -> list[str]:
    return [each.target for each in servers]


def used(caller: Caller) -> tuple[int, ...]:
    found: tuple[int, ...] = tuple(sorted(caller.channel._inner.router.targets.one_store.used))
    return found


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again soon."""
    monkeypatch.setattr(one_store, "_PAUSE_S", 0.05)
    monkeypatch.setattr(one_store, "_LONGEST_PAUSE_S", 0.2)


def joined(caller: Caller, *wanted: int) -> None:
    """Wait until these take calls in turn, while calls are made."""

    def calling() -> bool:
        caller.call(b"", timeout=30)
        return used(caller) == wanted

    until(calling, f"{wanted} take calls in turn")


def arrived(servers: list[ProtocolServer]) -> list[int]:
    return [len(each.arrivals) for each in servers]


def test_calls_go_to_each_in_turn_under_one_lease(
    connect: Connect, servers: list[ProtocolServer]
) -> None:
    """Each other target is asked for one renewal, and for no lease (DESIGN §5)."""
    caller = connect(targets(servers))
    joined(caller, 0, 1, 2)
    before = arrived(servers)
    for _ in range(9):
        assert caller.call(b"x", timeout=20) == b"reply"
    assert [now - then for now, then in zip(arrived(servers), before, strict=True)] == [3, 3, 3]
    calls = [each.call for server in servers for each in server.arrivals]
    assert {call.client_id for call in calls if call is not None} == {1001}
    assert [len(each.renewals) for each in servers] == [0, 1, 1]
    assert [each.grants for each in servers] == [1, 0, 0]


def test_a_trial_bears_the_applications_token_or_is_made_again(
    connect: Connect, servers: list[ProtocolServer], soon: None
) -> None:
    """What the application's function raises excludes no target for good (DESIGN §5)."""
    told: list[str | bytes | None] = []

    def noted(context: grpc.ServicerContext) -> None:
        told.append(dict(context.invocation_metadata()).get("authorization"))

    for each in servers[1:]:
        each.on_renew = noted
    fails = iter([RuntimeError("no token yet")] * 2)

    def entries(method: str) -> list[tuple[str, str]]:
        if method.endswith("/Renew") and (error := next(fails, None)) is not None:
            raise error
        return [("authorization", "mine")]

    caller = connect(targets(servers), metadata=entries)
    joined(caller, 0, 1, 2)
    assert told == ["mine", "mine"]
    assert next(fails, None) is None


@pytest.mark.parametrize(
    "how",
    [
        "LEASE_EXPIRED",
        "STORE_MISMATCH",
        "NOT_YOURS",
        "no leases",
        "no id",
        "an echo",
        "broken",
    ],
)
def test_another_answer_than_yes_leaves_the_lease_and_all_calls_where_they_are(
    connect: Connect, servers: list[ProtocolServer], how: str
) -> None:
    """The trial excludes a target, and ends, moves and doubles no lease (DESIGN §5)."""

    def stranger(context: grpc.ServicerContext) -> Any:
        if how == "no id":
            # A generic handler for every method, in front of rifl's.
            return lease_server_pb2.RenewReply(term_ms=30_000)
        if how == "an echo":
            return lease_server_pb2.RenewReply(client_id=1001)
        if how == "no leases":
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        if how == "broken":
            raise OSError
        refuse(context, how, None, OTHER)
        raise AssertionError

    second = servers[1]
    second.on_renew = stranger
    lost: list[int] = []
    caller = connect(targets(servers[:2]), on_lease_lost=lost.append)
    router, told = caller.channel._inner.router, threading.Event()
    take = router.tried
    router.tried = lambda *args: (take(*args), told.set())
    assert caller.call(b"one", timeout=20) == b"reply"
    assert told.wait(30)
    client_id = caller.session.client_id
    for _ in range(6):
        assert caller.call(b"x", timeout=20) == b"reply"
    assert arrived(servers)[:2] == [7, 0]
    assert (caller.session.client_id, lost) == (client_id, [])
    assert (servers[0].grants, second.grants) == (1, 0)


@pytest.mark.parametrize("reason", ["STORE_MISMATCH", "LEASE_EXPIRED"])
def test_a_server_that_came_back_over_another_store_loses_no_call(
    connect: Connect, servers: list[ProtocolServer], reason: str
) -> None:
    """Its refusal sends the call on, under its identity; then it is left out (DESIGN §5)."""
    caller = connect(targets(servers))
    joined(caller, 0, 1, 2)

    def stranger(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        refuse(context, reason, None, OTHER)
        raise AssertionError

    servers[0].script = stranger
    before = arrived(servers)
    for _ in range(6):
        assert caller.call(b"x", timeout=20) == b"reply"
    assert arrived(servers)[0] - before[0] == 1
    assert used(caller) == (1, 2)
    assert caller.session.client_id == 1001
    assert [each.grants for each in servers] == [1, 0, 0]


def test_a_lease_goes_on_where_its_renewals_are_not_refused(connect: Connect) -> None:
    """The current target came back over another store: the others renew (DESIGN §5)."""

    def mismatch(context: grpc.ServicerContext) -> None:
        refuse(context, "STORE_MISMATCH")

    lost: list[int] = []
    with (
        ProtocolServer(answer, store=STORE, term_s=1.2) as first,
        ProtocolServer(answer, store=STORE, term_s=1.2) as second,
        ProtocolServer(answer, store=STORE, term_s=1.2) as third,
    ):
        caller = connect(targets([first, second, third]), on_lease_lost=lost.append)
        joined(caller, 0, 1, 2)
        first.on_renew = mismatch
        renewals = len(second.renewals) + len(third.renewals)
        until(lambda: used(caller) == (1, 2), "the stranger is left out")
        until(lambda: len(second.renewals) + len(third.renewals) > renewals + 2, "renewals go on")
        assert caller.call(b"x", timeout=20) == b"reply"
        assert caller.session.client_id == 1001
        assert (lost, first.grants + second.grants + third.grants) == ([], 1)


@pytest.mark.usefixtures("soon")
def test_a_target_that_failed_is_used_again(
    connect: Connect, servers: list[ProtocolServer]
) -> None:
    """After another renewal there, while calls are made (DESIGN §5)."""
    caller = connect(targets(servers))
    joined(caller, 0, 1, 2)
    failing = True

    def lost(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        if failing:
            context.abort(grpc.StatusCode.UNAVAILABLE, "lost")
        return answer(arrival, context)

    def refusing(context: grpc.ServicerContext) -> None:
        if failing:
            context.abort(grpc.StatusCode.UNAVAILABLE, "lost")

    servers[1].script, servers[1].on_renew = lost, refusing
    joined(caller, 0, 2)
    renewals = len(servers[1].renewals)
    servers[1].wait_for(lambda: len(servers[1].renewals) > renewals or not caller.call(b""))
    failing = False
    joined(caller, 0, 1, 2)


def test_a_retry_goes_where_the_call_may_run(
    connect: Connect, servers: list[ProtocolServer]
) -> None:
    """A duplicate waits there without the store; without room it goes elsewhere (DESIGN §5)."""
    caller = connect(targets(servers))
    joined(caller, 0, 1, 2)
    for reason in ("IN_PROGRESS", "OVERLOADED"):
        went: list[int] = []

        def once(at: int, reason: str = reason, went: list[int] = went) -> Any:
            def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
                went.append(at)
                if arrival.attempt == 1:
                    refuse(context, reason, 0.0)
                return answer(arrival, context)

            return script

        for at, each in enumerate(servers):
            each.script = once(at)
        for _ in range(3):
            assert caller.call(b"x", timeout=20) == b"reply"
        pairs = list(zip(went[::2], went[1::2], strict=True))
        assert len(pairs) == 3
        assert all((first == second) == (reason == "IN_PROGRESS") for first, second in pairs)
        assert used(caller) == (0, 1, 2), "none is left out for that"


def test_an_attempt_that_is_not_answered_in_its_time_goes_on_elsewhere(
    connect: Connect, servers: list[ProtocolServer]
) -> None:
    """Whichever target the first attempt's turn was (DESIGN §3)."""
    release = threading.Event()

    def hangs(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        release.wait(30)
        return answer(arrival, context)

    retry = RetryPolicy(attempt_timeout_s=0.3, initial_backoff_s=0.01)
    caller = connect(targets(servers[:2]), retry=retry)
    joined(caller, 0, 1)
    servers[1].script = hangs
    try:
        for _ in range(4):
            assert caller.call(b"x", timeout=30) == b"reply"
        late = [each for each in servers[1].arrivals if each.request == b"x"]
        assert {each.attempt % 2 for each in late} == {1}
    finally:
        release.set()


def test_a_named_session_stays_at_one_target(
    connect: Connect, servers: list[ProtocolServer]
) -> None:
    """And so does a client whose server names no store."""
    for each in servers:
        each.store = 0
    caller = connect(targets(servers))
    for _ in range(6):
        assert caller.call(b"x", timeout=20) == b"reply"
    assert arrived(servers) == [6, 0, 0]
    assert [len(each.renewals) for each in servers] == [0, 0, 0]


def test_the_silent_connection_of_any_target_is_replaced(connect: Connect) -> None:
    """Though calls to the others are answered, and renew the lease (DESIGN §5)."""
    silence = RetryPolicy(initial_backoff_s=0.01, max_backoff_s=0.05, silence_s=0.3)
    with (
        ProtocolServer(answer, store=STORE) as first,
        ProtocolServer(answer, store=STORE) as second,
        closing(ForgettingProxy(second.port)) as proxy,
    ):
        caller = connect([first.target, proxy.target], retry=silence)
        joined(caller, 0, 1)
        proxy.swallow()
        for _ in range(4):
            assert caller.call(b"x", timeout=60) == b"reply"
        assert proxy.connections > 1
        assert caller.session.client_id == 1001


@pytest.mark.usefixtures("soon")
def test_a_target_that_answers_nothing_is_left_out(connect: Connect) -> None:
    """By a request for a sign of life: no call's deadline is needed, or tells (DESIGN §5)."""
    silence = RetryPolicy(initial_backoff_s=0.01, max_backoff_s=0.05, silence_s=0.3)
    release = threading.Event()

    def hangs(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        release.wait(60)
        return answer(arrival, context)

    def waits(context: grpc.ServicerContext) -> None:
        release.wait(60)

    with (
        ProtocolServer(answer, store=STORE) as first,
        ProtocolServer(answer, store=STORE) as second,
    ):
        caller = connect(targets([first, second]), retry=silence)
        joined(caller, 0, 1)
        second.script, second.on_renew = hangs, waits
        try:
            started = [caller.start(b"x") for _ in range(2)]
            until(lambda: used(caller) == (0,), "the silent one is left out")
            before = len(second.arrivals)
            for _ in range(4):
                assert caller.call(b"x", timeout=20) == b"reply"
            assert len(second.arrivals) == before
        finally:
            release.set()
        for each in started:
            caller.result(each)
        joined(caller, 0, 1)


def test_attempts_after_the_first_keep_their_target() -> None:
    """So do the RPCs of one batch; a hedge has another one (DESIGN §5)."""
    router = Router(Targets(["a:1", "b:1", "c:1"]), lambda: 0.0)
    router.granted(STORE, 0.0)
    for calls in (0, 2):
        for each in router.due(calls):
            router.tried(each, Trial.YES)

    def sent(route: Route, number: int, *under_way: int) -> int:
        planned = route.next(under_way)
        with route.attempt(number, (*under_way, number)):
            assert router.choose() == planned, "whose token was taken"
        return planned

    first, second = Route(router, 0.0), Route(router, 0.0)
    went = sent(first, 1)
    assert sent(second, 1) != went
    assert [sent(first, number) for number in (2, 3, 4)] == [went] * 3
    hedge = sent(first, 5, 4)
    assert hedge != went
    first.timed_out(5)
    assert sent(first, 6) != hedge
    resumed = Route(router, 0.0)
    resumed.goes(1, 2)
    assert resumed.at(1) == 2
    assert sent(resumed, 2) == 2


def test_a_hedge_goes_to_another_target_over_the_store(
    connect: Connect, servers: list[ProtocolServer]
) -> None:
    """Not to a stranger, which would refuse it."""

    def refusing(context: grpc.ServicerContext) -> None:
        refuse(context, "STORE_MISMATCH")

    servers[1].on_renew = refusing
    caller = connect(targets(servers), hedge_after=0.05)
    joined(caller, 0, 2)
    # A slow call may have been hedged before any of the others was known.
    before = len(servers[1].arrivals)
    met = threading.Barrier(2)

    def both(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        met.wait(30)
        return answer(arrival, context)

    servers[0].script = servers[2].script = both
    assert caller.call(b"x", timeout=60) == b"reply"
    assert len(servers[1].arrivals) == before


def test_when_all_are_strangers_the_last_ones_word_counts(
    connect: Connect, servers: list[ProtocolServer]
) -> None:
    """The whole deployment came back over another store: as with one target (DESIGN §3)."""
    caller = connect(targets(servers[:2]), retry=FAST)
    joined(caller, 0, 1)

    def stranger(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        refuse(context, "STORE_MISMATCH", None, OTHER)
        raise AssertionError

    for each in servers:
        each.script = stranger
    with pytest.raises(rifl.CallError) as failed:
        caller.call(b"x", timeout=20)
    assert failed.value.outcome is Outcome.UNKNOWN
    assert failed.value.reason == "STORE_MISMATCH"
