"""The lease authority over real storages, with a clock that moves when told."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lease_server import (
    Acknowledgements,
    BadHeader,
    LeaseAuthority,
    LeaseExpired,
    MemoryLeaseStorage,
    NotYours,
    SessionClosed,
    SessionPolicy,
    Standing,
    StorageUnavailable,
    TooManyClients,
)
from lease_server._authority import Beat
from lease_server._storage_authority import StorageAuthority
from tests.helpers.at_a_line import bounded


@pytest.fixture
def authority(storage, clock):
    return LeaseAuthority(storage, term_s=60.0, clock=clock, wall_clock=clock, id_block=4)


@pytest.fixture
def restart(open_storage, clock):
    """Another authority over the same durable storage, as after a crash."""

    def start(**options):
        storage = open_storage()
        return storage, LeaseAuthority(
            storage,
            **{"term_s": 60.0, "clock": clock, "wall_clock": clock, "id_block": 4, **options},
        )

    return start


def test_a_granted_client_is_alive_for_a_term(authority, clock):
    """A grant gives an id, a token that checks, and a term (§5)."""
    grant = authority.grant(b"")
    assert grant.term_s == 60.0
    authority.check(grant.client_id, grant.token, b"")
    assert authority.renew(grant.client_id)
    assert not authority.is_session(grant.client_id)
    clock.advance(59.0)
    assert authority.alive(grant.client_id)
    clock.advance(1.0)
    assert not authority.alive(grant.client_id)
    assert not authority.renew(grant.client_id)
    assert authority.expire() == [grant.client_id]
    assert authority.expire() == []
    with pytest.raises(LeaseExpired):
        authority.heartbeat(grant.client_id, grant.token)


def test_blocks_follow_one_another(authority):
    """Ids go on over many blocks, unique and growing; sessions draw from the same (§5)."""
    ids = [authority.grant().client_id for _ in range(10)]
    ids.append(authority.open_session("s").client_id)
    ids += [authority.grant().client_id for _ in range(3)]
    assert ids == sorted(set(ids))


def test_concurrent_grants_are_unique(storage):
    """Ids granted from many threads across many blocks never repeat (invariant 1)."""
    authority = LeaseAuthority(storage, id_block=7)
    with ThreadPoolExecutor(8) as pool:
        chunks = pool.map(lambda _: [authority.grant().client_id for _ in range(50)], range(16))
        ids = [client_id for chunk in chunks for client_id in chunk]
    assert len(set(ids)) == 800
    assert len(authority) == 800


def test_a_crash_never_reuses_ids(restart):
    """An authority after a crash grants above all before it, and the tokens stay good (§5)."""
    seen = []
    for _ in range(5):
        _, authority = restart()
        grants = [authority.grant() for _ in range(3)]
        if seen:
            assert grants[0].client_id > seen[-1].client_id
            authority.check(seen[0].client_id, seen[0].token)
        seen += grants
    assert len({grant.client_id for grant in seen}) == len(seen)


def test_two_servers_over_one_storage_grant_different_ids(restart):
    """Servers sharing a storage have blocks of their own and check each other's tokens (§5)."""
    (_, one), (_, two) = restart(), restart()
    grants = [server.grant() for _ in range(9) for server in (one, two)]
    assert len({grant.client_id for grant in grants}) == 18
    for grant in grants:
        one.check(grant.client_id, grant.token)
        two.check(grant.client_id, grant.token)


def test_known_clients_get_a_full_term_after_a_restart(restart, clock):
    """Who was told an id lives a full new term; whose row was dropped is expired (§5)."""
    storage, authority = restart()
    known, unknown = authority.grant(), authority.grant()
    storage.drop(unknown.client_id)
    clock.advance(50.0)
    storage, authority = restart()
    clock.advance(59.0)
    assert authority.alive(known.client_id)
    assert not authority.alive(unknown.client_id)
    with pytest.raises(LeaseExpired):
        authority.heartbeat(unknown.client_id, unknown.token)
    clock.advance(1.0)
    assert authority.expire() == [known.client_id]


def test_no_id_is_told_that_a_crash_forgets(restart):
    """A grant whose row cannot be written is none, and its row is dropped if it came (§5)."""
    storage, authority = restart()
    authority.grant()
    storage.fail = True
    with pytest.raises(StorageUnavailable):
        authority.grant()
    storage.fail = False
    assert len(authority) == 1
    (ended,) = authority.expire()
    assert not authority.alive(ended)


