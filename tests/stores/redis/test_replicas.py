"""Several replicas over one Redis, at the ``Store`` interface."""

from __future__ import annotations

import asyncio
import base64
import math

import pytest

from _rifl_ground.refusals import Outcome
from lease_server import TooManySessions
from lease_server._sessions import SessionPolicy, SessionRow, SessionState
from rifl._stores.codec import RecordCodec
from rifl._stores.redis.scripts import CLAIM
from rifl._stores.shared.backend import BackendError
from rifl._stores.shared.requests import Claim, Finish, Found, TakeBack
from rifl.core._serving.bounds import KeyBounds
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import (
    Draining,
    InProgress,
    LeaseExpired,
    PayloadMismatch,
    SessionClosed,
    StaleRpc,
    StoreUnavailable,
    WindowExceeded,
)
from rifl.core._shared.observer import Observer
from tests.helpers.holding import HoldingProxy
from tests.helpers.waiting import DEADLINE_S, until
from tests.stores.redis.replica import ATOMIC, FIRST, IDEMPOTENT, OTHER, call, keyed

FRESH = base64.b64encode(b"f" * 24)


def test_a_client_granted_by_one_replica_is_known_to_all(replicas):
    """Grants, tokens, heartbeats and records are the store's, not a replica's (DESIGN §5)."""
    one, two = replicas(), replicas()
    grant = one.authority.grant()
    two.authority.check(grant.client_id, grant.token)
    assert two.authority.heartbeat(grant.client_id, grant.token) == b""
    two.finish(two.begin(call(grant.client_id, 1)))
    assert one.claim(call(grant.client_id, 1)).record == FIRST
    with pytest.raises(PayloadMismatch):
        one.claim(call(grant.client_id, 1, b"q"))


def test_a_duplicate_elsewhere_is_woken_not_polled(replicas):
    """A duplicate on another replica waits and is woken by the record (DESIGN §4, §6)."""
    one, two = replicas(), replicas()
    attempt = one.begin(call(one.client(), 1))
    waiting = two.claim(attempt.call)
    assert waiting.verdict is Verdict.IN_PROGRESS
    woken = two.woken(waiting.attempt)
    assert not woken.is_set()
    one.finish(attempt)
    assert woken.wait(DEADLINE_S)
    assert two.claim(attempt.call).record == FIRST


def test_an_abandoned_call_is_won_by_another_replica(replicas):
    """An attempt without a record wakes waiters elsewhere, and one wins (DESIGN §4)."""
    one, two = replicas(), replicas()
    attempt = one.begin(call(one.client(), 1))
    woken = two.woken(two.claim(attempt.call).attempt)
    one.store.abandon(attempt).wait()
    assert woken.wait(DEADLINE_S)
    two.finish(two.begin(attempt.call), OTHER)
    assert one.claim(attempt.call).record == OTHER


def test_a_wake_that_comes_before_its_waiter_is_not_lost(replicas):
    """A wake may overtake the reply that says to wait for it (DESIGN §6)."""
    one, two = replicas(), replicas()
    attempt = one.begin(call(one.client(), 1))
    waiting = two.claim(attempt.call).attempt
    two.store.leave(waiting, None)
    two.store._attempts.wake(attempt.token)
    late = two.claim(attempt.call).attempt
    assert two.woken(late).is_set()


def test_a_plain_call_of_a_dead_replica_is_unknown_for_ever(replicas):
    """Whoever finds it records OUTCOME_UNKNOWN; the late finisher gets that (DESIGN §4, §6)."""
    one, two = replicas(), replicas()
    attempt = one.begin(call(one.client(), 1))
    woken = two.woken(two.claim(attempt.call).attempt)
    one.fall_silent()
    assert woken.wait(60)
    unknown = two.claim(attempt.call).record
    assert (unknown.outcome, unknown.reason) == (Outcome.UNKNOWN, "OUTCOME_UNKNOWN")
    assert one.finish(attempt) == unknown
    assert two.claim(attempt.call).record == unknown


