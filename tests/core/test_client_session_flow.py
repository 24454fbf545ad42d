"""One call's flow, by a clock of the test's (DESIGN §3)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rifl.core import Outcome
from rifl.core._calling.answer import AttemptAnswer
from rifl.core._calling.call_flow import Action, CallFlow
from rifl.core._calling.client_lease import LeaseGrant
from rifl.core._calling.client_session import ClientSession, LeaseStep
from rifl.core._calling.invocation import Invocation
from rifl.core._calling.retry import RetryPolicy

METHOD = "/p.S/M"
LOST = AttemptAnswer("UNAVAILABLE")
DRAINING = AttemptAnswer("UNAVAILABLE", Outcome.NOT_EXECUTED, "DRAINING")
REPLAYED = AttemptAnswer("OK", Outcome.REPLAYED)


def session(window: int = 512, **policy: object) -> ClientSession:
    made = ClientSession(window=window, retry=RetryPolicy(**policy))  # type: ignore[arg-type]
    made.granted(
        LeaseGrant(
            client_id=7,
            token=b"t",
            term_s=1000.0,
            deduplicated=("*",),
            not_deduplicated=("/p.S/Read",),
        ),
        0.0,
    )
    return made


def test_retries_until_an_answer() -> None:
    """Attempts follow each other after their backoff until one is answered (DESIGN §3)."""
    flow = CallFlow(session(), Invocation(METHOD, 0.0))
    assert flow.start(0.0) is Action.SEND
    assert flow.answered(1, LOST, 1.0, 0.5) is Action.WAIT
    assert flow.wake_at == 1.025
    assert flow.woken(1.0) is Action.WAIT
    assert flow.woken(1.025) is Action.SEND
    assert flow.call is not None
    assert flow.call.attempt == 2
    assert flow.answered(2, REPLAYED, 2.0, 0.5) is Action.RETURN
    assert flow.outcome is Outcome.REPLAYED


def test_the_callers_deadline_ends_it_unknown_and_resolvable() -> None:
    """At the deadline the outcome is unknown and stays resolvable (DESIGN §4)."""
    made = session()
    flow = CallFlow(made, Invocation(METHOD, 0.0, deadline=5.0))
    assert flow.start(0.0) is Action.SEND
    assert flow.attempt_timeout_s == 5.0
    assert flow.answered(1, AttemptAnswer("DEADLINE_EXCEEDED"), 4.999, 0.5) is Action.RAISE
    assert (flow.outcome, flow.code) == (Outcome.UNKNOWN, "")
    assert flow.call is not None
    assert made.unresolved(flow.call.rpc_id, 5.0) is flow.call


def test_a_timed_out_attempt_is_not_the_end() -> None:
    """An attempt's own time-out is retried within the deadline."""
    flow = CallFlow(session(attempt_timeout_s=1.0), Invocation(METHOD, 0.0, deadline=5.0))
    flow.start(0.0)
    assert (flow.attempt_timeout_s, flow.wake_at) == (5.0, 1.0)
    assert flow.woken(1.0) is Action.CUT
    assert flow.attempts_under_way == [1]
    assert flow.answered(1, AttemptAnswer("DEADLINE_EXCEEDED"), 1.0, 0.5) is Action.WAIT
    assert flow.wake_at == 1.025
    assert flow.woken(1.025) is Action.SEND


def test_a_time_limit_on_the_way_is_not_the_callers_deadline() -> None:
    """A proxy, an interceptor or a service config ended it: it is sent again (DESIGN §3)."""
    flow = CallFlow(session(), Invocation(METHOD, 0.0, deadline=5.0))
    flow.start(0.0)
    assert flow.answered(1, AttemptAnswer("DEADLINE_EXCEEDED"), 1.0, 0.5) is Action.WAIT
    assert flow.wake_at == 1.025
    assert flow.woken(1.025) is Action.SEND
    assert flow.answered(2, REPLAYED, 2.0, 0.5) is Action.RETURN