def test_only_the_owner_of_a_token(authority, storage):
    """A wrong or foreign token is NOT_YOURS and changes nothing (§3, §5)."""
    mine, yours = authority.grant(b"me"), authority.grant(b"you")
    for client_id, token, peer in (
        (yours.client_id, mine.token, b"me"),
        (mine.client_id, mine.token, b"you"),
        (mine.client_id, mine.token, b""),
        (mine.client_id, b"garbage", b"me"),
        (0, mine.token, b"me"),
        (2**64 - 1, mine.token, b"me"),
    ):
        with pytest.raises(NotYours):
            authority.heartbeat(client_id, token, peer)
        with pytest.raises(NotYours):
            authority.release(client_id, token, peer)
    assert authority.expire() == []
    assert authority.alive(yours.client_id)


def test_an_id_of_another_incarnation_is_expired():
    """On memory: an id from before the restart is LEASE_EXPIRED, not NOT_YOURS (§5)."""
    old = LeaseAuthority(MemoryLeaseStorage()).grant()
    authority = LeaseAuthority(MemoryLeaseStorage())
    with pytest.raises(LeaseExpired):
        authority.check(old.client_id, old.token)
    with pytest.raises(LeaseExpired):
        authority.release(old.client_id, old.token)


def test_released_ids_come_out_of_expire_once(authority, clock):
    """A released client is dropped with the next sweep and is dead at once (§5)."""
    grant = authority.grant()
    authority.release(grant.client_id, grant.token)
    authority.release(grant.client_id, grant.token)
    assert not authority.renew(grant.client_id)
    assert authority.expire() == [grant.client_id]
    clock.advance(100.0)
    assert authority.expire() == []


def test_clients_are_bounded(storage, clock):
    """Leases held are bounded; the dead make room without a sweep and are still reported (§9)."""
    authority = LeaseAuthority(storage, term_s=60.0, clock=clock, max_clients=2)
    first, second = authority.grant(), authority.grant()
    with pytest.raises(TooManyClients):
        authority.grant()
    clock.advance(60.0)
    authority.grant()
    assert authority.expire() == [first.client_id, second.client_id]


def test_one_caller_does_not_take_all_leases(storage, clock):
    """A peer, or an address without one, has a quarter; who else comes finds room (§9)."""
    authority = LeaseAuthority(storage, term_s=60.0, clock=clock, max_clients=8)
    for caller in ({"source": "10.0.0.7"}, {"peer": b"me"}):
        held = [authority.grant(**caller) for _ in range(2)]
        with pytest.raises(TooManyClients, match="max_clients_per_caller") as refused:
            authority.grant(**caller)
        assert caller.get("source", "this certificate") in str(refused.value)
        # A lease that was given back, and only that, makes room.
        authority.heartbeat(held[0].client_id, held[0].token, caller.get("peer", b""))
        with pytest.raises(TooManyClients):
            authority.grant(**caller)
        authority.release(held[0].client_id, held[0].token, caller.get("peer", b""))
        authority.release(held[0].client_id, held[0].token, caller.get("peer", b""))
        authority.grant(**caller)
        with pytest.raises(TooManyClients):
            authority.grant(**caller)
    authority.grant(source="10.0.0.8")
    # Of an authenticated caller the address does not count.
    authority.grant(b"you", source="10.0.0.7")
    clock.advance(60.0)
    # All are over, and not swept yet.
    for _ in range(2):
        authority.grant(source="10.0.0.7")
    with pytest.raises(TooManyClients):
        authority.grant(source="10.0.0.7")


def test_a_caller_s_leases_are_bounded_by_all_alone_where_that_is_asked_for(storage, clock):
    """0 is no bound; callers of whom nothing is known are no caller (§9)."""
    off = LeaseAuthority(storage, clock=clock, max_clients=8, max_clients_per_caller=0)
    for _ in range(8):
        off.grant(source="10.0.0.7")
    with pytest.raises(TooManyClients, match=r", max_clients\)"):
        off.grant(source="10.0.0.8")
    unknown = LeaseAuthority(MemoryLeaseStorage(), clock=clock, max_clients=8)
    for _ in range(8):
        unknown.grant()
    for wrong in ({"max_clients": 0}, {"max_clients_per_caller": -1}):
        with pytest.raises(ValueError, match="max_clients"):
            LeaseAuthority(storage, **wrong)