@pytest.mark.parametrize("policy", [IDEMPOTENT, ATOMIC], ids=["idempotent", "atomic"])
def test_a_call_of_a_dead_replica_is_taken_over_and_the_old_attempt_fenced(replicas, policy):
    """A take-over has a new attempt token; the old one can write nothing (DESIGN §6)."""
    one, two = replicas(), replicas()
    attempt = one.begin(call(one.client(), 1), policy)
    woken = two.woken(two.claim(attempt.call, policy).attempt)
    one.fall_silent()
    assert woken.wait(60)
    taken = two.begin(attempt.call, policy)
    with pytest.raises(InProgress):
        one.finish(attempt)
    two.finish(taken, OTHER)
    assert one.claim(attempt.call, policy).record == OTHER


def test_a_replica_that_came_back_since_the_last_look_keeps_its_calls(replicas):
    """Who finds it dead looks again before it takes a call over (DESIGN §6)."""
    one, two = replicas(), replicas()
    two.store._heartbeat.stop()
    seen = two.store._heartbeat._replicas._seen
    seen[one.store.rows.process] = (0, -math.inf)
    attempt = one.begin(call(one.client(), 1), IDEMPOTENT)
    assert two.claim(attempt.call, IDEMPOTENT).verdict is Verdict.IN_PROGRESS
    assert one.finish(attempt) is None, "no other answer stands"


def test_a_replica_tells_which_others_have_ended(replicas):
    """One that is suspended has not, as its process is here; one that was killed has (§6)."""
    one, two = replicas(), replicas()
    rows, name = two.store.rows, one.store.rows.process
    assert name != rows.process
    first = rows.beats([name])[0]
    until(lambda: rows.beats([name])[0] > first > 0, "it beats")
    one.store._heartbeat.stop()
    until(lambda: two.store._heartbeat.is_dead(name), "its beats stand still")
    assert rows.beats([name, rows.process])[0] > 0
    one.store._presence.close()
    until(lambda: rows.beats([name, rows.process])[0] == 0, "its presence has ended")
    assert rows.beats([rows.process])[0] > 0


def test_what_may_have_run_is_so_for_whoever_takes_it_over_next(replicas):
    """A handler raised, for all that is known after an effect; whoever runs it again dies (§4)."""
    one, two, three = replicas(), replicas(), replicas()
    attempt = one.begin(call(one.client(), 1), ATOMIC)
    attempt.ran = True
    one.store.abandon(attempt).wait()
    assert two.store.may_have_run(two.begin(attempt.call, ATOMIC))
    woken = three.woken(three.claim(attempt.call, ATOMIC).attempt)
    two.fall_silent()
    assert woken.wait(60)
    assert three.store.may_have_run(three.begin(attempt.call, ATOMIC)), "not *not executed*"


def test_a_take_over_whose_reply_is_lost_forgets_no_run(replicas):
    """The call ran on a replica that is gone; who takes it over is not told that it may (§4)."""
    one, two, three = replicas(), replicas(), replicas()
    attempt = one.begin(call(one.client(), 1), IDEMPOTENT)
    woken = two.woken(two.claim(attempt.call, IDEMPOTENT).attempt)
    one.fall_silent()
    assert woken.wait(60)
    rule = two.store._claims.claim(attempt.call, IDEMPOTENT)
    request = next(rule)
    while not (isinstance(request, Claim) and request.take_over):
        request = rule.send(two.store._backend.ask(request))
    assert two.store._backend.ask(request).found is Found.NEW
    with pytest.raises(StoreUnavailable):
        rule.throw(BackendError("connection lost"))
    until(lambda: not two.store._attempts.unsettled(), "it is let go")
    assert three.store.may_have_run(three.begin(attempt.call, IDEMPOTENT)), "not *not executed*"