def test_the_header_says_for_how_long_a_call_is_tried() -> None:
    """If it is longer than the attempt: the server goes on with it meanwhile."""
    for elapsed_s, deadline, try_ms in (
        (60.0, 5.0, 5000),
        (60.0, 1.0, 0),
        (60.0, None, 60_000),
        (None, None, 2**32 - 1),
    ):
        flow = CallFlow(
            session(attempt_timeout_s=1.0, max_elapsed_s=elapsed_s),
            Invocation(METHOD, 0.0, deadline=deadline),
        )
        flow.start(0.0)
        assert flow.call is not None
        assert flow.call.try_ms == try_ms


def test_retries_run_out() -> None:
    """The last status is raised; a copy of what was refused may still run (DESIGN §3)."""
    for answers in ([DRAINING, DRAINING], [LOST, DRAINING]):
        made = session(max_attempts=2)
        flow = CallFlow(made, Invocation(METHOD, 0.0))
        flow.start(0.0)
        assert flow.answered(1, answers[0], 0.0, 0.0) is Action.WAIT
        assert flow.woken(0.0) is Action.SEND
        assert flow.answered(2, answers[1], 0.0, 0.0) is Action.RAISE
        assert flow.outcome is Outcome.UNKNOWN
        assert not made.idle


def test_without_deadline_retries_are_bounded_in_time() -> None:
    """Calls without a deadline are retried for ``max_elapsed_s``."""
    flow = CallFlow(session(max_elapsed_s=10.0), Invocation(METHOD, 0.0))
    flow.start(0.0)
    assert flow.answered(1, LOST, 11.0, 0.5) is Action.RAISE


def test_waits_for_a_lease_then_for_the_window() -> None:
    """Nothing is sent without a lease or without room; time over means not executed."""
    made = ClientSession(window=1)
    flow = CallFlow(made, Invocation(METHOD, 0.0, deadline=5.0))
    assert flow.start(0.0) is Action.LEASE
    assert flow.wake_at == 5.0
    made.granted(LeaseGrant(client_id=7, token=b"t", term_s=60.0, deduplicated=("*",)), 0.0)
    other = made.begin((0, 0), 1.0)
    assert other is not None
    assert flow.woken(1.0) is Action.WINDOW
    assert flow.woken(5.0) is Action.RAISE
    assert (flow.outcome, flow.reason) == (Outcome.NOT_EXECUTED, "WINDOW_EXCEEDED")
    assert flow.code == "DEADLINE_EXCEEDED"


def test_without_a_deadline_a_full_window_is_what_is_told() -> None:
    """A call that may not wait any longer, and had no deadline, says what it waited for (§3)."""
    made = session(window=1, max_elapsed_s=5.0)
    made.begin((0, 0), 0.0)
    flow = CallFlow(made, Invocation(METHOD, 0.0))
    assert flow.start(0.0) is Action.WINDOW
    assert flow.woken(5.0) is Action.RAISE
    assert (flow.code, flow.outcome) == ("RESOURCE_EXHAUSTED", Outcome.NOT_EXECUTED)


def test_the_pauses_before_the_deadline_are_shortened() -> None:
    """A pause that would outlast the call is cut to half of what is left: the last attempt is
    made a moment before the deadline, and nobody is given up with time to spare (DESIGN §3)."""
    flow = CallFlow(session(initial_backoff_s=2.0), Invocation(METHOD, 0.0, deadline=5.0))
    assert flow.start(0.0) is Action.SEND
    now, sent = 0.0, []
    action = flow.answered(1, LOST, now, 0.999)
    while action is Action.WAIT:
        assert flow.wake_at is not None
        now = flow.wake_at
        assert flow.woken(now) is Action.SEND
        sent.append(round(5.0 - now, 2))
        action = flow.answered(flow.attempts_sent, LOST, now, 0.999)
    assert action is Action.RAISE
    assert sent == [3.0, 1.0, 0.5, 0.25, 0.13, 0.06, 0.03, 0.02]


