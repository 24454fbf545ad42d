"""A batch at the client, by a clock that is told: rifl.core._calling.batch_flow (DESIGN §3, §4)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rifl.core import Outcome
from rifl.core._calling.answer import AttemptAnswer
from rifl.core._calling.batch_flow import BatchAction, BatchFlow, BatchLimits, BatchRpc
from rifl.core._calling.client_lease import LeaseGrant
from rifl.core._calling.client_session import ClientSession
from rifl.core._calling.invocation import Invocation
from rifl.core._calling.retry import RetryPolicy

METHOD = "/t.Rows/Put"
DONE = AttemptAnswer("OK", Outcome.EXECUTED)
RUNNING = AttemptAnswer("ABORTED", Outcome.UNKNOWN, "IN_PROGRESS", retry_after_s=0.5)
TOO_LARGE = AttemptAnswer("RESOURCE_EXHAUSTED", Outcome.NOT_EXECUTED, "BATCH_TOO_LARGE")
EXPIRED = AttemptAnswer("FAILED_PRECONDITION", Outcome.UNKNOWN, "LEASE_EXPIRED")
BROKEN = AttemptAnswer("UNAVAILABLE")


def session(
    *, window: int = 100, methods: str = "*", leased: bool = True, named: bool = False
) -> ClientSession:
    found = ClientSession(window=window, retry=RetryPolicy(max_elapsed_s=60.0), named=named)
    if leased:
        grant(found, methods=methods)
    return found


def grant(found: ClientSession, client_id: int = 7, methods: str = "*") -> None:
    grant = LeaseGrant(client_id=client_id, token=b"t", term_s=1000.0, deduplicated=(methods,))
    found.granted(grant, 0.0)


def flow(found: ClientSession, keys: Any, *, limits: BatchLimits | None = None, **more: Any) -> Any:
    keys = list(keys)
    sizes = more.pop("sizes", [10] * len(keys))
    given_ = {"started_at": 0.0, "stamp": (5, 6), **more}
    invocation = Invocation(METHOD, **given_)
    return BatchFlow(found, invocation, sizes, keys, limits or BatchLimits())


def sent(batch: Any, now: float) -> BatchRpc:
    assert batch.step(now) is BatchAction.SEND
    rpc: BatchRpc = batch.rpc
    return rpc


def answer(batch: Any, *answers: AttemptAnswer, now: float = 1.0) -> None:
    batch.answered([(each, each) for each in answers], now, 0.5)


def test_only_what_has_no_answer_is_sent_again_under_its_identity() -> None:
    """Same identities and stamp, attempt 2, no sooner than the server says (DESIGN §3)."""
    batch = flow(session(), [b"a", None, b"c"])
    first = sent(batch, 0.0)
    answer(batch, DONE, RUNNING, RUNNING)
    assert batch.step(1.0) is BatchAction.PAUSE
    assert batch.wake_at == 1.5
    again = sent(batch, 1.5)
    assert again.items == [1, 2]
    assert again.calls == first.calls[1:]
    assert (first.attempt, again.attempt) == (1, 2)
    assert {call.stamp for call in again.calls} == {(5, 6)}
    answer(batch, DONE, AttemptAnswer("OK", Outcome.REPLAYED), now=2.0)
    assert batch.step(2.0) is BatchAction.DONE
    assert [ended.outcome.value for ended in batch.ended] == ["executed", "executed", "replayed"]
    assert batch.attempts == [1, 2, 2]


def test_a_batch_too_large_is_halved_and_stays_so() -> None:
    """BATCH_TOO_LARGE is about the batch: smaller ones follow, in order (DESIGN §3)."""
    limits = BatchLimits(max_items=8)
    batch = flow(session(), [None] * 20, limits=limits)
    assert sent(batch, 0.0).items == list(range(8))
    batch.refused(TOO_LARGE, None, 0.0, 0.5)
    assert sent(batch, 0.0).items == [0, 1, 2, 3]
    batch.refused(
        AttemptAnswer("RESOURCE_EXHAUSTED", permanent=True, too_long=True), None, 0.0, 0.5
    )
    seen = []
    while batch.step(0.1) is BatchAction.SEND:
        seen += batch.rpc.items
        assert len(batch.rpc.items) == 2
        answer(batch, *[DONE] * 2)
    assert seen == list(range(20))
    assert limits.max_items == 2
    other = flow(session(), [None] * 4, limits=limits)
    assert len(sent(other, 0.0).items) == 2


def test_one_call_that_is_too_large_ends() -> None:
    """There is nothing left to split; the others go on (DESIGN §3)."""
    batch = flow(session(), [None, None], limits=BatchLimits(max_bytes=50), sizes=[100, 10])
    assert sent(batch, 0.0).items == [0]
    batch.refused(TOO_LARGE, "status", 0.0, 0.5)
    assert (batch.ended[0].reason, batch.ended[0].outcome) == (
        "BATCH_TOO_LARGE",
        Outcome.NOT_EXECUTED,
    )
    assert sent(batch, 0.0).items == [1]


def test_an_answer_too_large_for_the_others_is_fetched_alone() -> None:
    """An item that did not fit the reply is asked for again at once (DESIGN §4)."""
    batch = flow(session(), [b"a", b"b"])
    sent(batch, 0.0)
    answer(batch, DONE, TOO_LARGE._replace(outcome=Outcome.UNKNOWN))
    assert sent(batch, 1.0).items == [1]
    answer(batch, TOO_LARGE._replace(outcome=Outcome.UNKNOWN))
    assert batch.step(1.0) is BatchAction.DONE
    assert batch.ended[1].outcome is Outcome.UNKNOWN


def test_a_client_that_expired_is_replaced_for_sequenced_first_attempts_only() -> None:
    """New id where nothing can have run; keyed ones cannot tell (DESIGN §3)."""
    found = session()
    batch = flow(found, [None, b"k", None])
    sent(batch, 0.0)
    answer(batch, EXPIRED, EXPIRED, DONE)
    assert batch.ended[1].reason == "LEASE_EXPIRED"
    assert batch.ended[1].outcome is Outcome.UNKNOWN
    assert batch.step(1.0) is BatchAction.PAUSE
    assert batch.wake_at == 1.025
    assert batch.step(1.025) is BatchAction.LEASE
    grant(found, 8)
    again = sent(batch, 1.025)
    assert again.items == [0]
    assert (again.attempt, again.calls[0].lease.client_id) == (1, 8)
    answer(batch, EXPIRED._replace(info={"previous_attempts": "true"}))
    assert batch.step(1.0) is BatchAction.DONE
    assert batch.ended[0].outcome is Outcome.UNKNOWN


def test_identities_of_two_clients_never_share_a_batch() -> None:
    """What was begun under a lost id is retried under it (DESIGN §4)."""
    found = session(window=2)
    batch = flow(found, [None] * 3)
    first = sent(batch, 0.0)
    assert first.items == [0, 1]
    answer(batch, BROKEN, BROKEN, now=0.0)
    found.lost(found.lease)  # type: ignore[arg-type]
    grant(found, 8)
    later = sent(batch, 20.0)
    assert [call.lease.client_id for call in later.calls] == [7, 7]
    answer(batch, DONE, DONE, now=20.0)
    assert [call.lease.client_id for call in sent(batch, 20.0).calls] == [8]


def test_the_window_is_waited_for_only_when_nothing_else_can_be_sent() -> None:
    """Keyed calls need no room; the others fill it as it frees (DESIGN §3)."""
    found = session(window=2)
    batch = flow(found, [None, None, None, b"k"])
    assert sent(batch, 0.0).items == [0, 1, 3]
    answer(batch, DONE, RUNNING, DONE)
    assert sent(batch, 1.0).items == [2]
    answer(batch, RUNNING)
    other = flow(found, [None])
    assert other.step(1.0) is BatchAction.WINDOW
    assert other.step(61.0) is BatchAction.DONE
    assert (other.ended[0].reason, other.ended[0].outcome) == (
        "WINDOW_EXCEEDED",
        Outcome.NOT_EXECUTED,
    )


def test_what_refused_an_item_last_is_told_when_time_runs_out() -> None:
    """The deadline does not hide the cause (DESIGN §3)."""
    batch = flow(session(), [b"a", b"b", b"c"], deadline=2.0)
    sent(batch, 0.0)
    drained = AttemptAnswer("UNAVAILABLE", Outcome.NOT_EXECUTED, "DRAINING")
    answer(batch, RUNNING, drained, BROKEN)
    sent(batch, 1.9)
    answer(batch, BROKEN, BROKEN, BROKEN, now=1.91)
    assert batch.step(2.0) is BatchAction.DONE
    assert [(end.code, end.reason, end.answer) for end in batch.ended] == [
        ("DEADLINE_EXCEEDED", "IN_PROGRESS", RUNNING),
        ("DEADLINE_EXCEEDED", "DRAINING", drained),
        ("DEADLINE_EXCEEDED", "", None),
    ]


@pytest.mark.parametrize("code", ["INTERNAL", "UNKNOWN"])
def test_a_server_that_never_understands_is_not_wrapped(code: str) -> None:
    """Three errors in a row that say nothing of ours: NOT_WRAPPED, for all (DESIGN §3, §4)."""
    batch = flow(session(), [None] * 3, limits=BatchLimits(max_items=2))
    for turn in range(3):
        sent(batch, 10.0 * turn)
        batch.refused(AttemptAnswer(code), "status", 10.0 * turn, 0.5)
    assert batch.step(30.0) is BatchAction.DONE
    assert {ended.reason for ended in batch.ended} == {"NOT_WRAPPED"}
    assert [ended.outcome for ended in batch.ended] == [
        Outcome.UNKNOWN,
        Outcome.UNKNOWN,
        Outcome.NOT_EXECUTED,
    ]


def test_a_deadline_ends_what_is_left() -> None:
    """Unknown where it was sent, not executed where it was not (DESIGN §3)."""
    batch = flow(session(), [b"a", b"b"], deadline=5.0, limits=BatchLimits(max_items=1))
    assert sent(batch, 0.0).timeout_s == 5.0
    batch.refused(BROKEN, "status", 4.0, 0.5)
    assert sent(batch, 4.0).items == [1]
    answer(batch, RUNNING, now=4.9)
    assert batch.step(5.0) is BatchAction.DONE
    assert [ended.outcome for ended in batch.ended] == [Outcome.UNKNOWN] * 2
    # A key may have been run by somebody else, and nobody asked.
    late = flow(session(leased=False), [None, b"a"], deadline=5.0)
    assert late.step(0.0) is BatchAction.LEASE
    assert late.wake_at == 5.0
    assert late.step(5.0) is BatchAction.DONE
    assert [(ended.code, ended.outcome) for ended in late.ended] == [
        ("DEADLINE_EXCEEDED", Outcome.NOT_EXECUTED),
        ("DEADLINE_EXCEEDED", Outcome.UNKNOWN),
    ]


def test_a_time_limit_on_the_way_is_not_the_callers_deadline() -> None:
    """A proxy, an interceptor or a service config ended it: it is sent again (DESIGN §3)."""
    batch = flow(session(), [b"a", b"b"], deadline=5.0)
    sent(batch, 0.0)
    batch.refused(AttemptAnswer("DEADLINE_EXCEEDED"), "status", 1.0, 0.5)
    assert sent(batch, 2.0).items == [0, 1]
    answer(batch, DONE, DONE, now=2.0)
    assert batch.step(2.0) is BatchAction.DONE
    assert [ended.outcome for ended in batch.ended] == [Outcome.EXECUTED] * 2


def test_what_can_never_be_sent_ends_at_once() -> None:
    """Another method, a seq in a named session, no lease to be had (DESIGN §4, §5)."""
    batch = flow(session(methods="/other/*"), [b"a", None])
    assert batch.step(0.0) is BatchAction.DONE
    assert {ended.reason for ended in batch.ended} == {"NOT_DEDUPLICATED"}
    batch = flow(session(named=True), [b"a", None])
    assert batch.step(0.0) is BatchAction.DONE
    assert {ended.reason for ended in batch.ended} == {"BAD_HEADER"}
    batch = flow(session(leased=False), [b"a", None])
    assert batch.step(0.0) is BatchAction.LEASE
    batch.lease_refused(AttemptAnswer("UNIMPLEMENTED"), "status")
    assert batch.step(0.0) is BatchAction.DONE
    assert {ended.reason for ended in batch.ended} == {"NOT_DEDUPLICATED"}


def test_a_cancelled_batch_leaves_nothing_incomplete() -> None:
    """Unresolved calls are bounded, and the window is free of the rest (DESIGN §4)."""
    found = session(window=20)
    batch = flow(found, [None] * 30)
    sent(batch, 0.0)
    batch.cancelled("CANCELLED", 1.0)
    assert batch.step(1.0) is BatchAction.DONE
    outcomes = [ended.outcome for ended in batch.ended]
    assert outcomes == [Outcome.UNKNOWN] * 20 + [Outcome.NOT_EXECUTED] * 10
    assert found.lease is not None
    assert found.lease.tracker.incomplete == 10


ANSWERS = st.sampled_from(
    [DONE, RUNNING, BROKEN, TOO_LARGE, AttemptAnswer("NOT_FOUND", Outcome.EXECUTED)]
)


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from([None, b"a", b"b", b"c"]), min_size=1, max_size=30),
    st.data(),
    st.integers(1, 6),
    st.integers(1, 5),
)
def test_every_batch_ends_and_every_item_once(
    keys: list[bytes | None], data: st.DataObject, max_items: int, window: int
) -> None:
    """Whatever is answered: one end an item, one client id an RPC, the window kept (§4)."""
    found = session(window=window)
    batch = flow(found, keys, limits=BatchLimits(max_items=max_items), deadline=50.0)
    now = 0.0
    while (action := batch.step(now)) is not BatchAction.DONE:
        now += 0.25
        if action is not BatchAction.SEND:
            assert batch.wake_at is not None
            now = max(now, batch.wake_at)
            continue
        rpc = batch.rpc
        assert 1 <= len(rpc.items) <= max_items
        assert len({call.lease for call in rpc.calls}) == 1
        assert rpc.items == sorted(set(rpc.items))
        whole = data.draw(st.booleans())
        if whole:
            batch.refused(data.draw(ANSWERS.filter(lambda a: a.code != "OK")), None, now, 0.5)
        else:
            answer(batch, *[data.draw(ANSWERS) for _ in rpc.items], now=now)
    assert None not in batch.ended
    assert found.lease is not None
    assert found.lease.tracker.incomplete <= window