def test_of_many_that_find_a_dead_replica_one_takes_over(replicas):
    """The take-over is conditional on the attempt token that was seen (DESIGN §6)."""
    one, two, three = replicas(), replicas(), replicas()
    attempt = one.begin(call(one.client(), 1), IDEMPOTENT)
    woken = [rival.woken(rival.claim(attempt.call).attempt) for rival in (two, three)]
    one.fall_silent()
    assert all(event.wait(60) for event in woken)

    async def both():
        claims = [rival.store.claim(attempt.call, IDEMPOTENT) for rival in (two, three)]
        return await asyncio.gather(*(_awaited(claim) for claim in claims))

    verdicts = sorted(decision.verdict.value for decision in asyncio.run(both()))
    assert verdicts == ["in-progress", "new"]


async def _awaited(later):
    return await later


def test_a_call_of_a_dead_replica_is_not_run_in_a_session_that_closed(replicas):
    """A take-over that would run the handler is judged as a new call is (DESIGN §4, §8)."""
    one, two = replicas(), replicas()
    session = one.authority.open_session("s").client_id
    stuck = one.begin(keyed(session, b"k"), IDEMPOTENT)
    woken = two.woken(two.claim(stuck.call, IDEMPOTENT).attempt)
    two.authority.close_session("s")
    one.fall_silent()
    assert woken.wait(60)
    for _ in range(2):
        with pytest.raises(SessionClosed):
            two.claim(stuck.call, IDEMPOTENT)


def test_a_draining_replica_takes_nothing_over(replicas):
    """What it may not begin it may not begin again: another replica does (DESIGN §4)."""
    one, two, three = replicas(), replicas(), replicas()
    stuck = one.begin(call(one.client(), 1), IDEMPOTENT)
    woken = [rival.woken(rival.claim(stuck.call, IDEMPOTENT).attempt) for rival in (two, three)]
    one.fall_silent()
    assert all(event.wait(60) for event in woken)
    two.store.refuse_new(True)
    with pytest.raises(Draining):
        two.claim(stuck.call, IDEMPOTENT)
    assert three.claim(stuck.call, IDEMPOTENT).verdict is Verdict.NEW


def test_acknowledgements_are_shared_and_only_move_forward(replicas):
    """Acknowledged on one replica is stale on all, its record gone (DESIGN §4)."""
    one, two = replicas(), replicas()
    client = one.client()
    for seq in range(1, 7):
        one.finish(one.begin(call(client, seq)))
    two.finish(two.begin(call(client, 9, first=3, completed=[(4, 5)])))
    verdicts = [one.claim(call(client, seq)).verdict for seq in range(1, 7)]
    assert [verdict.value for verdict in verdicts] == [
        "stale",
        "stale",
        "completed",
        "stale",
        "stale",
        "completed",
    ]
    base = one.store._redis.base(client)
    kept = one.store._redis.clients.blocking.hkeys(base + "done")
    assert sorted(kept) == [b"s%016x" % seq for seq in (3, 6, 9)]


def test_a_call_acknowledged_while_it_runs_keeps_nothing(replicas):
    """A late record of an acknowledged call is dropped, and its answer with it (DESIGN §4).

    Another replica may have taken the call over: then its client has another answer.
    """
    one, two = replicas(), replicas()
    client = one.client()
    attempt = one.begin(call(client, 1))
    two.finish(two.begin(call(client, 2, first=2)))
    with pytest.raises(StaleRpc):
        one.finish(attempt)
    assert two.claim(call(client, 1)).verdict is Verdict.STALE


def test_large_seqs_keep_their_digits(replicas):
    """Seqs beyond 2^53 are exact, though Lua's numbers are not (DESIGN §3)."""
    one = replicas()
    client, top = one.client(), 2**63 - 1
    one.finish(one.begin(call(client, top - 1, first=top - 1)))
    one.finish(one.begin(call(client, top, first=top - 1)), OTHER)
    assert one.claim(call(client, top - 1, first=top - 1)).record == FIRST
    assert one.claim(call(client, top - 2)).verdict is Verdict.STALE


