"""The rule by which a silent connection is found (DESIGN §5)."""

from __future__ import annotations

import pytest

from rifl.core._calling.client_lease import LeaseGrant
from rifl.core._calling.client_session import ClientSession, LeaseStep
from rifl.core._calling.silence import ConnectionWatch, SilenceStep

GRANT = LeaseGrant(client_id=1, token=b"t", term_s=60.0, deduplicated=("*",))


def test_it_is_asked_only_while_a_call_waits() -> None:
    """Of an idle client it looks now and then whether a call is in flight."""
    watch, made = ConnectionWatch(2.0), ClientSession()
    made.granted(GRANT, 0.0)
    step = made.lease_step(5.0, wanted=False, watch=watch, in_flight=made.in_flight)
    assert step == (LeaseStep.WAIT, 7.0)
    call = made.begin((0, 0), 6.0)
    assert call is not None
    assert made.in_flight
    asked = made.lease_step(7.0, wanted=False, watch=watch, in_flight=True)
    assert asked == (LeaseStep.PROBE, None)
    made.complete(call, 6.5)
    assert not made.in_flight
    # An answer a moment ago is a sign of life.
    assert made.lease_step(7.0, wanted=False, watch=watch, in_flight=True)[1] == 8.5
    assert made.lease_step(30.0, wanted=False, watch=watch, in_flight=False)[0] is LeaseStep.RENEW
    assert made.lease_step(7.0, wanted=False)[1] == 26.5


def test_calls_of_unknown_outcome_are_not_in_flight() -> None:
    """Nor are those whose answer is there, and those of a lost client id."""
    made = ClientSession()
    assert not made.in_flight
    made.granted(GRANT, 0.0)
    first, second = made.begin((0, 0), 0.0), made.begin((0, 0), 0.0)
    assert first is not None
    assert second is not None
    made.abandon(first, 0.0)
    assert made.in_flight
    made.linger(second, 0.0)
    assert not made.in_flight
    keyed = made.begin_keyed(b"k", (0, 0), 0.0)
    assert keyed is not None
    third = made.begin((0, 0), 0.0)
    assert third is not None
    made.abandon(keyed, 0.0)
    assert made.in_flight, "one with a key has no seq"


def walk(*answers: bool, renewing: bool = True) -> tuple[list[SilenceStep], ConnectionWatch]:
    watch, now = ConnectionWatch(2.0), 100.0
    check = watch.unanswered(now, 2.0, renewing=renewing)
    steps = [check.step]
    for answered in answers:
        now += 1.0
        check.told(now, answered=answered)
        steps.append(check.step)
    return steps, watch


ANOTHER, AGAIN = SilenceStep.ANOTHER, SilenceStep.AGAIN


@pytest.mark.parametrize(
    ("answers", "renewing", "steps"),
    [
        ([False], True, [ANOTHER, SilenceStep.KEEP]),
        ([True, True], True, [ANOTHER, AGAIN, SilenceStep.KEEP]),
        ([True, False], True, [ANOTHER, AGAIN, SilenceStep.REPLACE]),
        ([True], False, [ANOTHER, SilenceStep.REPLACE]),
        ([False], False, [ANOTHER, SilenceStep.KEEP]),
    ],
    ids=["none-answers", "both-answer", "it-alone-is-silent", "first-lease", "no-server"],
)
def test_it_is_replaced_if_another_one_answers_and_it_does_not(
    answers: list[bool], renewing: bool, steps: list[SilenceStep]
) -> None:
    """What keeps a server from answering keeps it on both."""
    assert walk(*answers, renewing=renewing)[0] == steps


def test_a_slow_answer_of_another_one_gives_it_more_time() -> None:
    """Twice of what the other one took."""
    watch = ConnectionWatch(2.0)
    for took_s, timeout_s in ((0.01, 1.0), (1.5, 3.0)):
        check = watch.unanswered(100.0, 2.0, renewing=True)
        check.told(100.0 + took_s, answered=True)
        assert check.timeout_s == pytest.approx(timeout_s)


def test_other_connections_are_opened_less_and_less_often() -> None:
    """Who asks a server that stands still does not connect to it all the time."""
    watch, now, pauses = ConnectionWatch(2.0), 100.0, []
    for _ in range(6):
        check = watch.unanswered(now, 2.0, renewing=True)
        assert check.step is ANOTHER
        check.told(now, answered=False)
        then = watch.ask_at(now, 0.0, in_flight=True)
        assert watch.unanswered(then - 0.1, 2.0, renewing=True).step is SilenceStep.KEEP
        pauses.append(then - now)
        now = then
    assert pauses == [4.0, 8.0, 16.0, 32.0, 32.0, 32.0]
    watch.tried(now, in_vain=False)
    assert watch.ask_at(now, 0.0, in_flight=True) <= now