def test_what_the_server_told_is_not_shortened() -> None:
    """RetryInfo is the least of a pause, however little time is left (DESIGN §3)."""
    told = AttemptAnswer("ABORTED", Outcome.UNKNOWN, "IN_PROGRESS", retry_after_s=0.4)
    flow = CallFlow(session(initial_backoff_s=2.0), Invocation(METHOD, 0.0, deadline=1.0))
    flow.start(0.0)
    assert flow.answered(1, told, 0.0, 0.999) is Action.WAIT
    assert flow.wake_at == 0.5
    flow.woken(0.5)
    assert flow.answered(2, told, 0.5, 0.999) is Action.WAIT
    assert flow.wake_at == 0.9
    flow.woken(0.9)
    assert flow.answered(3, told, 0.9, 0.999) is Action.RAISE


def test_a_lease_is_asked_for_while_a_call_waits_for_it() -> None:
    """Its pauses are shortened, too: a server that is back in time is found (DESIGN §5)."""
    made = ClientSession(retry=RetryPolicy(initial_backoff_s=2.0))
    made.lease_failed(0.0, 0.999)
    assert made.lease_step(0.1, wanted=True)[1] == 1.998
    assert made.lease_step(0.1, wanted=True, ends_at=1.0) == (LeaseStep.WAIT, 0.5)
    assert made.lease_step(0.5, wanted=True, ends_at=1.0)[0] is LeaseStep.GRANT
    made.lease_failed(0.92, 0.999)
    assert made.lease_step(0.95, wanted=True, ends_at=1.0)[1] == 0.92 + 2.0 * 0.999


def test_a_method_that_is_not_deduplicated_is_sent_once() -> None:
    """No identity, no retry (DESIGN §5: the SDK retries no others)."""
    flow = CallFlow(session(), Invocation("/p.S/Read", 0.0))
    assert flow.start(0.0) is Action.SEND
    assert flow.call is None
    assert flow.answered(1, LOST, 1.0, 0.5) is Action.RAISE
    assert flow.outcome is Outcome.UNKNOWN


def test_a_hedge_is_the_same_call_and_the_first_final_answer_wins() -> None:
    """A hedge has the identity and a higher attempt; refusals wait for it."""
    flow = CallFlow(session(), Invocation(METHOD, 0.0, hedge_after_s=1.0))
    assert flow.start(0.0) is Action.SEND
    assert flow.wake_at == 1.0
    assert flow.woken(1.0) is Action.SEND
    assert flow.call is not None
    assert flow.call.attempt == 2
    assert flow.answered(1, DRAINING, 2.0, 0.5) is Action.WAIT
    assert flow.attempts_under_way == [2]
    assert flow.answered(2, REPLAYED, 2.0, 0.5) is Action.RETURN


def test_only_a_later_attempts_answer_needs_its_label() -> None:
    """The first attempt's answer is plain, even when it comes after a hedge (DESIGN §3)."""
    for attempt, action in ((1, Action.RETURN), (2, Action.RAISE)):
        flow = CallFlow(session(), Invocation(METHOD, 0.0, hedge_after_s=1.0))
        flow.start(0.0)
        flow.woken(1.0)
        assert flow.answered(attempt, AttemptAnswer("OK"), 2.0, 0.5) is action


def test_a_hedged_call_takes_no_new_identity() -> None:
    """A hedged call refused for its lease is raised as unknown (DESIGN §3)."""
    flow = CallFlow(session(), Invocation(METHOD, 0.0, hedge_after_s=1.0))
    flow.start(0.0)
    flow.woken(1.0)
    expired = AttemptAnswer("FAILED_PRECONDITION", Outcome.UNKNOWN, "LEASE_EXPIRED")
    assert flow.answered(2, expired, 2.0, 0.5) is Action.WAIT
    assert flow.answered(1, expired, 2.0, 0.5) is Action.RAISE
    assert (flow.outcome, flow.reason) == (Outcome.UNKNOWN, "LEASE_EXPIRED")


EXPIRED = AttemptAnswer("FAILED_PRECONDITION", Outcome.UNKNOWN, "LEASE_EXPIRED")


