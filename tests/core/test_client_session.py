"""The client's session against RIFL §3.2 and DESIGN §3 to §5."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rifl._wire.header import parse_call
from rifl._wire.packed_header import encode_header
from rifl.core import Outcome, RpcId, WindowExceeded
from rifl.core._calling.answer import AttemptAnswer, Step
from rifl.core._calling.client_lease import LeaseGrant, MethodPatterns
from rifl.core._calling.client_session import ClientSession, LeaseStep
from rifl.core._calling.issued_call import IssuedCall
from rifl.core._calling.retry import RetryPolicy
from rifl.core._serving.result_tracker import ResultTracker
from rifl.core._shared import errors
from rifl.core._shared.call import MAX_RANGES

METHOD = "/p.S/M"


def grant(client_id: int = 7, term_s: float = 30.0, window: int = 512) -> LeaseGrant:
    return LeaseGrant(
        client_id=client_id, token=b"t" * 32, term_s=term_s, deduplicated=("*",), window=window
    )


def session(**kwargs: object) -> ClientSession:
    made = ClientSession(**kwargs)  # type: ignore[arg-type]
    made.granted(grant(), 0.0)
    return made


def issue(made: ClientSession, now: float = 1.0) -> IssuedCall:
    call = made.begin((11, 22), now)
    assert call is not None
    return call


class TestTable:
    """DESIGN §3: what the SDK does with each answer."""

    @pytest.mark.parametrize(
        ("code", "label", "reason", "outcome"),
        [
            ("INVALID_ARGUMENT", "NOT_EXECUTED", "BAD_HEADER", "NOT_EXECUTED"),
            ("INVALID_ARGUMENT", "NOT_EXECUTED", "PAYLOAD_MISMATCH", "NOT_EXECUTED"),
            ("FAILED_PRECONDITION", "UNKNOWN", "STALE_RPC", "UNKNOWN"),
            ("FAILED_PRECONDITION", "UNKNOWN", "SESSION_CLOSED", "UNKNOWN"),
            ("PERMISSION_DENIED", "NOT_EXECUTED", "NOT_YOURS", "NOT_EXECUTED"),
            ("ABORTED", "UNKNOWN", "OUTCOME_UNKNOWN", "UNKNOWN"),
            ("ABORTED", "NOT_EXECUTED", "NOT_EXECUTED", "NOT_EXECUTED"),
            ("RESOURCE_EXHAUSTED", "EXECUTED", "RESPONSE_TOO_LARGE", "EXECUTED"),
            ("RESOURCE_EXHAUSTED", "NOT_EXECUTED", "BATCH_TOO_LARGE", "NOT_EXECUTED"),
            ("INTERNAL", "NOT_EXECUTED", "NOT_RECORDED", "NOT_EXECUTED"),
            ("UNAVAILABLE", "EXECUTED", "", "EXECUTED"),
            ("UNAVAILABLE", "REPLAYED", "", "REPLAYED"),
            ("UNAVAILABLE", "NOT_EXECUTED", "", "NOT_EXECUTED"),
            ("NOT_FOUND", None, "", "UNKNOWN"),
        ],
    )
    def test_raised_at_once(self, code: str, label: str | None, reason: str, outcome: str) -> None:
        """Refusals and handlers' own errors are raised with their outcome (DESIGN §3)."""
        made = session()
        answer = AttemptAnswer(code, Outcome[label] if label else None, reason)
        decision = made.answered(issue(made), answer, 1.0, 0.5)
        assert decision.step is Step.RAISE
        assert decision.outcome is Outcome[outcome]
        assert decision.reason == reason

    @pytest.mark.parametrize(
        ("code", "label", "reason"),
        [
            ("ABORTED", Outcome.UNKNOWN, "IN_PROGRESS"),
            ("ABORTED", Outcome.UNKNOWN, "RECORD_PENDING"),
            ("ABORTED", Outcome.UNKNOWN, "DEPOSED"),
            ("UNAVAILABLE", Outcome.NOT_EXECUTED, "DRAINING"),
            ("UNAVAILABLE", Outcome.NOT_EXECUTED, "STORE_UNAVAILABLE"),
            ("UNAVAILABLE", Outcome.NOT_EXECUTED, "NOT_LEADER"),
            ("RESOURCE_EXHAUSTED", Outcome.NOT_EXECUTED, "WINDOW_EXCEEDED"),
            *(
                (code, None, "")
                for code in (
                    "UNAVAILABLE",
                    "INTERNAL",
                    "UNKNOWN",
                    "CANCELLED",
                    "DEADLINE_EXCEEDED",
                    "RESOURCE_EXHAUSTED",
                    "ABORTED",
                    "DATA_LOSS",
                )
            ),
        ],
    )
    def test_retried(self, code: str, label: Outcome | None, reason: str) -> None:
        """These are retried under the same identity; a label of that moment is no promise: a
        copy of the attempt may meet another one, and run (DESIGN §3)."""
        made = session()
        decision = made.answered(issue(made), AttemptAnswer(code, label, reason), 1.0, 0.5)
        assert decision.step is Step.RETRY
        assert (decision.outcome, decision.resolvable) == (Outcome.UNKNOWN, True)

    def test_no_room_for_a_key_is_final(self) -> None:
        """Keys are never acknowledged, so the next attempt would find no more (DESIGN §3, §4)."""
        made = session()
        call = made.begin_keyed(b"k", (1, 2), 1.0)
        assert call is not None
        full = AttemptAnswer("RESOURCE_EXHAUSTED", Outcome.NOT_EXECUTED, "WINDOW_EXCEEDED")
        decision = made.answered(call, full, 1.0, 0.5)
        assert (decision.step, decision.outcome, decision.reason) == (
            Step.RAISE,
            Outcome.NOT_EXECUTED,
            "WINDOW_EXCEEDED",
        )

    @pytest.mark.parametrize("key", [None, b"k"])
    @pytest.mark.parametrize("label", [Outcome.NOT_EXECUTED, Outcome.UNKNOWN])
    def test_not_executed_means_will_not(self, key: bytes | None, label: Outcome) -> None:
        """Of a key it takes the store's word, since others send it, too (DESIGN §3)."""
        for reason, promised in (
            ("STORE_UNAVAILABLE", False),
            ("DRAINING", False),
            ("NOT_LEADER", False),
            ("NOT_YOURS", key is None),
            ("PAYLOAD_MISMATCH", True),
            ("", True),
        ):
            if label is Outcome.UNKNOWN and (promised or key is None):
                continue
            made = session()
            call = issue(made) if key is None else made.begin_keyed(key, (1, 2), 1.0)
            assert call is not None
            decision = made.answered(call, AttemptAnswer("UNAVAILABLE", label, reason), 1.0, 0.0)
            assert decision.outcome is (Outcome.NOT_EXECUTED if promised else Outcome.UNKNOWN)
            assert not call.may_have_run

    def test_not_executed_only_if_every_attempt_said_so(self) -> None:
        """One attempt that may have run makes the call unknown for good (DESIGN §3)."""
        made = session()
        call = issue(made)
        mismatch = AttemptAnswer("INVALID_ARGUMENT", Outcome.NOT_EXECUTED, "PAYLOAD_MISMATCH")
        assert made.answered(call, mismatch, 1.0, 0.0).outcome is Outcome.NOT_EXECUTED
        made.next_attempt(call)
        assert (
            made.answered(call, AttemptAnswer("UNAVAILABLE"), 1.0, 0.0).outcome is Outcome.UNKNOWN
        )
        made.next_attempt(call)
        assert made.answered(call, mismatch, 1.0, 0.0).outcome is Outcome.UNKNOWN
        made.next_attempt(call)
        resolved = AttemptAnswer("ABORTED", Outcome.NOT_EXECUTED, "NOT_EXECUTED")
        assert made.answered(call, resolved, 1.0, 0.0).outcome is Outcome.NOT_EXECUTED

    @pytest.mark.parametrize("key", [None, b"k"])
    def test_no_refusal_makes_a_call_that_may_have_run_not_executed(
        self, key: bytes | None
    ) -> None:
        """Whatever a later attempt is refused with, only a record says that none ran (§3)."""
        refusals = [
            error
            for error in vars(errors).values()
            if isinstance(error, type)
            and issubclass(error, errors.RiflError)
            and error.outcome is Outcome.NOT_EXECUTED
            and error is not errors.NotExecuted
        ]
        assert {errors.NotYours, errors.RequestTooLarge, errors.ForkedProcess} < set(refusals)
        for refusal in refusals:
            made = session()
            call = issue(made) if key is None else made.begin_keyed(key, (1, 2), 1.0)
            assert call is not None
            assert made.answered(call, AttemptAnswer("UNAVAILABLE"), 1.0, 0.0).step is Step.RETRY
            made.next_attempt(call)
            answer = AttemptAnswer(refusal.code_name, Outcome.NOT_EXECUTED, refusal.reason)
            assert made.answered(call, answer, 1.0, 0.0).outcome is Outcome.UNKNOWN, refusal

    def test_what_a_witness_may_hold_is_unknown_for_good(self) -> None:
        """A group's leader that will not say that it never runs leaves it so (DESIGN §7.13)."""
        for refused in ("NOT_LEADER", "DRAINING", "STORE_UNAVAILABLE", "WINDOW_EXCEEDED"):
            made = session()
            call = issue(made)
            # Witnesses have this attempt, and the next leader will; not the attempt after it.
            answer = AttemptAnswer("UNAVAILABLE", Outcome.UNKNOWN, refused)
            assert made.answered(call, answer, 1.0, 0.0).step is Step.RETRY
            made.next_attempt(call)
            definite = AttemptAnswer(
                "RESOURCE_EXHAUSTED", Outcome.NOT_EXECUTED, "REQUEST_TOO_LARGE"
            )
            assert made.answered(call, definite, 1.0, 0.0).outcome is Outcome.UNKNOWN

    def test_unlabelled_later_answers_come_from_no_wrapped_server(self) -> None:
        """A later attempt's answer without an outcome is NOT_WRAPPED (DESIGN §3)."""
        for answer in (AttemptAnswer("OK"), AttemptAnswer("NOT_FOUND")):
            made = session()
            call = issue(made)
            made.next_attempt(call)
            decision = made.answered(call, answer, 1.0, 0.0)
            assert (decision.step, decision.outcome, decision.reason) == (
                Step.RAISE,
                Outcome.UNKNOWN,
                "NOT_WRAPPED",
            )
        assert (
            made.answered(call, AttemptAnswer("OK", Outcome.REPLAYED), 1.0, 0.0).step is Step.RETURN
        )

    def test_what_cannot_be_received_is_not_asked_for_again(self) -> None:
        """An answer over the local limit ends the call at once."""
        made = session()
        answer = AttemptAnswer("RESOURCE_EXHAUSTED", permanent=True)
        assert made.answered(issue(made), answer, 1.0, 0.0).step is Step.RAISE

    def test_pushback_sets_the_time_or_forbids_the_retry(self) -> None:
        """The server's pushback is the least wait; negative means never (DESIGN §3)."""
        made = session()
        later = AttemptAnswer("UNAVAILABLE", Outcome.NOT_EXECUTED, "DRAINING", retry_after_s=3.0)
        assert made.answered(issue(made), later, 1.0, 0.9).after_s == 3.0
        soon = later._replace(retry_after_s=0.05)
        call = issue(made)
        pauses = []
        for _ in range(6):
            pauses.append(made.answered(call, soon, 1.0, 0.9).after_s)
            made.next_attempt(call)
        assert pauses[0] == 0.05
        assert pauses[-1] > 1.0
        never = later._replace(retry_after_s=-1.0)
        assert made.answered(issue(made), never, 1.0, 0.9).step is Step.RAISE


