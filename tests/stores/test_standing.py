"""Standing records: the answer of a call, whatever comes after it (DESIGN §4, steps 2 and 7)."""

from __future__ import annotations

import sqlite3

import pytest

import rifl
from _rifl_ground.refusals import Outcome
from lease_server import LeaseAuthority
from rifl._stores import open_store
from rifl.core._serving.answer import HandlerResult
from rifl.core._serving.bounds import Bounds
from rifl.core._serving.policy import MethodPolicies
from rifl.core._serving.serving import execute, resolve, serve
from rifl.core._shared.call import Call
from rifl.core._shared.record import CompletionRecord
from tests.stores.conformance import FIRST, OTHER, call, drive

_PLAIN = rifl.MethodPolicy()
_ATOMIC = rifl.MethodPolicy(kind=rifl.Kind.ATOMIC)


class Life:
    """One incarnation after another over one file."""

    def __init__(self, url, default):
        self.url, self.default = url, default
        self.open()

    def open(self):
        """Start the next incarnation."""
        self.store = open_store(self.url)
        self.authority = LeaseAuthority(self.store.leases, term_s=60.0, clock=lambda: 0.0)
        self.store.bind(
            self.authority,
            MethodPolicies({}, self.default),
            clock=lambda: 0.0,
            bounds=Bounds(window=16),
        )

    def drive(self, steps, record=FIRST):
        """Carry out a rule; a handler that it runs answers ``record``."""
        return drive(steps, self.store, lambda attempt: HandlerResult(record))

    def resolution(self, client, seq):
        """Ask what became of a call, as the service does."""
        return self.drive(resolve(self.store, Call(client, b"", seq), _PLAIN))


@pytest.mark.parametrize(
    ("default", "outcome"),
    [("idempotent", Outcome.UNKNOWN), ("plain", Outcome.NOT_EXECUTED)],
)
def test_a_resolution_after_a_crash_says_only_what_is_known(tmp_path, default, outcome):
    """A call that may have run without a trace resolves as unknown, for ever (§3, §4)."""
    life = Life(f"sqlite:///{tmp_path / 'store.db'}", default)
    client = life.authority.grant().client_id
    policy = rifl.MethodPolicy.of(default)
    life.drive(serve(life.store, call(client, 1), policy), FIRST)
    life.store.close()
    life.open()
    assert life.resolution(client, 2).outcome is outcome
    life.store.close()
    life.open()
    assert life.resolution(client, 2).outcome is outcome
    life.store.close()


@pytest.mark.parametrize(
    ("default", "outcome"),
    [("idempotent", Outcome.UNKNOWN), ("plain", Outcome.NOT_EXECUTED)],
)
def test_a_session_is_known_before_its_first_record(tmp_path, default, outcome):
    """A crash can have taken the trace of a session's very first call, too (§3, §5)."""
    life = Life(f"sqlite:///{tmp_path / 'store.db'}", default)
    session = life.authority.open_session("query/1").client_id
    life.store.close()
    life.open()
    assert life.authority.open_session("query/1").client_id == session
    resolved = Call(session, b"", None, b"row 1")
    assert life.drive(resolve(life.store, resolved, _PLAIN)).outcome is outcome
    life.store.close()


def test_a_resolution_of_a_client_of_this_incarnation_is_certain(tmp_path):
    """What this incarnation did not run, and no other can have, was not executed (§4)."""
    life = Life(f"sqlite:///{tmp_path / 'store.db'}", "idempotent")
    client = life.authority.grant().client_id
    assert life.resolution(client, 1).outcome is Outcome.NOT_EXECUTED
    life.store.close()


@pytest.mark.parametrize("how", ["resolution", "abort"])
def test_a_committed_record_is_never_replaced(tmp_path, how):
    """A record that a transaction left behind stands against all that follows (§4, step 7)."""
    path = tmp_path / "store.db"
    life = Life(f"sqlite:///{path}", "atomic")
    client = life.authority.grant().client_id
    attempt = life.store.claim(call(client, 1), _ATOMIC).attempt
    connection = sqlite3.connect(path)
    life.store.transactions.record(attempt, FIRST, connection)
    # The handler left its transaction open and its attempt was given up; then it commits.
    life.store.abandon(attempt)
    connection.commit()
    connection.close()
    if how == "resolution":
        answer = life.resolution(client, 1)
    else:
        again = life.store.claim(call(client, 1), _ATOMIC).attempt
        refused = CompletionRecord(9, "no", None)
        answer = life.drive(execute(life.store, again), refused)
    assert answer.record == FIRST
    assert life.store.fetch(call(client, 1)) == FIRST
    replay = life.drive(serve(life.store, call(client, 1), _ATOMIC))
    assert (replay.record, replay.outcome) == (FIRST, Outcome.REPLAYED)
    life.store.close()


def test_a_record_that_cannot_be_written_is_an_unknown_outcome(tmp_path):
    """The handler ran and its answer cannot be kept: final, and nobody waits for ever (§4)."""
    life = Life(f"sqlite:///{tmp_path / 'store.db'}", "plain")
    client = life.authority.grant().client_id
    broken = FIRST._replace(trailing_metadata=(("key", 7),))
    answer = life.drive(serve(life.store, call(client, 1), _PLAIN), broken)
    assert answer.outcome is Outcome.UNKNOWN
    again = life.drive(serve(life.store, call(client, 1), _PLAIN), OTHER)
    assert (again.record.reason, again.outcome) == ("OUTCOME_UNKNOWN", Outcome.UNKNOWN)
    life.store.close()


def test_a_waiter_gets_the_answer_of_a_client_that_was_dropped():
    """A duplicate that waited gets the same answer even if its lease ended (§4, step 2)."""
    life = Life("memory:", "plain")
    client = life.authority.grant().client_id
    attempt = life.store.claim(call(client, 1), _PLAIN).attempt
    duplicate = serve(life.store, call(client, 1), _PLAIN)
    assert next(duplicate).attempt is attempt
    life.store.clients_ended([client])
    life.store.finish(attempt, FIRST)
    with pytest.raises(StopIteration) as stop:
        duplicate.send(True)
    assert (stop.value.value.record, stop.value.value.outcome) == (FIRST, Outcome.REPLAYED)
