"""Rivals of a first attempt that is suspended before its commit (DESIGN §4)."""

from __future__ import annotations

import pytest

from _rifl_ground.refusals import Outcome
from rifl._server.outcomes_service import RESOLUTION
from rifl._stores.settling import Settled, Settlement, settle_unknown
from rifl.core._serving.answer import HandlerResult
from rifl.core._serving.serving import resolve, serve
from rifl.core._shared.errors import (
    NotExecuted,
)
from tests.helpers.sealing import FINGERPRINT_KEYS
from tests.helpers.waiting import until
from tests.stores.postgres.unclaimed_runs import (
    RAISED,
    UNCLAIMED,
    Handler,
    Suspended,
    drive,
    rows,
)
from tests.stores.redis.replica import FIRST, OTHER, call


def test_a_suspended_run_is_refused_where_the_call_was_resolved(replicas, handler, effects):
    """Not executed is said once a record of that is durable (DESIGN §4, step 6)."""
    one, two = replicas(), replicas()
    client = one.client()
    suspended = Suspended(one, handler, call(client, 1))
    asking = call(client, 1)
    asking.fingerprint = None
    found = drive(resolve(two.store, asking, RESOLUTION), two.store, None)
    assert found.outcome is Outcome.NOT_EXECUTED
    answer = suspended.go_on()
    assert (answer.record.reason, answer.outcome) == (NotExecuted.reason, Outcome.NOT_EXECUTED)
    assert (handler.runs, effects()) == (1, 0)


@pytest.mark.parametrize("number", [2, 1])
def test_a_later_attempt_that_has_no_effect_is_not_called_not_executed(
    replicas, handler, effects, number
):
    """A first one may run beside it, and commit later (DESIGN §4, step 6)."""
    one, two = replicas(), replicas()
    client = one.client()
    suspended = Suspended(one, handler, call(client, 1))
    again = call(client, 1, attempt=number)
    again.retried_by_grpc = number == 1
    raised = HandlerResult(RAISED, raised=True, undone=True)
    answer = drive(serve(two.store, again, UNCLAIMED), two.store, lambda attempt: raised)
    assert answer == (RAISED, Outcome.UNKNOWN)
    assert suspended.go_on() == (FIRST, Outcome.EXECUTED)
    assert effects() == 1


def test_a_suspended_run_is_refused_where_a_later_attempt_ran(replicas, handler, effects):
    """The later one is claimed, and what it recorded is the answer of both (DESIGN §4)."""
    one, two = replicas(), replicas()
    client = one.client()
    suspended = Suspended(one, handler, call(client, 1))
    other = Handler(handler.server, reply=OTHER)
    assert other.serve(two, call(client, 1, attempt=2)) == (OTHER, Outcome.EXECUTED)
    assert suspended.go_on() == (OTHER, Outcome.REPLAYED)
    assert (handler.runs, effects()) == (1, 1)


def test_a_suspended_run_meets_a_record_of_another_key(replicas, handler, effects):
    """While fingerprint keys are replaced, the payload is known under either (DESIGN §6)."""
    one, two = replicas(), replicas()
    client = one.client()
    mine, others = call(client, 1), call(client, 1, attempt=2)
    for each, keys in ((mine, FINGERPRINT_KEYS), (others, FINGERPRINT_KEYS[1:])):
        each.fingerprint_keys = keys
        each.take_digest(b"the same payload")
    suspended = Suspended(one, handler, mine)
    other = Handler(handler.server, reply=OTHER)
    assert other.serve(two, others) == (OTHER, Outcome.EXECUTED)
    assert suspended.go_on() == (OTHER, Outcome.REPLAYED)
    assert (handler.runs, effects()) == (1, 1)


def test_a_suspended_run_waits_for_the_later_attempt_that_runs(replicas, handler, effects):
    """Refused while another runs, it has that one's answer, and does not run again (DESIGN §4)."""
    one, two = replicas(), replicas()
    client = one.client()
    suspended = Suspended(one, handler, call(client, 1))
    other = Handler(handler.server, reply=OTHER)
    later = Suspended(two, other, call(client, 1, attempt=2))
    suspended._go_on.set()
    until(lambda: not len(one.store._attempts), "the suspended run is refused")
    assert later.go_on() == (OTHER, Outcome.EXECUTED)
    assert suspended.go_on() == (OTHER, Outcome.REPLAYED)
    assert (handler.runs, effects()) == (1, 1)


@pytest.mark.parametrize("begun", [False, True])
def test_an_operators_verdict_binds_a_suspended_run(replicas, handler, effects, url, begun):
    """Not executed leaves a record, also of a call that the store does not know (DESIGN §4)."""
    one, two = replicas(), replicas()
    client = one.client()
    suspended = Suspended(one, handler, call(client, 1))
    asked = call(client, 1, attempt=2)
    if begun:
        two.begin(asked, UNCLAIMED)
        two.fall_silent()
    settlement = Settlement(executed=False, who="me", why="looked")
    settled = settle_unknown(url, [asked.rpc_id], settlement)
    assert settled == {asked.rpc_id: Settled.NOT_EXECUTED}
    answer = suspended.go_on()
    assert (answer.record.reason, answer.outcome) == (NotExecuted.reason, Outcome.NOT_EXECUTED)
    assert effects() == 0


def test_a_verdict_about_what_cannot_arrive_leaves_nothing(replicas, handler, url):
    """Of a client that is gone, or that acknowledged the call, nothing is kept (DESIGN §4)."""
    one = replicas()
    client = one.client()
    handler.serve(one, call(client, 2, first=2))
    settlement = Settlement(executed=False, who="me", why="looked")
    ids = [call(client, 1).rpc_id, call(client + 999, 1).rpc_id]
    assert settle_unknown(url, ids, settlement) == dict.fromkeys(ids, Settled.GONE)
    assert rows(one) == [(2, True)]