class TestLease:
    """RIFL §3.3 and DESIGN §5."""

    EXPIRED = AttemptAnswer("FAILED_PRECONDITION", Outcome.UNKNOWN, "LEASE_EXPIRED")

    def test_first_attempt_takes_a_new_identity(self) -> None:
        """LEASE_EXPIRED on attempt 1 is resent under a new id, and only then (DESIGN §3)."""
        made = session()
        call = issue(made)
        assert made.answered(call, self.EXPIRED, 1.0, 0.0).step is Step.NEW_IDENTITY
        assert made.lease is None
        made.granted(grant(8), 2.0)
        again = issue(made, 2.0)
        assert again.rpc_id == RpcId(8, 1)

    @pytest.mark.parametrize("why", ["attempt", "grpc", "previous"])
    def test_it_does_not_where_it_may_have_been_sent_before(self, why: str) -> None:
        """A second attempt, gRPC's retries, or its count at the server forbid it (DESIGN §3)."""
        made = session(grpc_retries=why == "grpc")
        call = issue(made)
        answer = self.EXPIRED
        if why == "attempt":
            made.next_attempt(call)
        if why == "previous":
            answer = answer._replace(info={"previous_attempts": "1"})
        decision = made.answered(call, answer, 1.0, 0.0)
        assert (decision.step, decision.outcome) == (Step.RAISE, Outcome.UNKNOWN)
        assert made.lease is None

    def test_calls_keep_their_old_identity(self) -> None:
        """Calls outstanding when the lease is lost keep id and stamp (DESIGN §4)."""
        made = session()
        old, learner = issue(made), issue(made)
        made.answered(learner, self.EXPIRED, 1.0, 0.0)
        assert [(loss.client_id, loss.outstanding) for loss in made.take_losses()] == [(7, 1)]
        assert made.take_losses() == []
        made.granted(grant(8), 2.0)
        made.next_attempt(old)
        header = parse_call(encode_header(old), METHOD, b"")
        assert (header.client_id, header.seq, header.attempt) == (7, 1, 2)
        assert header.stamp == (11, 22)
        made.complete(old)
        assert made.lease is not None
        assert made.lease.tracker.incomplete == 0

    def test_term_counts_from_sending(self) -> None:
        """A term counts from when its accepted request was sent, never less (RIFL §3.3)."""
        made = session()
        assert made.lease is not None
        made.complete(issue(made, 5.0), 5.0)
        assert made.lease.expires_at == 35.0
        made.complete(issue(made, 6.0), 4.0)
        assert made.lease.expires_at == 35.0
        assert made.begin((0, 0), 35.0) is None

    def test_steps(self) -> None:
        """Idle clients renew after a third of the term, busy ones do not (DESIGN §5)."""
        made = ClientSession()
        assert made.lease_step(0.0, wanted=False) == (LeaseStep.WAIT, None)
        assert made.lease_step(0.0, wanted=True)[0] is LeaseStep.GRANT
        made.lease_failed(0.0, 0.5)
        step, at = made.lease_step(0.0, wanted=True)
        assert step is LeaseStep.WAIT
        assert at is not None
        assert made.lease_step(at, wanted=True)[0] is LeaseStep.GRANT
        lease = made.granted(grant(), 0.0)
        assert made.lease_step(1.0, wanted=False) == (LeaseStep.WAIT, 10.0)
        made.complete(issue(made, 8.0), 8.0)
        assert made.lease_step(10.0, wanted=False) == (LeaseStep.WAIT, 18.0)
        assert made.lease_step(18.0, wanted=False)[0] is LeaseStep.RENEW
        # Past its end, a wanted lease is renewed before it is given up.
        assert made.lease_step(50.0, wanted=True)[0] is LeaseStep.RENEW
        made.renewed(lease, 30.0, b"rotated", 50.0)
        assert made.usable(51.0)
        assert parse_call(encode_header(issue(made, 51.0)), METHOD, b"").token == b"rotated"

    def test_a_busy_client_asks_for_its_token_once_a_term(self) -> None:
        """Its calls renew the lease, and bring no token of a new secret (DESIGN §5)."""
        made = session()
        for second in range(1, 30):
            made.complete(issue(made, second), second)
            assert made.lease_step(second, wanted=False)[0] is LeaseStep.WAIT
        assert made.lease_step(30.0, wanted=False)[0] is LeaseStep.RENEW

    def test_patterns(self) -> None:
        """A method is deduplicated if a pattern names it and no exception does (DESIGN §5)."""
        every = MethodPatterns(("*",), ("/p.S/Read", "/q.T/*"))
        assert "/p.S/Write" in every
        assert "/p.S/Read" not in every
        assert "/q.T/Any" not in every
        some = MethodPatterns(("/p.S/*", "/q.T/One"))
        assert "/p.S/Any" in some
        assert "/q.T/One" in some
        assert "/q.T/Two" not in some


