"""One call step by step: the generators of rifl.core._serving.serving (DESIGN §4, steps 2 to 7)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import pytest

from rifl._stores.held_answers import HeldAnswers
from rifl.core import (
    CompletionRecord,
    Draining,
    InProgress,
    NotLeader,
    NotRecorded,
    Outcome,
    OutcomeUnknown,
    PayloadMismatch,
    RecordPending,
    RiflError,
    StaleRpc,
    StoreUnavailable,
    Verdict,
    WindowExceeded,
)
from rifl.core._serving.admission import Fetch, Wait, admit
from rifl.core._serving.answer import Answer, HandlerResult, bounded, refusal_record
from rifl.core._serving.client_table import Attempt, ClientEntry, Decision
from rifl.core._serving.later import Later
from rifl.core._serving.policy import Kind, MethodPolicy
from rifl.core._serving.serving import execute, resolve, serve
from rifl.core._shared.call import Call

UNAVAILABLE, FAILED_PRECONDITION, UNKNOWN, TOO_LARGE, ABORTED = 14, 9, 2, 8, 10
PENDING_METHODS = ("claim", "start", "committed", "finish", "adopt", "abandon")


class Due(Later):
    """A result the driver hands in; nobody waits for it here."""

    def __init__(self, method: str) -> None:
        self.method = method

    def wait(self) -> Any:
        raise NotImplementedError

    def __await__(self) -> Generator[Any, Any, Any]:
        raise NotImplementedError


class Full(HeldAnswers):
    """Has no room."""

    def __init__(self) -> None:
        super().__init__()
        self.active = True

    def admit(self, attempt: Attempt) -> None:
        raise WindowExceeded("full")

    def note(self, attempt: Attempt, size: int) -> None:
        pass


@dataclass
class Script:
    """A store that notes what it is asked and says what the test wrote down.

    ``pending`` names the methods that make the rules wait, ``failing`` what
    waiting for them, or calling them, raises.
    """

    decides_here = True
    decisions: list[Decision] = field(default_factory=list)
    standing: CompletionRecord | None = None
    pending: frozenset[str] = frozenset()
    failing: dict[str, Exception] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    kept: list[CompletionRecord] = field(default_factory=list)
    forgetful: bool = False
    room: bool = True

    def claim(self, call: Call, policy: MethodPolicy) -> Any:
        decision = self.decisions.pop(0)
        return self._say("claim", decision)

    def start(self, attempt: Attempt) -> Any:
        return self._say("start", None)

    def committed(self, attempt: Attempt) -> Any:
        return self._say("committed", self.standing)

    def finish(self, attempt: Attempt, record: CompletionRecord) -> Any:
        self.kept.append(record)
        return self._say("finish", None)

    @property
    def held(self) -> HeldAnswers:
        return HeldAnswers() if self.room else Full()

    def may_have_run(self, attempt: Attempt) -> bool:
        return self.forgetful

    def adopt(self, attempt: Attempt, record: CompletionRecord) -> Any:
        self.kept.append(record)
        return self._say("adopt", None)

    def abandon(self, attempt: Attempt) -> Any:
        return self._say("abandon", None)

    def _say(self, method: str, result: Any) -> Any:
        self.asked.append(method)
        if method in self.pending:
            self.result = result
            return Due(method)
        if method in self.failing:
            raise self.failing[method]
        return result


def drive(
    store: Script,
    steps: Generator[Any, Any, Any],
    result: HandlerResult | None = None,
    waits: tuple[bool, ...] = (),
    fetched: tuple[CompletionRecord | None, ...] = (),
) -> Any:
    """Do what a shell does; what is waited for is noted as well."""
    waiting, fetching = list(waits), list(fetched)
    value: Any = None
    error: Exception | None = None
    try:
        while True:
            step = steps.send(value) if error is None else steps.throw(error)
            value, error = None, None
            if isinstance(step, Attempt):
                store.asked.append("run")
                value = result
            elif isinstance(step, Wait):
                store.asked.append("wait")
                value = waiting.pop(0)
            elif isinstance(step, Fetch):
                store.asked.append("fetch")
                value = fetching.pop(0)
            else:
                assert isinstance(step, Due)
                store.asked.append(f"({step.method})")
                error = store.failing.get(step.method)
                value = store.result
    except StopIteration as stop:
        return stop.value


def attempt_of(policy: MethodPolicy, max_response_bytes: int = 0) -> Attempt:
    call = Call(7, b"", 1, method="/p.S/M")
    call.max_response_bytes = max_response_bytes
    return Attempt(ClientEntry(7, 512), call, policy)


def policy_of(kind: Kind, *unrecorded: int) -> MethodPolicy:
    return MethodPolicy(kind=kind, unrecorded=frozenset(unrecorded), max_response_bytes=100)


RETURNED = HandlerResult(CompletionRecord(0, "", b"answer"))
REJECTED = HandlerResult(CompletionRecord(FAILED_PRECONDITION, "no funds"))
BUSY = HandlerResult(CompletionRecord(UNAVAILABLE, "try later"))
RAISED = HandlerResult(CompletionRecord(UNKNOWN, "Exception calling application"), raised=True)
UNDONE = RAISED._replace(undone=True)
CANCELLED = RAISED._replace(broken="the handler was cancelled")
HUGE = HandlerResult(CompletionRecord(0, "", b"x" * 101))
COMMITTED = CompletionRecord(0, "", b"committed")

WITHOUT_OWN_RECORD = [
    # result, asked of the store after the run, outcome
    (RETURNED, ["finish"], Outcome.EXECUTED),
    (REJECTED, ["finish"], Outcome.EXECUTED),
    (RAISED, ["finish"], Outcome.EXECUTED),
    (BUSY, ["abandon"], Outcome.NOT_EXECUTED),
]


@pytest.mark.parametrize("pending", [frozenset(), frozenset(PENDING_METHODS)])
@pytest.mark.parametrize("kind", [Kind.PLAIN, Kind.IDEMPOTENT])
@pytest.mark.parametrize(("result", "after", "outcome"), WITHOUT_OWN_RECORD)
def test_plain_and_idempotent_record_what_the_handler_decided(
    kind: Kind,
    pending: frozenset[str],
    result: HandlerResult,
    after: list[str],
    outcome: Outcome,
) -> None:
    """Start before the handler, the record before the answer; a code that means "nothing
    happened" is not recorded (DESIGN §4, steps 6 and 7)."""
    store = Script(pending=pending)
    steps = execute(store, attempt_of(policy_of(kind, UNAVAILABLE, UNKNOWN)))
    assert drive(store, steps, result) == Answer(result.record, outcome)
    asked = [name for name in store.asked if not name.startswith("(")]
    assert asked == ["start", "run", *after]
    if pending:
        # Each is waited for before the next step.
        assert store.asked == ["start", "(start)", "run", after[0], f"({after[0]})"]
    assert store.kept == ([result.record] if after == ["finish"] else [])