def test_keys_are_bounded_by_count_and_bytes(replicas):
    """Keyed identities have bounds of their own; known ones are still answered (DESIGN §4)."""
    one = replicas()
    one.store._claims.key_bounds = KeyBounds(max_keys=3)
    client = one.client()
    for number in range(3):
        one.finish(one.begin(keyed(client, b"k%d" % number)))
    with pytest.raises(WindowExceeded):
        one.claim(keyed(client, b"k3"))
    assert one.claim(keyed(client, b"k1")).record == FIRST
    one.store._claims.key_bounds = KeyBounds(max_bytes=8)
    with pytest.raises(WindowExceeded):
        one.claim(keyed(client, b"k3"))


def test_an_expired_client_is_gone_everywhere_with_all_it_left(replicas):
    """Expiry removes row and records at once; a full term is watched first (DESIGN §5)."""
    one, two = replicas(term_s=1.0), replicas(term_s=1.0)
    gone, renewed = one.client(), one.client()
    one.finish(one.begin(call(gone, 1)))

    def sweep():
        one.authority.renew(renewed)
        one.authority.expire()
        return gone not in one.store.leases.known_clients()

    until(sweep, "the lease ends")
    with pytest.raises(LeaseExpired):
        two.claim(call(gone, 1))
    two.begin(call(renewed, 1))
    redis = one.store._redis
    assert not list(redis.clients.blocking.scan_iter(redis.base(gone) + "*"))


def test_an_expired_client_stays_while_a_living_replica_runs_its_call(replicas):
    """Records go after the running calls ended (DESIGN §4, §5)."""
    one, two = replicas(), replicas()
    client = one.client()
    attempt = one.begin(call(client, 1))
    two.store.leases.release(client)
    two.authority.expire()
    assert client in two.store.leases.known_clients()
    with pytest.raises(LeaseExpired):
        two.claim(call(client, 2))
    one.finish(attempt)
    two.store.leases.release(client)
    two.authority.expire()
    assert client not in two.store.leases.known_clients()


def test_sessions_are_shared_and_close_for_all(replicas):
    """One name is one id on every replica, and closed is closed on all (DESIGN §5)."""
    one, two = replicas(), replicas()
    opened = one.authority.open_session("batch")
    again = two.authority.open_session("batch")
    assert (again.client_id, again.created) == (opened.client_id, False)
    two.finish(two.begin(keyed(opened.client_id, b"k")))
    assert one.authority.close_session("batch") == opened.client_id
    two.authority.expire()
    for replica in (one, two):
        assert replica.store.leases.renew(opened.client_id).value == "closed"
    from rifl.core._shared.errors import SessionClosed

    with pytest.raises(SessionClosed):
        two.claim(keyed(opened.client_id, b"new"))


def late_claim(one, two, proxy, word, when):
    """Deliver a claim of ``one``'s after it was given up and taken back; the call."""
    arriving = call(two.client(), 1)
    # So that the server knows the script.
    two.finish(two.begin(call(arriving.client_id, 2)))
    proxy.hold_at(word)
    with pytest.raises(StoreUnavailable):
        one.claim(arriving, IDEMPOTENT)
    until(lambda: not one.store._attempts.unsettled(), "the lost claim is taken back")
    assert one.store._heartbeat._lost, "it may arrive yet"
    if when == "too late":
        until(lambda: not one.store._heartbeat._lost, "it may not take effect any more")
    proxy.let_go()
    until(lambda: proxy.delivered == proxy.held > 0, "the claim arrives all the same")
    return arriving