class TestUnresolved:
    """DESIGN §4: calls whose caller was told unknown."""

    def test_bounded_in_time_and_number(self) -> None:
        """They stay for their time and number, then are acknowledged (DESIGN §4)."""
        made = session(unresolved_s=60.0, unresolved_limit=2)
        calls = [issue(made, 1.0) for _ in range(3)]
        for at, call in enumerate(calls):
            made.abandon(call, 1.0 + at)
        assert made.unresolved(calls[0].rpc_id, 5.0) is None
        assert made.unresolved(calls[1].rpc_id, 5.0) is calls[1]
        assert made.unresolved_until() == 62.0
        assert made.unresolved(calls[1].rpc_id, 62.0) is None
        assert made.unresolved(calls[2].rpc_id, 62.0) is calls[2]
        made.resolved(calls[2].rpc_id)
        assert made.idle

    def test_they_leave_room_in_a_small_window(self) -> None:
        """Unresolved calls take at most half the window (DESIGN §4)."""
        made = ClientSession(unresolved_limit=64)
        made.granted(grant(window=4), 0.0)
        for _ in range(10):
            made.abandon(issue(made), 1.0)
        assert made.lease is not None
        assert made.lease.tracker.incomplete == 2

    def test_many_ranges_take_turns(self) -> None:
        """More than 64 ranges are all acknowledged within a few headers (DESIGN §4)."""
        made = session()
        calls = [issue(made) for _ in range(400)]
        for call in calls[1::2]:
            made.complete(call)
        server = ResultTracker(window=512)
        for _ in range(5):
            call = issue(made)
            assert len(call.completed) <= MAX_RANGES
            header = parse_call(encode_header(call), METHOD, b"")
            server.begin(call.seq, header.first_incomplete, header.completed)
            made.complete(call)
        assert all(server.begin(call.seq, 1, ()).name == "STALE" for call in calls[1::2])