def test_a_new_identity_waits_for_its_lease() -> None:
    """After LEASE_EXPIRED on attempt 1 the call begins anew (DESIGN §3)."""
    made = session()
    flow = CallFlow(made, Invocation(METHOD, 0.0))
    flow.start(0.0)
    assert flow.answered(1, EXPIRED, 1.0, 0.5) is Action.WAIT
    assert flow.wake_at == 1.025
    assert flow.woken(1.025) is Action.LEASE
    made.granted(LeaseGrant(client_id=8, token=b"t", term_s=60.0, deduplicated=("*",)), 1.0)
    assert flow.woken(2.0) is Action.SEND
    assert flow.call is not None
    assert (flow.call.rpc_id.client_id, flow.call.attempt) == (8, 1)


def test_new_identities_back_off_and_are_counted() -> None:
    """Where each is refused as expired, too, the pauses grow, and the attempts end (DESIGN §3)."""
    made = session(max_attempts=4)
    flow = CallFlow(made, Invocation(METHOD, 0.0))
    now, pauses = 0.0, []
    assert flow.start(now) is Action.SEND
    for client_id in (8, 9, 10):
        assert flow.answered(1, EXPIRED, now, 0.5) is Action.WAIT
        assert flow.wake_at is not None
        pauses.append(round(flow.wake_at - now, 3))
        now = flow.wake_at
        assert flow.woken(now) is Action.LEASE
        made.granted(
            LeaseGrant(client_id=client_id, token=b"t", term_s=60.0, deduplicated=("*",)), now
        )
        assert flow.woken(now) is Action.SEND
    assert flow.answered(1, EXPIRED, now, 0.5) is Action.RAISE
    assert (flow.outcome, flow.reason) == (Outcome.NOT_EXECUTED, "LEASE_EXPIRED")
    assert pauses == [0.025, 0.05, 0.1]
    assert flow.attempts_sent == 4
    assert made.unresolved_until() is None


def test_a_key_that_was_not_sent_is_unknown() -> None:
    """Another process may have run it, and nobody asked the store (DESIGN §3)."""
    for key, outcome in ((None, Outcome.NOT_EXECUTED), (b"k", Outcome.UNKNOWN)):
        made = ClientSession(named=key is not None)
        flow = CallFlow(made, Invocation(METHOD, 0.0, deadline=1.0, key=key))
        assert flow.start(0.0) is Action.LEASE
        assert flow.woken(1.0) is Action.RAISE
        assert (flow.outcome, flow.code) == (outcome, "DEADLINE_EXCEEDED")
        refused = CallFlow(made, Invocation(METHOD, 0.0, key=key))
        assert refused.start(0.0) is Action.LEASE
        answer = AttemptAnswer("FAILED_PRECONDITION", Outcome.UNKNOWN, "SESSION_CLOSED")
        assert refused.lease_refused(answer, 1.0) is Action.RAISE
        assert refused.outcome is outcome


def test_an_answered_hedge_is_acknowledged_a_while_later() -> None:
    """Its other attempt may be on its way, and is no bug of the caller's (DESIGN §3)."""
    made = session()
    flow = CallFlow(made, Invocation(METHOD, 0.0, hedge_after_s=0.1))
    assert flow.start(0.0) is Action.SEND
    assert flow.woken(0.1) is Action.SEND
    assert flow.answered(1, AttemptAnswer("OK"), 0.2, 0.5) is Action.RETURN
    soon, later = made.begin((1, 2), 0.3), made.begin((1, 2), 1.3)
    assert soon is not None
    assert later is not None
    assert (soon.seq, soon.first_incomplete) == (2, 1)
    assert (later.seq, later.first_incomplete) == (3, 2)
    made.complete(soon)
    made.complete(later)
    assert made.idle


