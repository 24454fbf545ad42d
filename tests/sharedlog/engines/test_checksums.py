"""The checksum that a log's key is kept with (DESIGN-LOG §12)."""

import itertools
import secrets

import pytest

from sharedlog._core.commit import Put, Stamp, stamped
from sharedlog._core.errors import CorruptLog
from sharedlog._engines.checksums import damage, kept, named_values, sent, value_of

VALUES = [b"", b"\0", b"\1", b"12345678", b"123456789", b"\xff" * 8, bytes(24), b"x" * 1000]


@pytest.mark.parametrize("value", VALUES)
def test_any_change_is_told(value):
    """Of any bit, of its length, and of the name that it stands under."""
    found = kept("a/b", value)
    assert value_of("a/b", found) == value
    wrong = [found[:-1], found + b"\0", b"\0" + found, b"", found[:7], str(found), None, 1]
    for place in range(len(found)):
        for bit in range(8):
            wrong.append(found[:place] + bytes([found[place] ^ 1 << bit]) + found[place + 1 :])
    for each in wrong:
        with pytest.raises(CorruptLog, match="the log's key 'a/b' is damaged"):
            value_of("a/b", each)
    for name in ("a/c", "a/", "a/b\0", "/b"):
        with pytest.raises(CorruptLog):
            value_of(name, found)


@pytest.mark.parametrize("lsn", [1, 255, 1 << 32, (1 << 53) - (1 << 33)])
@pytest.mark.parametrize("value", VALUES)
def test_a_server_puts_an_lsn_behind_a_value_by_adding_it(value, lsn):
    """As Redis and PostgreSQL do, which know it first."""
    put = Put("k", value, Stamp.LAST)
    given = sent(put)
    checksum = int.from_bytes(given[:8], "big")
    assert checksum < 1 << 32
    done = (checksum + lsn).to_bytes(8, "big") + given[8:] + lsn.to_bytes(8, "big")
    assert done == kept("k", stamped(put, 0, lsn))


def test_no_two_random_values_are_taken_for_another():
    """Nor a value that a key had before, with the checksum of now."""
    made = [secrets.token_bytes(20) for _ in range(1000)]
    for one, other in itertools.pairwise(made):
        with pytest.raises(CorruptLog):
            value_of("k", kept("k", one)[:8] + other)


def test_all_that_is_wrong_is_told():
    """Names that are none, too; who reads is told the first."""
    right = (b"a", kept("a", b"1"))
    found = [right, (b"b", kept("a", b"1")), (b"\xff", b""), (None, b""), (b"c", 1)]
    told = damage(found)
    assert [each.partition(" is damaged")[0] for each in told] == [
        "the log's key 'b'",
        "a key of the log",
        "a key of the log",
        "the log's key 'c'",
    ]
    assert (damage([right]), named_values([right])) == ([], {"a": b"1"})
    with pytest.raises(CorruptLog, match="'b'"):
        named_values(found)