def test_retry_policy_is_checked_and_jitters_fully() -> None:
    """Backoff grows, is capped, and jitter takes a part of it; nonsense is refused (DESIGN §9)."""
    policy = RetryPolicy(initial_backoff_s=0.1, max_backoff_s=0.5)
    assert [policy.backoff_s(n, 1.0) for n in (1, 2, 3, 4, 10_000)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    assert policy.backoff_s(3, 0.0) == 0.0
    for wrong in ({"initial_backoff_s": 3.0}, {"multiplier": 0.5}, {"max_attempts": 0}):
        with pytest.raises(ValueError, match="must"):
            RetryPolicy(**wrong)  # type: ignore[arg-type]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["issue", "complete", "abandon", "retry", "expire", "lost", "resolve", "tick"]
        ),
        st.integers(0, 1000),
    ),
    max_size=120,
)


@given(events=EVENTS, window=st.integers(1, 12), limit=st.integers(0, 5))
@settings(max_examples=300, deadline=None)
def test_any_interleaving_keeps_the_invariants(
    events: list[tuple[str, int]], window: int, limit: int
) -> None:
    """Whatever happens, headers are valid, windows respected, and nothing incomplete is
    acknowledged (RIFL §3.2; invariants 1 to 4 of ClientSession)."""
    made = ClientSession(window=window, unresolved_limit=limit, unresolved_s=5.0)
    client_id, now = 1, 0.0
    made.granted(grant(client_id), now)
    live: list[IssuedCall] = []
    left: list[IssuedCall] = []
    seen: set[RpcId] = set()

    def check(call: IssuedCall) -> None:
        header = parse_call(encode_header(call), METHOD, b"")
        assert header.rpc_id == call.rpc_id
        waiting = [*live, *left] if made.unresolved_until() is not None else live
        for other in waiting:
            if other.lease is not call.lease or (
                other in left and made.unresolved(other.rpc_id, now) is None
            ):
                continue
            assert header.first_incomplete <= other.seq
            assert not any(first <= other.seq <= last for first, last in header.completed)

    for event, number in events:
        if event == "issue":
            try:
                call = made.begin((number, number), now)
            except WindowExceeded:
                assert made.lease is not None
                assert made.lease.tracker.incomplete == window
                continue
            if call is None:
                assert made.lease is None or now >= made.lease.expires_at
                client_id += 1
                made.granted(grant(client_id), now)
                continue
            assert call.rpc_id not in seen
            seen.add(call.rpc_id)
            live.append(call)
            check(call)
            assert call.lease.tracker.incomplete <= window
        elif event == "tick":
            now += number / 300
        elif event == "lost" and made.lease is not None:
            made.lost(made.lease)
        elif event == "expire":
            now += 31.0
        elif event == "resolve" and left:
            made.resolved(left.pop(number % len(left)).rpc_id)
        elif live and event in ("complete", "abandon", "retry"):
            call = live[number % len(live)]
            if event == "retry":
                made.next_attempt(call)
                check(call)
            else:
                live.remove(call)
                if event == "complete":
                    made.complete(call, now)
                else:
                    made.abandon(call, now)
                    left.append(call)
        by_lease: dict[int, int] = {}
        for call in live:
            by_lease[call.lease.client_id] = by_lease.get(call.lease.client_id, 0) + 1
            assert call.lease.tracker.first_incomplete <= call.seq
        assert all(count <= window for count in by_lease.values())