def test_what_is_acknowledged_later_is_bounded_and_gives_way() -> None:
    """At most a quarter of the window, none where it is full or the lease is lost (DESIGN §3)."""
    made = session(window=8)

    def hedged(now: float) -> None:
        flow = CallFlow(made, Invocation(METHOD, now, hedge_after_s=0.1))
        flow.start(now)
        flow.woken(now + 0.1)
        assert flow.answered(2, REPLAYED, now + 0.2, 0.5) is Action.RETURN

    lease = made.lease
    assert lease is not None
    for turn in range(5):
        hedged(float(turn) / 10)
    assert lease.tracker.incomplete == 2
    assert made.idle
    calls = [made.begin((1, 2), 0.7) for _ in range(8)]
    assert all(call is not None for call in calls)
    assert not made.idle
    made.lost(lease)
    assert [loss.outstanding for loss in made.take_losses()] == [8]


ANSWERS = st.sampled_from(
    [
        LOST,
        DRAINING,
        REPLAYED,
        AttemptAnswer("OK"),
        AttemptAnswer("NOT_FOUND"),
        AttemptAnswer("NOT_FOUND", Outcome.EXECUTED),
        AttemptAnswer("DEADLINE_EXCEEDED"),
        AttemptAnswer("FAILED_PRECONDITION", Outcome.UNKNOWN, "LEASE_EXPIRED"),
        AttemptAnswer("ABORTED", Outcome.UNKNOWN, "OUTCOME_UNKNOWN"),
        AttemptAnswer("ABORTED", Outcome.UNKNOWN, "IN_PROGRESS", retry_after_s=0.5),
        AttemptAnswer("RESOURCE_EXHAUSTED", Outcome.NOT_EXECUTED, "WINDOW_EXCEEDED"),
    ]
)


@given(
    script=st.lists(st.tuples(st.booleans(), ANSWERS, st.floats(0.0, 2.0)), max_size=30),
    deadline=st.none() | st.floats(0.5, 10.0),
    hedge=st.none() | st.floats(0.1, 1.0),
    limit=st.none() | st.floats(0.1, 1.0),
)
@settings(max_examples=300, deadline=None)
def test_every_flow_ends_truthfully(
    script: list[tuple[bool, AttemptAnswer, float]],
    deadline: float | None,
    hedge: float | None,
    limit: float | None,
) -> None:
    """Never NOT_EXECUTED after an attempt that may have run; identity and stamp never change
    between attempts of one id; nothing stays outstanding (DESIGN §3)."""
    made = session(max_elapsed_s=10.0, attempt_timeout_s=limit, budget_tokens=1.0)
    flow = CallFlow(
        made,
        Invocation(METHOD, 0.0, deadline=deadline, hedge_after_s=hedge, stamp=(1, 2)),
    )
    now, may_have_run, client_id = 0.0, False, 7
    action = flow.start(now)
    identity = None
    for prefer_timer, answer, step in script:
        if action in (Action.RETURN, Action.RAISE):
            break
        now += step
        if action is Action.LEASE:
            client_id += 1
            made.granted(
                LeaseGrant(client_id=client_id, token=b"t", term_s=1000.0, deduplicated=("*",)), now
            )
            action, identity = flow.woken(now), None
            continue
        if flow.call is not None and identity is not None and flow.call.attempt > 1:
            assert (flow.call.rpc_id, flow.call.stamp) == identity
        if flow.call is not None:
            identity = (flow.call.rpc_id, flow.call.stamp)
        assert len(flow.attempts_under_way) <= 2
        if flow.attempts_under_way and not (prefer_timer and flow.wake_at is not None):
            lost_lease = answer.reason == "LEASE_EXPIRED"
            first = flow.call is not None and flow.call.attempt == 1 and not may_have_run
            if answer.outcome is not Outcome.NOT_EXECUTED and not (lost_lease and first):
                may_have_run = True
            action = flow.answered(flow.attempts_under_way[0], answer, now, 0.5)
        else:
            now = max(now, flow.wake_at or now)
            action = flow.woken(now)
    if action not in (Action.RETURN, Action.RAISE):
        may_have_run = may_have_run or bool(flow.attempts_under_way)
        flow.cancelled(now)
    if flow.outcome is Outcome.NOT_EXECUTED:
        assert not may_have_run
    assert made.unresolved_until() is None or flow.outcome is Outcome.UNKNOWN
