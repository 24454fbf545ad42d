"""The lease table against its contract and a naive model."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lease_server import BlockExhausted, LeaseTable


def test_ids_start_at_one_and_grow():
    """Ids are 1, 2, 3 and a granted one is alive for exactly a term (RIFL §3.3)."""
    table = LeaseTable(10.0)
    assert [table.grant(0.0), table.grant(5.0), table.grant(5.0)] == [1, 2, 3]
    assert table.alive(1, 9.999)
    assert not table.alive(1, 10.0)
    assert table.expires_at(2) == 15.0
    assert len(table) == 3


def test_expired_is_over_before_expire_is_called():
    """An expired lease never comes back, swept or not; unknown ids are not renewed (§5)."""
    table = LeaseTable(10.0)
    client_id = table.grant(0.0)
    assert not table.renew(client_id, 10.0)
    assert not table.alive(client_id, 10.0)
    assert table.expire(10.0) == [client_id]
    assert table.expire(10.0) == []
    assert not table.renew(client_id, 11.0)
    assert not table.renew(77, 0.0)
    assert table.expires_at(77) is None


def test_renewal_only_moves_forward():
    """A renewal with an older time does not shorten a lease (§5, invariant 3)."""
    table = LeaseTable(10.0)
    client_id = table.grant(100.0)
    assert table.renew(client_id, 50.0)
    assert table.expires_at(client_id) == 110.0


def test_recover_gives_full_terms_and_reserves_the_ids():
    """Recovered ids live a full term, none gets shorter, and grants exceed them (§5)."""
    table = LeaseTable(10.0)
    old = table.grant(0.0)
    table.recover([70, 3], 5.0)
    table.recover([70], 2.0)
    assert table.expires_at(70) == 15.0
    assert table.expires_at(old) == 10.0
    assert table.grant(5.0) == 71
    assert table.expire(15.0) == [1, 3, 70, 71]


def test_recover_of_a_removed_id_is_filed_once():
    """Removing and recovering an id over and over leaves one entry (invariant 4)."""
    table = LeaseTable(10.0)
    client_id = table.grant(0.0)
    for _ in range(100):
        assert table.remove(client_id)
        table.recover([client_id], 1.0)
    assert sum(len(bucket) for bucket in table._buckets.values()) == 1
    assert table.expire(11.0) == [client_id]
    assert table.remove(client_id) is False


def test_blocks_bound_the_ids():
    """No id outside the current block is granted, and blocks only go up (invariants 1, 2)."""
    table = LeaseTable(10.0, first_id=1, last_id=0)
    with pytest.raises(BlockExhausted):
        table.grant(0.0)
    table.use_block(5, 6)
    assert (table.grant(0.0), table.take_id()) == (5, 6)
    assert table.ids_left == 0
    assert not table.alive(6, 0.0)
    for block in ((6, 9), (8, 7)):
        with pytest.raises(ValueError, match="above"):
            table.use_block(*block)
    table.recover([500], 0.0)
    with pytest.raises(BlockExhausted):
        table.grant(0.0)
    assert table.next_id == 501


@pytest.mark.parametrize("term_s", [0.0, -1.0, float("inf"), float("nan")])
def test_impossible_terms_are_refused(term_s):
    """A term is positive and finite."""
    with pytest.raises(ValueError, match="term_s"):
        LeaseTable(term_s)


def test_impossible_ids_are_refused():
    """Ids start at 1; a bad recovery changes nothing."""
    table = LeaseTable(1.0)
    with pytest.raises(ValueError, match="start at 1"):
        table.recover([5, 0], 0.0)
    assert len(table) == 0
    assert table.next_id == 1
    with pytest.raises(ValueError, match="start at 1"):
        LeaseTable(1.0, first_id=0)


class TableAgainstModel(RuleBasedStateMachine):
    """Random histories: the table answers as a plain dictionary of expiries does."""

    def __init__(self):
        super().__init__()
        self.term_s = 8.0
        self.table = LeaseTable(self.term_s)
        self.now = 0.0
        self.model = {}
        self.holders = {}
        self.highest = 0

    @rule(step=st.one_of(st.sampled_from([0.0, 0.125, 8.0]), st.floats(0, 30)))
    def pass_time(self, step):
        self.now += step

    @rule(holder=st.sampled_from([b"", b"one", b"two"]))
    def grant(self, holder):
        client_id = self.table.grant(self.now, holder)
        self.holders[client_id] = holder
        assert client_id > self.highest
        self.highest = client_id
        self.model[client_id] = self.now + self.term_s

    @rule(data=st.data(), back=st.sampled_from([0.0, 0.0, 3.0]))
    def renew(self, data, back):
        client_id = data.draw(st.integers(0, self.highest + 1))
        at = self.now - back
        expected = at < self.model.get(client_id, float("-inf"))
        assert self.table.renew(client_id, at) is expected
        if expected:
            self.model[client_id] = max(self.model[client_id], at + self.term_s)

    @rule()
    def expire(self):
        expected = sorted(c for c, expiry in self.model.items() if expiry <= self.now)
        assert self.table.expire(self.now) == expected
        for client_id in expected:
            del self.model[client_id], self.holders[client_id]

    @rule(ids=st.lists(st.integers(1, 60), max_size=5), holder=st.sampled_from([b"", b"one"]))
    def recover(self, ids, holder):
        self.table.recover(ids, self.now, dict.fromkeys(ids, holder))
        for client_id in ids:
            # Once, whatever is said of it later.
            self.holders[client_id] = self.holders.get(client_id) or holder
            expiry = max(self.model.get(client_id, 0.0), self.now + self.term_s)
            self.model[client_id] = expiry
            self.highest = max(self.highest, client_id)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data):
        client_id = data.draw(st.sampled_from(sorted(self.model)))
        assert self.table.remove(client_id)
        del self.model[client_id], self.holders[client_id]

    @invariant()
    def same(self):
        assert len(self.table) == len(self.model)
        for holder in (b"one", b"two"):
            held = [client_id for client_id, of in self.holders.items() if of == holder]
            assert self.table.held_by(holder) == len(held)
        for client_id in range(self.highest + 2):
            expected = self.now < self.model.get(client_id, float("-inf"))
            assert self.table.alive(client_id, self.now) is expected
        filed = [c for bucket in self.table._buckets.values() for c in bucket]
        filed += [c for _, c in self.table._due]
        assert len(filed) == len(set(filed))
        assert set(self.model) <= set(filed)


TestTableAgainstModel = TableAgainstModel.TestCase
TestTableAgainstModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(
    st.floats(1e-6, 1e6),
    st.lists(st.floats(0, 1e6), min_size=1, max_size=30),
    st.floats(0, 1e7),
)
def test_any_term_and_time(term_s, starts, end):
    """Whatever the scale of term and clock, exactly what is not alive expires (§5)."""
    table = LeaseTable(term_s)
    ids = [table.grant(start) for start in sorted(starts)]
    dead = [client_id for client_id in ids if not table.alive(client_id, end)]
    assert table.expire(end) == dead


def test_expire_looks_only_at_what_is_due():
    """Idle clients cost a sweep nothing until they are due, then one look each (§5)."""
    table = LeaseTable(60.0)
    for _ in range(100_000):
        table.grant(0.0)
    looks = 0
    look_at = LeaseTable._look_at

    class Counting(LeaseTable):
        __slots__ = ()

        def _look_at(self, *args):
            nonlocal looks
            looks += 1
            look_at(self, *args)

    table.__class__ = Counting
    for second in range(1, 59):
        assert table.expire(float(second)) == []
    assert looks == 0
    for client_id in range(1, 100_001):
        table.renew(client_id, 59.0)
    for tenth in range(590, 1190):
        assert table.expire(tenth / 10) == []
    assert looks < 250_000
    assert len(table.expire(119.0)) == 100_000


def test_each_number_is_one_of_many_ids():
    """A grant draws an id of its own number, and the block ends with its last number (§5)."""
    draws = iter((5, 0, 7, 2))
    table = LeaseTable(
        60.0, first_id=1, last_id=3 << 3, random_bits=3, randbits=lambda _: next(draws)
    )
    assert table.ids_left == 3
    assert [table.grant(0.0) for _ in range(3)] == [1 + 5, 9 + 0, 17 + 7]
    assert table.ids_left == 0
    with pytest.raises(BlockExhausted):
        table.grant(0.0)
    # What was recovered is exceeded, wherever in its number's ids it lies.
    table.recover([60], 0.0)
    table.use_block(61, 60 + (1 << 3))
    assert table.grant(0.0) == 61 + 2