@pytest.mark.parametrize("when", ["in time", "too late"])
def test_a_claim_that_arrives_after_it_was_taken_back_is_let_go(replicas, shared_server, url, when):
    """Nobody runs it: it is undone, or does nothing, whenever it arrives (DESIGN §6)."""
    proxy = HoldingProxy(shared_server.port)
    try:
        # Nobody is taken for dead meanwhile.
        url = url.replace("dead_after_s=0.6", "dead_after_s=30")
        through = url.replace(f":{shared_server.port}", f":{proxy.port}")
        one, two = replicas(f"{through}&timeout_s=0.3"), replicas(url)
        arriving = late_claim(one, two, proxy, CLAIM.sha.encode(), when)
        found = two.claim(arriving, IDEMPOTENT)
        if when == "in time" and found.verdict is Verdict.IN_PROGRESS:
            assert two.woken(found.attempt).wait(60)
            found = two.claim(arriving, IDEMPOTENT)
        assert found.verdict is Verdict.NEW
    finally:
        proxy.close()


def test_a_claim_that_is_late_does_nothing(replicas):
    """By the store's own clock: unavailable, nothing has run, nothing is kept (DESIGN §6)."""
    one, two = replicas(), replicas()
    arriving = call(one.client(), 1)
    # As if a beat had found the store's clock an hour before where it is.
    one.store._heartbeat._ahead_s -= 3600
    with pytest.raises(StoreUnavailable, match="too long"):
        one.claim(arriving, IDEMPOTENT)
    assert two.claim(arriving, IDEMPOTENT).verdict is Verdict.NEW
    until(
        lambda: not one.store._heartbeat._lost and not one.store._attempts.unsettled(),
        "nothing is left to undo",
    )
    assert one.claim(call(arriving.client_id, 2)).verdict is Verdict.NEW, "the next beat tells"


def test_claims_that_are_taken_back_are_bounded(replicas, monkeypatch):
    """With too many of them no more are sent, which could not be undone (DESIGN §9)."""
    monkeypatch.setattr("rifl._stores.shared.heartbeat._TAKEN_BACK_AT_MOST", 1)
    one = replicas()
    arriving = call(one.client(), 1)
    one.store._heartbeat.take_back(TakeBack(arriving, b"nobody's"), one.store._heartbeat.until_s())
    with pytest.raises(StoreUnavailable, match="too many"):
        one.claim(arriving)


@pytest.mark.parametrize("taken", [False, True])
def test_a_claim_whose_reply_came_late_is_asked_again(replicas, taken):
    """Suspended, and taken for dead, nobody begins what another has answered since (§6)."""
    one, two = replicas(), replicas()
    now = [0.0]
    one.store._claims._clock = lambda: now[0]
    rule = one.store._claims.claim(call(one.client(), 1), IDEMPOTENT)
    late = one.store._backend.ask(next(rule))
    now[0] = 60.0
    again = rule.send(late)
    if taken:
        token = b"f" * len(again.token)
        other = again._replace(token=token, owner=two.store.owner, take_over=again.token)
        assert two.store._backend.ask(other).found is Found.NEW
        two.store._backend.ask(Finish(again.call, token, RecordCodec().to_bytes(FIRST, None)))
    reply = one.store._backend.ask(again)
    with pytest.raises(StopIteration) as ended:
        rule.send(reply)
    decision = ended.value.value
    assert decision.verdict is (Verdict.COMPLETED if taken else Verdict.NEW)
    assert decision.record == (FIRST if taken else None)


def test_a_store_that_answers_every_claim_late_gets_no_calls(replicas):
    """After three such replies the call is refused, and its claim undone (§3, §6)."""
    one = replicas()
    now = [0.0]
    one.store._claims._clock = lambda: now[0]
    wanted = call(one.client(), 1)
    rule = one.store._claims.claim(wanted, IDEMPOTENT)
    request = next(rule)
    for _ in range(2):
        reply = one.store._backend.ask(request)
        now[0] += 60.0
        request = rule.send(reply)
    reply = one.store._backend.ask(request)
    now[0] += 60.0
    with pytest.raises(StoreUnavailable, match="too long"):
        rule.send(reply)
    until(lambda: one.claim(wanted).verdict is Verdict.NEW, "its claim is undone")