ATOMIC = [
    # standing record, result, asked after the run, answer
    (COMMITTED, RETURNED, ["committed", "adopt"], Answer(COMMITTED, Outcome.EXECUTED)),
    (COMMITTED, REJECTED, ["committed", "adopt"], Answer(COMMITTED, Outcome.EXECUTED)),
    (COMMITTED, RAISED, ["committed", "adopt"], Answer(COMMITTED, Outcome.EXECUTED)),
    (COMMITTED, BUSY, ["committed", "adopt"], Answer(COMMITTED, Outcome.EXECUTED)),
    (None, UNDONE, ["committed", "abandon"], Answer(RAISED.record, Outcome.NOT_EXECUTED)),
    (None, RAISED, ["committed", "abandon"], Answer(RAISED.record, Outcome.UNKNOWN)),
    (None, CANCELLED, ["committed", "abandon"], Answer(RAISED.record, Outcome.UNKNOWN)),
    (None, BUSY, ["committed", "abandon"], Answer(BUSY.record, Outcome.NOT_EXECUTED)),
    (None, REJECTED, ["committed", "finish"], Answer(REJECTED.record, Outcome.EXECUTED)),
]


@pytest.mark.parametrize("pending", [frozenset(), frozenset(PENDING_METHODS)])
@pytest.mark.parametrize(("standing", "result", "after", "answer"), ATOMIC)
def test_atomic_answers_what_its_transaction_committed(
    pending: frozenset[str],
    standing: CompletionRecord | None,
    result: HandlerResult,
    after: list[str],
    answer: Answer,
) -> None:
    """A committed record stands whatever the handler did afterwards; raising without one is
    not executed where the transaction is known to be undone, else unknown (DESIGN §4)."""
    store = Script(standing=standing, pending=pending)
    steps = execute(store, attempt_of(policy_of(Kind.ATOMIC, UNAVAILABLE)))
    assert drive(store, steps, result) == answer
    assert [name for name in store.asked if name[0] != "("] == ["start", "run", *after]
    if pending:
        assert store.asked[-4:] == [name for it in after for name in (it, f"({it})")]
    assert store.kept == ([] if "abandon" in after else [answer.record])


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_standing_record_keeps_its_outcome(outcome: Outcome) -> None:
    """What was recorded about the call is what is told (DESIGN §4, step 7)."""
    store = Script(standing=COMMITTED._replace(outcome=outcome))
    answer = drive(store, execute(store, attempt_of(policy_of(Kind.ATOMIC))), RETURNED)
    assert answer.outcome is outcome


