"""What a lease server that stands alone drops."""

from lease_server import LeaseAuthority
from lease_server.sweeper import Sweeper


def test_what_ended_is_dropped_until_it_succeeds(open_storage, clock):
    """Expired, released and closed ids lose their rows; a failing storage delays that (§4, §5)."""
    storage = open_storage()
    authority = LeaseAuthority(storage, term_s=60.0, clock=clock, wall_clock=clock)
    sweeper = Sweeper(authority, storage)
    expired, released = authority.grant(), authority.grant()
    session = authority.open_session("job")
    for client_id in (expired.client_id, released.client_id, session.client_id):
        storage.record(client_id)
    authority.release(released.client_id, released.token)
    authority.close_session("job")
    assert sweeper.sweep() == 2
    assert storage.known_clients() == [expired.client_id]
    clock.advance(60)
    storage.fail = True
    assert sweeper.sweep() == 0
    storage.fail = False
    assert sweeper.sweep() == 1
    assert sweeper.sweep() == 0
    assert storage.known_clients() == []
    assert len(storage.dropped) == 3