def test_a_rotation_that_is_repeated_is_one(replicas):
    """Its reply was lost, it is sent again: the secret before it stays valid (DESIGN §5)."""
    leases = replicas().store.leases
    before = leases.secrets()
    once = leases._leases("secrets", FRESH, 1)
    assert leases._leases("secrets", FRESH, 1) == once
    assert [secret.value for secret in leases.secrets()] == [b"f" * 24, before[0].value]


class Commits(Observer):
    """What is told of commits."""

    def __init__(self):
        self.told = []

    def committed(self, entries, seconds, error):
        """See ``Observer``."""
        self.told.append((entries, seconds > 0, error))


def test_commits_are_told_with_their_duration(replicas):
    """A claim and a record are a commit each; a decision that writes none is not (§9)."""
    one, two = replicas(), replicas()
    one.store.observer = commits = Commits()
    attempt = one.begin(call(one.client(), 1))
    assert commits.told == [(1, True, None)]
    one.finish(attempt)
    assert commits.told == [(1, True, None)] * 2
    two.store.observer = others = Commits()
    two.claim(attempt.call)
    assert others.told == []


def test_open_sessions_are_bounded_for_each_peer(replicas):
    """One that opens too many is refused and leaves nothing; others open theirs (§5, §9)."""
    leases = replicas().store.leases
    policy = SessionPolicy(max_open_per_peer=2)

    def opened(number, peer):
        row = SessionRow(number, f"s{number}", peer, SessionState.OPEN, 60.0, 1.0)
        return leases.open_session(row, policy).client_id

    assert [opened(number, b"greedy") for number in (1, 2)] == [1, 2]
    for number in range(3, 20):
        with pytest.raises(TooManySessions):
            opened(number, b"greedy")
    assert opened(20, b"other") == 20
    assert sorted(leases.known_clients()) == [1, 2, 20]


@pytest.mark.parametrize(
    ("bound", "greedy_gets", "another_gets"),
    [
        # What one peer leaves behind, however often it closes what it opens.
        ({"max_open_per_peer": 1, "max_names_per_peer": 3, "max_names": 9}, 3, 3),
        ({"max_open_per_peer": 1, "max_names_per_peer": 4, "max_names": 5}, 4, 1),
    ],
)
def test_names_of_sessions_are_bounded_for_each_peer(replicas, bound, greedy_gets, another_gets):
    """Closed ones too, until they are forgotten: then there is room again (DESIGN §5, §9)."""
    leases = replicas().store.leases
    policy = SessionPolicy(max_open=5, **bound)

    def opened_and_closed(first, peer):
        number = first
        while True:
            row = SessionRow(number, f"s{number}", peer, SessionState.OPEN, 60.0, 1.0)
            try:
                leases.open_session(row, policy)
            except TooManySessions:
                return number - first
            leases.close_session(row.name, peer, 1.0)
            number += 1

    assert opened_and_closed(1, b"greedy") == greedy_gets
    assert opened_and_closed(100, b"another") == another_gets
    leases.forget_session(1)
    assert opened_and_closed(200, b"greedy") == 1


def test_open_sessions_are_bounded_for_all_together(replicas):
    """Many peers do not hold more than one may (DESIGN §9); a close makes room."""
    leases = replicas().store.leases
    policy = SessionPolicy(max_open_per_peer=2, max_open=3)

    def opened(number):
        peer = b"peer %d" % number
        row = SessionRow(number, f"s{number}", peer, SessionState.OPEN, 60.0, 1.0)
        return leases.open_session(row, policy).client_id

    assert [opened(number) for number in (1, 2, 3)] == [1, 2, 3]
    with pytest.raises(TooManySessions):
        opened(4)
    leases.close_session("s2", b"peer 2", 1.0)
    assert opened(5) == 5