def test_a_restart_does_not_forget_whose_leases_are_held(open_storage, clock):
    """A caller's share counts after a restart, until its leases expire (§5, §9)."""

    def start():
        return LeaseAuthority(open_storage(), term_s=60.0, clock=clock, max_clients_per_caller=2)

    first = start()
    held = [first.grant(source="10.0.0.7") for _ in range(2)]
    second = start()
    with pytest.raises(TooManyClients):
        second.grant(source="10.0.0.7")
    second.grant(source="10.0.0.8")
    second.release(held[0].client_id, held[0].token)
    second.grant(source="10.0.0.7")
    with pytest.raises(TooManyClients):
        second.grant(source="10.0.0.7")
    clock.advance(60.0)
    assert second.grant(source="10.0.0.7")


def test_a_grant_that_was_not_written_does_not_count(open_storage, clock):
    """An id that was never told is no lease of its caller's (§5, §9)."""
    storage = open_storage()
    authority = LeaseAuthority(storage, clock=clock, max_clients_per_caller=1)
    authority.grant(source="10.0.0.8")
    storage.fail = True
    with pytest.raises(StorageUnavailable):
        authority.grant(source="10.0.0.7")
    storage.fail = False
    authority.grant(source="10.0.0.7")
    with pytest.raises(TooManyClients):
        authority.grant(source="10.0.0.7")


def test_a_slow_disk_stalls_no_renewal(open_storage):
    """While a block is being reserved, renewals and checks go on (§4: no I/O under the lock)."""
    storage = open_storage()
    authority = LeaseAuthority(storage, id_block=1)
    grant = authority.grant()
    storage.gate.clear()
    storage.reserving.clear()
    granted = []
    waiting = [
        threading.Thread(target=lambda: granted.append(authority.grant().client_id))
        for _ in range(3)
    ]
    for thread in waiting:
        thread.start()
    assert storage.reserving.wait(60)
    assert authority.renew(grant.client_id)
    assert authority.alive(grant.client_id)
    authority.check(grant.client_id, grant.token)
    assert authority.expire() == []
    assert granted == []
    storage.gate.set()
    for thread in waiting:
        thread.join(60)
    assert len(set(granted)) == 3


def test_a_storage_that_repeats_ids_is_not_believed(storage, monkeypatch):
    """A block at or below ids already granted is refused, not granted from (invariant 1)."""
    authority = LeaseAuthority(storage, id_block=1)
    client_id = authority.grant().client_id
    monkeypatch.setattr(storage, "reserve_ids", lambda count: (client_id, client_id))
    with pytest.raises(StorageUnavailable):
        authority.grant()


def test_sessions_open_once_and_close_for_ever(authority, storage):
    """One name, one id, until closed; then refused, and its id comes out once (§5)."""
    opened = authority.open_session("job", b"p", 100.0)
    assert opened.created
    again = authority.open_session("job", b"p", 50.0)
    assert (again.client_id, again.created, again.retention_s) == (opened.client_id, False, 100.0)
    longer = authority.open_session("job", b"p", 500.0)
    assert (longer.client_id, longer.retention_s) == (opened.client_id, 500.0)
    assert storage.load_sessions()[0].retention_s == 500.0
    assert authority.open_session("job", b"q").client_id != opened.client_id
    authority.check(opened.client_id, opened.token, b"p")
    assert authority.is_session(opened.client_id)
    assert authority.alive(opened.client_id)
    with pytest.raises(BadHeader):
        authority.release(opened.client_id, opened.token, b"p")
    assert authority.close_session("job", b"p") == opened.client_id
    assert authority.close_session("job", b"p") == opened.client_id
    assert not authority.alive(opened.client_id)
    assert authority.is_session(opened.client_id)
    assert authority.expire() == [opened.client_id]
    assert authority.expire() == []
    with pytest.raises(SessionClosed):
        authority.open_session("job", b"p")
    with pytest.raises(SessionClosed):
        authority.heartbeat(opened.client_id, opened.token, b"p")
    with pytest.raises(SessionClosed):
        authority.close_session("never opened")


def test_concurrent_openers_get_one_id(storage):
    """Openers racing for a name agree on its id, and one of them created it (§5)."""
    authority = LeaseAuthority(storage)
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda _: authority.open_session("job"), range(32)))
    assert len({session.client_id for session in opened}) == 1
    assert sum(session.created for session in opened) == 1


def test_two_servers_agree_on_a_session(restart):
    """Of two servers opening one name, one's id stands for both, closed means closed (§5, §6)."""
    (_, one), (_, two) = restart(), restart()
    opened = one.open_session("job")
    joined = two.open_session("job")
    assert (joined.client_id, joined.created) == (opened.client_id, False)
    assert two.is_session(opened.client_id)
    one.open_session("gone")
    one.close_session("gone")
    with pytest.raises(SessionClosed):
        two.open_session("gone")