@pytest.mark.parametrize("pending", [frozenset(), frozenset(PENDING_METHODS)])
def test_atomic_success_without_a_record_is_the_handlers_bug(pending: frozenset[str]) -> None:
    """What it committed without one nobody knows: unknown, for good (DESIGN §4)."""
    store = Script(pending=pending)
    answer = drive(store, execute(store, attempt_of(policy_of(Kind.ATOMIC))), RETURNED)
    assert [name for name in store.asked if name[0] != "("][-2:] == ["committed", "finish"]
    assert (answer.record.reason, answer.outcome) == ("NOT_RECORDED", Outcome.UNKNOWN)
    assert "rifl.record" in answer.record.details
    assert store.kept == [answer.record]
    assert NotRecorded.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("pending", [frozenset(), frozenset(PENDING_METHODS)])
def test_a_block_of_ours_that_left_no_record_was_rolled_back(pending: frozenset[str]) -> None:
    """Of a shared transaction we know: not executed, and new again (DESIGN §4)."""
    store, attempt = Script(pending=pending), attempt_of(policy_of(Kind.ATOMIC))
    attempt.undone = True
    answer = drive(store, execute(store, attempt), RETURNED)
    assert [name for name in store.asked if name[0] != "("][-2:] == ["committed", "abandon"]
    assert (answer.record.reason, answer.outcome) == ("NOT_RECORDED", Outcome.NOT_EXECUTED)


@pytest.mark.parametrize(
    ("kind", "after", "told"),
    [
        (Kind.PLAIN, "finish", "OUTCOME_UNKNOWN"),
        (Kind.IDEMPOTENT, "abandon", ""),
        (Kind.ATOMIC, "abandon", ""),
    ],
)
def test_a_cancelled_handler_has_not_answered(kind: Kind, after: str, told: str) -> None:
    """Plain: what it did is not known, for good; the others run again (DESIGN §4)."""
    store, attempt = Script(), attempt_of(policy_of(kind))
    answer = drive(store, execute(store, attempt), CANCELLED)
    assert (answer.outcome, answer.record.reason) == (Outcome.UNKNOWN, told)
    assert store.asked[-1] == after
    assert attempt.ran is (after == "abandon")


@pytest.mark.parametrize("pending", [frozenset(), frozenset(["committed"])])
@pytest.mark.parametrize("error", [OutcomeUnknown("sealed"), KeyError("bug")], ids=type)
def test_no_failing_read_after_a_commit_leaves_the_call_running(
    error: Exception, pending: frozenset[str]
) -> None:
    """Kept running it would be waited for for ever, and its client never dropped (DESIGN §4)."""
    store = Script(pending=pending, failing={"committed": error})
    attempt = attempt_of(policy_of(Kind.ATOMIC))
    with pytest.raises(type(error)):
        drive(store, execute(store, attempt), RETURNED)
    # One that cannot be unsealed now stands all the same.
    ended = "adopt" if isinstance(error, OutcomeUnknown) else "abandon"
    assert [name for name in store.asked if name[0] != "("][-2:] == ["committed", ended]


