"""The targets of one call's attempts (DESIGN §3)."""

from __future__ import annotations

from _rifl_ground.refusals import Outcome
from rifl._client.routing import Route, Router
from rifl.core._calling.answer import AttemptAnswer
from rifl.core._calling.targets import Targets


def test_a_target_that_was_silent_is_asked_again_when_all_others_were() -> None:
    """A stopped leader that goes on leads on: calls must not avoid it for ever."""
    router = Router(Targets(["a:1", "b:1", "c:1"]))
    route = Route(router, 0.0)

    def attempt(number: int) -> int:
        with route.attempt(number, ()):
            return router.choose()

    assert attempt(1) == 0
    route.timed_out(1)
    assert attempt(2) != 0
    elsewhere = AttemptAnswer("UNAVAILABLE", Outcome.NOT_EXECUTED, "NOT_LEADER")
    router.targets.answered(route.sent[2], elsewhere, 1.0)
    assert {0, route.sent[2], attempt(3)} == {0, 1, 2}
    assert attempt(4) == 0
    route.timed_out(4)
    assert attempt(5) != 0


def test_the_target_that_was_silent_is_avoided_and_not_the_one_that_leads_by_now() -> None:
    """A first attempt that timed out went where calls went when it was sent (DESIGN §3, §7)."""
    now = 0.0
    router = Router(Targets(["a:1", "b:1", "c:1"]), lambda: now)
    now = 2.0
    assert router.leads(2)
    route = Route(router, 1.0)
    route.timed_out(1)
    with route.attempt(2, ()):
        assert router.choose() == 2
    assert [router.current_at(at) for at in (1.0, 2.0, 3.0)] == [0, 2, 2]