def test_sessions_outlive_a_crash(restart, clock):
    """A restart keeps a session's id with full retention, and a closed one closed (§5)."""
    storage, authority = restart()
    opened = authority.open_session("job", b"", 100.0)
    closed = authority.open_session("done", b"", 100.0)
    for session in (opened, closed):
        storage.register(session.client_id)
    authority.close_session("done")
    clock.advance(90.0)
    _, authority = restart()
    assert authority.expire() == [closed.client_id]
    clock.advance(90.0)
    assert authority.expire() == []
    assert authority.open_session("job").client_id == opened.client_id
    with pytest.raises(SessionClosed):
        authority.open_session("done")


def test_a_new_secret_is_durable_before_the_old_one_is_gone(restart):
    """While the storage is away the old one stays; a crash leaves one of the two (§5)."""
    storage, authority = restart()
    opened = authority.open_session("job", secret=b"old")
    storage.fail = True
    for attempt in (authority.open_session, authority.close_session):
        with pytest.raises(StorageUnavailable):
            attempt("job", secret=b"new", older=[b"old"])
    assert authority.open_session("job", secret=b"old").client_id == opened.client_id
    storage.fail = False
    authority.open_session("job", secret=b"new", older=[b"old"])
    for each in (authority, restart()[1]):
        assert each.open_session("job", secret=b"new").client_id == opened.client_id
        with pytest.raises(NotYours):
            each.open_session("job", secret=b"old")


def test_an_end_that_is_written_late_keeps_a_newer_secret(restart, clock, monkeypatch):
    """A session expires while the storage is away, and is rekeyed before its end is written."""
    storage, authority = restart()
    opened = authority.open_session("job", b"", 100.0, b"old")
    assert authority.renew(opened.client_id)
    storage.register(opened.client_id)
    clock.advance(100.0)

    def fail(row):
        raise StorageUnavailable(f"{row.name} cannot be written")

    with monkeypatch.context() as context:
        context.setattr(storage, "put_session", fail)
        assert authority.expire() == []
    with pytest.raises(SessionClosed):
        authority.open_session("job", secret=b"new", older=[b"old"])
    assert authority.expire() == [opened.client_id]
    for each in (authority, restart()[1]):
        with pytest.raises(SessionClosed):
            each.open_session("job", secret=b"new")
        with pytest.raises(NotYours):
            each.open_session("job", secret=b"old")


def test_a_session_past_its_retention_ends_durably_before_its_records(restart, clock):
    """An expired session's id comes out only once its end is stored (invariant 3)."""
    storage, authority = restart()
    opened = authority.open_session("job", b"", 100.0)
    assert authority.renew(opened.client_id)
    storage.register(opened.client_id)
    grant = authority.grant()
    clock.advance(100.0)
    assert authority.is_session(opened.client_id)
    assert not authority.alive(opened.client_id)
    storage.fail = True
    assert authority.expire() == [grant.client_id]
    storage.fail = False
    assert authority.expire() == [opened.client_id]
    _, authority = restart()
    assert authority.expire() == [opened.client_id]
    with pytest.raises(SessionClosed):
        authority.open_session("job")


def test_a_name_is_free_again_after_the_stated_time(restart, clock):
    """A refused name is free after `refuse_for_s`, across a restart; its id is new (§5)."""
    policy = SessionPolicy(refuse_for_s=200.0)
    _, authority = restart(session_policy=policy)
    first = authority.open_session("job")
    authority.close_session("job")
    clock.advance(150.0)
    storage, authority = restart(session_policy=policy)
    clock.advance(49.0)
    authority.expire()
    with pytest.raises(SessionClosed):
        authority.open_session("job")
    clock.advance(1.0)
    authority.expire()
    assert storage.load_sessions() == []
    assert authority.open_session("job").client_id > first.client_id


def test_an_unreachable_storage_is_typed_and_passing(restart):
    """What needs the storage is STORE_UNAVAILABLE, what does not goes on (§3)."""
    storage, authority = restart()
    grant = authority.grant()
    storage.fail = True
    for action in (
        lambda: [authority.grant() for _ in range(4)],
        lambda: authority.open_session("job"),
        lambda: authority.rotate_secret(),
    ):
        with pytest.raises(StorageUnavailable):
            action()
    assert authority.heartbeat(grant.client_id, grant.token) == b""
    storage.fail = False
    opened = authority.open_session("job")
    storage.fail = True
    with pytest.raises(StorageUnavailable):
        authority.close_session("job")
    assert authority.alive(opened.client_id)