@pytest.mark.parametrize("kind", [Kind.PLAIN, Kind.IDEMPOTENT])
def test_an_answer_too_large_is_recorded_as_that(kind: Kind) -> None:
    """The error is what is recorded, told and replayed: it was executed (DESIGN §3)."""
    store = Script()
    answer = drive(store, execute(store, attempt_of(policy_of(kind))), HUGE)
    assert store.kept == [answer.record]
    assert (answer.record.code, answer.record.reason) == (TOO_LARGE, "RESPONSE_TOO_LARGE")
    assert (answer.record.outcome, answer.record.response) == (Outcome.EXECUTED, None)
    assert answer.outcome is Outcome.EXECUTED


def test_the_limit_is_the_smaller_of_method_and_client() -> None:
    """The policy's bound, and the client's receive limit, 4 MiB unless it says (DESIGN §3)."""

    def fits(size: int, policy_limit: int, client_limit: int) -> bool:
        record = CompletionRecord(response=bytes(size))
        policy = MethodPolicy(max_response_bytes=policy_limit)
        kept = bounded(record, attempt_of(policy, client_limit))
        return kept is record

    assert fits(100, 100, 0)
    assert not fits(101, 100, 0)
    assert fits(50, 100, 50)
    assert not fits(51, 100, 50)
    assert fits(4 << 20, 8 << 20, 0)
    assert not fits((4 << 20) + 1, 8 << 20, 0)
    assert fits((4 << 20) + 1, 8 << 20, 8 << 20)
    assert bounded(CompletionRecord(response=None), attempt_of(policy_of(Kind.PLAIN))).code == 0


BEFORE = [
    StoreUnavailable("disk full"),
    # A group's leader may be deposed or drained while it waits for its log.
    NotLeader("elsewhere"),
    Draining("stopping"),
    # A bug of the store's: nothing ran either.
    KeyError("bug"),
]