def test_rotation_hands_out_new_tokens(restart, clock):
    """After a rotation heartbeats give a new token, bound as the old, which then ends (§5)."""
    _, authority = restart()
    _, other = restart()
    grant = authority.grant(b"me")
    authority.rotate_secret()
    assert authority.heartbeat(grant.client_id, grant.token, b"me") == b""
    fresh = b""
    for _ in range(9):
        clock.advance(15.0)
        authority.expire()
        other.expire()
        fresh = authority.heartbeat(grant.client_id, fresh or grant.token, b"me") or fresh
        other.check(grant.client_id, fresh or grant.token, b"me")
    assert fresh
    with pytest.raises(NotYours):
        authority.check(grant.client_id, fresh, b"you")
    with pytest.raises(NotYours):
        authority.check(grant.client_id, grant.token, b"me")


def test_renew_and_expire_do_not_cross(storage):
    """Whatever thread wins, an id whose renewal was True is not in that sweep (invariant 2)."""
    time_s = [0.0]
    authority = LeaseAuthority(storage, term_s=1.0, clock=lambda: time_s[0])
    ids = [authority.grant().client_id for _ in range(300)]
    renewed_at = {}

    def renew():
        for client_id in ids:
            at = time_s[0]
            if authority.renew(client_id, at):
                renewed_at[client_id] = at

    with ThreadPoolExecutor(3) as pool:
        expired = []
        for step in range(12):
            time_s[0] = step * 0.3
            running = pool.submit(renew)
            expired += [(client_id, time_s[0]) for client_id in authority.expire(time_s[0])]
            running.result()
    assert len(expired) == len(dict(expired))
    for client_id, at in expired:
        assert at >= renewed_at.get(client_id, 0.0) + 1.0


def test_hot_path_cost(storage):
    """Checking and renewing a call cost microseconds (printed, not asserted tightly; anchors)."""
    import time

    authority = LeaseAuthority(storage)
    grant = authority.grant()
    started = time.perf_counter()
    for _ in range(20_000):
        authority.check(grant.client_id, grant.token)
        authority.renew(grant.client_id)
    each = (time.perf_counter() - started) / 20_000
    print(f"\ncheck + renew: {each * 1e6:.2f} us")
    assert each < 1e-3


def test_many_are_renewed_up_to_where_the_storage_was_lost():
    """What was renewed is told; nothing is said of the rest; with none renewed it raises (§5)."""

    class Storage:
        def __init__(self, good):
            self.good = good

        def _beat(self, client_id, acknowledged):
            if client_id > self.good:
                raise StorageUnavailable("switched off")
            return Standing.ALIVE

    beats = [(client_id, Acknowledgements()) for client_id in (1, 2, 3, 4)]
    assert StorageAuthority._beats(Storage(2), beats) == [Standing.ALIVE] * 2
    with pytest.raises(StorageUnavailable):
        StorageAuthority._beats(Storage(0), beats)
    assert StorageAuthority._beats(Storage(0), []) == []


def test_a_session_is_renewed_among_clients(authority, clock):
    """One that is closed is SESSION_CLOSED, beside clients that are renewed (§5)."""
    client = authority.grant()
    kept, closed = (authority.open_session(name) for name in ("kept", "closed"))
    authority.close_session("closed")
    beats = [Beat(each.client_id, each.token, authority.store) for each in (closed, client, kept)]
    over, *tokens = authority.heartbeats(beats)
    assert isinstance(over, SessionClosed)
    assert tokens == [b"", b""]


def test_who_hears_of_a_sessions_end_opens_another_one():
    """In the thread that tells it, of a close and of an expiry: no lock is held (§9)."""

    class Hears:
        def __init__(self):
            self.told = []

        def info(self, event, **fields):
            """Open one, as a logging handler that calls the server may."""
            self.told.append(event)
            if event in ("session_closed", "session_expired"):
                authority.open_session(f"next {len(self.told)}")

        warning = info

    hears, now = Hears(), [0.0]
    authority = LeaseAuthority(MemoryLeaseStorage(), clock=lambda: now[0], events=hears)
    for name in ("closed", "left"):
        # Used by a call: else it is forgotten, and told to nobody.
        authority.renew(authority.open_session(name, retention_s=10.0).client_id, 0.0)
    bounded(lambda: [authority.close_session("closed")], 10)
    now[0] = 1e9
    bounded(lambda: [authority.expire()], 10)
    assert {"session_closed", "session_expired"} <= set(hears.told)