@pytest.mark.parametrize("pending", [frozenset(), frozenset(["start"])])
@pytest.mark.parametrize("error", BEFORE, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", list(Kind))
def test_an_error_before_the_handler_leaves_the_call_new(
    kind: Kind, error: Exception, pending: frozenset[str]
) -> None:
    """Nothing ran, so the attempt is abandoned and its waiters decide again; a claim that
    nobody holds would keep every duplicate waiting (DESIGN §4, step 6)."""
    store = Script(pending=pending, failing={"start": error})
    with pytest.raises(type(error)):
        drive(store, execute(store, attempt_of(policy_of(kind))), RETURNED)
    assert [name for name in store.asked if name[0] != "("] == ["start", "abandon"]


@pytest.mark.parametrize("kind", [Kind.PLAIN, Kind.IDEMPOTENT])
def test_a_record_that_cannot_be_made_durable_is_pending(kind: Kind) -> None:
    """The handler ran: unknown to the caller, and not abandoned, since the store goes on
    trying (DESIGN §3, RECORD_PENDING)."""
    store = Script(pending=frozenset(["finish"]), failing={"finish": RecordPending("disk full")})
    with pytest.raises(RecordPending):
        drive(store, execute(store, attempt_of(policy_of(kind))), RETURNED)
    assert store.asked == ["start", "run", "finish", "(finish)"]


@pytest.mark.parametrize(
    ("kind", "result"), [(Kind.PLAIN, BUSY), (Kind.ATOMIC, RAISED), (Kind.ATOMIC, UNDONE)]
)
def test_an_answer_waits_until_the_call_is_new_durably(kind: Kind, result: HandlerResult) -> None:
    """ "Not executed" is said only once the intent is gone; until then the outcome is pending
    (DESIGN §4, "an attempt that ended without a record")."""
    store = Script(pending=frozenset(["abandon"]), failing={"abandon": RecordPending("full")})
    with pytest.raises(RecordPending):
        drive(store, execute(store, attempt_of(policy_of(kind, UNAVAILABLE))), result)
    assert store.asked[-2:] == ["abandon", "(abandon)"]


@pytest.mark.parametrize(("kind", "result"), [(Kind.IDEMPOTENT, BUSY), (Kind.ATOMIC, UNDONE)])
@pytest.mark.parametrize("known_by", ["take-over", "memory"])
def test_that_nothing_happened_speaks_of_one_run(
    kind: Kind, result: HandlerResult, known_by: str
) -> None:
    """Where an earlier run may have had an effect, the call is not *not executed* (DESIGN §3)."""
    attempt = attempt_of(policy_of(kind, UNAVAILABLE))
    if known_by == "take-over":
        attempt.ran = True
    else:
        attempt.entry.note_run(attempt.call.identity)
    store = Script()
    answer = drive(store, execute(store, attempt), result)
    assert (answer.record, answer.outcome) == (result.record, Outcome.UNKNOWN)
    assert attempt.ran


@pytest.mark.parametrize(
    ("kind", "result", "outcome"),
    [
        (Kind.IDEMPOTENT, BUSY, Outcome.UNKNOWN),
        # Nothing of it stands without its record.
        (Kind.ATOMIC, UNDONE, Outcome.NOT_EXECUTED),
        # There would be an intent.
        (Kind.PLAIN, BUSY, Outcome.NOT_EXECUTED),
    ],
)
def test_nothing_happened_is_not_said_of_a_run_that_left_no_trace(
    kind: Kind, result: HandlerResult, outcome: Outcome
) -> None:
    """Before a crash an idempotent call may have run; that is the store's to know (DESIGN §3)."""
    attempt = attempt_of(policy_of(kind, UNAVAILABLE))
    store = Script(forgetful=True)
    assert drive(store, execute(store, attempt), result).outcome is outcome
    # The store knows: it is nothing to remember of this call.
    assert not attempt.ran


@pytest.mark.parametrize(("client_id", "full"), [(7, False), (-7, True)])
def test_a_key_without_room_may_have_run(client_id: int, full: bool) -> None:
    """Of a namespace whatever may have run is bounded, too, and said to be unknown (§3, §9)."""
    attempt = attempt_of(policy_of(Kind.IDEMPOTENT))
    attempt.call.client_id = client_id
    store = Script(forgetful=True, room=False)
    if not full:
        assert drive(store, execute(store, attempt), RETURNED).outcome is Outcome.EXECUTED
        return
    with pytest.raises(WindowExceeded) as refused:
        drive(store, execute(store, attempt), RETURNED)
    assert refused.value.outcome is Outcome.UNKNOWN
    assert store.asked == ["abandon"]


@pytest.mark.parametrize("pending", [frozenset(), frozenset(["committed"])])
def test_a_commit_nobody_can_read_is_told_as_unknown(pending: frozenset[str]) -> None:
    """The attempt ends; what it left is met by the next one (DESIGN §3, RECORD_PENDING)."""
    store = Script(pending=pending, failing={"committed": RecordPending("disk gone")})
    with pytest.raises(RecordPending):
        drive(store, execute(store, attempt_of(policy_of(Kind.ATOMIC))), RETURNED)
    assert [name for name in store.asked if name[0] != "("][-2:] == ["committed", "abandon"]


CALL = Call(7, b"", 1, fingerprint=b"f")
PLAIN = policy_of(Kind.PLAIN)


@pytest.mark.parametrize("pending", [frozenset(), frozenset(["claim"])])
@pytest.mark.parametrize(
    ("recorded", "told"),
    [
        (Outcome.EXECUTED, Outcome.REPLAYED),
        (Outcome.UNKNOWN, Outcome.UNKNOWN),
        (Outcome.NOT_EXECUTED, Outcome.NOT_EXECUTED),
    ],
)
def test_a_completed_call_is_replayed(
    recorded: Outcome, told: Outcome, pending: frozenset[str]
) -> None:
    """The record is the answer; only what was executed is called replayed (DESIGN §3)."""
    record = COMMITTED._replace(outcome=recorded)
    for decision, fetched in (
        (Decision(Verdict.COMPLETED, None, record), ()),
        (Decision(Verdict.COMPLETED, None, None), (record,)),
    ):
        store = Script([decision], pending=pending)
        assert drive(store, admit(store, CALL, PLAIN), fetched=fetched) == Answer(record, told)
        assert "run" not in store.asked


def test_a_record_that_went_is_decided_about_again() -> None:
    """Acknowledged between decision and read, the call is what it is now (DESIGN §4)."""
    store = Script([Decision(Verdict.COMPLETED), Decision(Verdict.STALE)])
    with pytest.raises(StaleRpc):
        drive(store, admit(store, CALL, PLAIN), fetched=(None,))
    assert store.asked == ["claim", "fetch", "claim"]


def test_a_stale_call_is_refused() -> None:
    """STALE is STALE_RPC, and nothing runs (DESIGN §4, step 3)."""
    store = Script([Decision(Verdict.STALE)])
    with pytest.raises(StaleRpc):
        drive(store, serve(store, CALL, PLAIN), RETURNED)
    assert store.asked == ["claim"]


def test_a_duplicate_waits_and_then_decides_again() -> None:
    """After the first arrival's attempt ended the duplicate starts from step 2: a record is
    replayed, and without one it runs (DESIGN §4)."""
    running = Decision(Verdict.IN_PROGRESS, attempt_of(PLAIN))
    completed = Decision(Verdict.COMPLETED, None, COMMITTED)
    store = Script([running, completed])
    answer = drive(store, serve(store, CALL, PLAIN), RETURNED, waits=(True,))
    assert answer == Answer(COMMITTED, Outcome.REPLAYED)
    assert store.asked == ["claim", "wait", "claim"]

    mine = attempt_of(PLAIN)
    store = Script([running, running, Decision(Verdict.NEW, mine)])
    answer = drive(store, serve(store, CALL, PLAIN), RETURNED, waits=(True, True))
    assert answer == Answer(RETURNED.record, Outcome.EXECUTED)
    assert store.asked == ["claim", "wait", "claim", "wait", "claim", "start", "run", "finish"]


def test_a_duplicate_that_waited_too_long_is_in_progress() -> None:
    """At its deadline, or with too many waiting, it is ABORTED and nothing ran (DESIGN §3)."""
    store = Script([Decision(Verdict.IN_PROGRESS, attempt_of(PLAIN))])
    with pytest.raises(InProgress):
        drive(store, serve(store, CALL, PLAIN), RETURNED, waits=(False,))
    assert store.asked == ["claim", "wait"]


def test_resolving_a_call_that_never_came_is_final() -> None:
    """It is recorded as not executed, without running anything, so that it never runs
    (rifl.proto, Outcomes)."""
    store = Script([Decision(Verdict.NEW, attempt_of(PLAIN))], pending=frozenset(["finish"]))
    answer = drive(store, resolve(store, CALL, PLAIN))
    assert store.asked == ["claim", "finish", "(finish)"]
    assert store.kept == [answer.record]
    assert (answer.outcome, answer.record.outcome) == (Outcome.NOT_EXECUTED,) * 2
    assert (answer.record.code, answer.record.reason) == (ABORTED, "NOT_EXECUTED")


def test_resolving_waits_for_a_running_call() -> None:
    """The record of a running call is what is told, and is not written (rifl.proto)."""
    store = Script(
        [
            Decision(Verdict.IN_PROGRESS, attempt_of(PLAIN)),
            Decision(Verdict.COMPLETED, None, COMMITTED),
        ]
    )
    answer = drive(store, resolve(store, CALL, PLAIN), waits=(True,))
    assert answer == Answer(COMMITTED, Outcome.REPLAYED)
    assert store.kept == []


def test_a_resolution_that_cannot_be_recorded_claims_nothing() -> None:
    """The call may still arrive and run (DESIGN §4, an attempt without a record)."""
    store = Script(
        [Decision(Verdict.NEW, attempt_of(PLAIN))],
        pending=frozenset(["finish"]),
        failing={"finish": StoreUnavailable("disk full")},
    )
    with pytest.raises(StoreUnavailable):
        drive(store, resolve(store, CALL, PLAIN))
    assert store.asked == ["claim", "finish", "(finish)", "abandon"]


def test_a_pending_resolution_is_not_taken_back() -> None:
    """A record the store goes on writing must not be overtaken by a run (DESIGN §3)."""
    store = Script(
        [Decision(Verdict.NEW, attempt_of(PLAIN))],
        pending=frozenset(["finish"]),
        failing={"finish": RecordPending("disk full")},
    )
    with pytest.raises(RecordPending):
        drive(store, resolve(store, CALL, PLAIN))
    assert store.asked == ["claim", "finish", "(finish)"]


@pytest.mark.parametrize("error", [RecordPending("x"), StaleRpc("x"), InProgress("x")])
def test_claims_that_are_refused_are_refusals(error: RiflError) -> None:
    """What the decision raises reaches the caller, and nothing runs (DESIGN §4)."""
    store = Script([Decision(Verdict.STALE)], failing={"claim": error})
    with pytest.raises(type(error)):
        drive(store, serve(store, CALL, PLAIN), RETURNED)
    assert store.asked == ["claim"]


def test_a_refusal_becomes_a_record_with_its_reason() -> None:
    """Verdicts of ours are recorded with reason, code and outcome (DESIGN §4)."""
    record = refusal_record(OutcomeUnknown("why"))
    assert (record.code, record.details, record.reason) == (ABORTED, "why", "OUTCOME_UNKNOWN")
    assert (record.outcome, record.response) == (Outcome.UNKNOWN, None)


def test_a_payload_that_becomes_known_while_a_duplicate_waits_is_compared() -> None:
    """A waiter gets the answer of its own payload, or PAYLOAD_MISMATCH (DESIGN §4, step 2)."""
    running = attempt_of(policy_of(Kind.PLAIN))
    running.call.fingerprint, running.record = b"half", COMMITTED
    late = Call(7, b"", 1, method="/p.S/M", fingerprint=b"whole")
    store = Script(decisions=[Decision(Verdict.IN_PROGRESS, running)])
    with pytest.raises(PayloadMismatch):
        drive(store, admit(store, late, running.policy), waits=(True,))


FENCED = InProgress("taken over")


def test_a_stream_that_was_taken_over_is_answered_by_what_stands() -> None:
    """Its arrival admits the call again, and does not run it again (DESIGN §4, step 7)."""
    attempt = attempt_of(policy_of(Kind.IDEMPOTENT))
    attempt.call.streamed = True
    store = Script([Decision(Verdict.COMPLETED, None, COMMITTED)], failing={"finish": FENCED})
    answer = drive(store, execute(store, attempt), RETURNED)
    assert answer == Answer(COMMITTED, Outcome.REPLAYED)
    assert store.asked == ["start", "run", "finish", "claim"]


def test_a_stream_that_is_new_again_is_left_to_the_next_attempt() -> None:
    """Its messages are read, or sent: this arrival cannot run it (DESIGN §4)."""
    attempt, again = (attempt_of(policy_of(Kind.IDEMPOTENT)) for _ in range(2))
    attempt.call.streamed = again.call.streamed = True
    store = Script([Decision(Verdict.NEW, again)], failing={"finish": FENCED})
    with pytest.raises(InProgress, match="once more"):
        drive(store, execute(store, attempt), RETURNED)
    assert store.asked == ["start", "run", "finish", "claim", "abandon"]


@pytest.mark.parametrize("kind", [Kind.PLAIN, Kind.IDEMPOTENT])
def test_a_stream_that_broke_off_under_its_handler_may_have_run(kind: Kind) -> None:
    """Plain: unknown for good. Idempotent: it runs again, and is said to have run (DESIGN §1)."""
    attempt = attempt_of(policy_of(kind))
    store = Script()
    answer = drive(store, execute(store, attempt), RAISED._replace(broken=True))
    assert answer.outcome is Outcome.UNKNOWN
    assert store.asked[2:] == [{Kind.PLAIN: "finish", Kind.IDEMPOTENT: "abandon"}[kind]]
    assert attempt.ran is (kind is Kind.IDEMPOTENT)
