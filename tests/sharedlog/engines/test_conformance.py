"""The contract of every engine of the log (DESIGN-LOG §12, L1, L2, L5 and L7; §18)."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sharedlog._core.commit import Commit, Condition, NewEntry, Put, Refused, Stamp
from sharedlog._core.errors import InvalidRequest, LogUnavailable, TrimmedLog
from sharedlog._core.producers import append
from sharedlog._engines.driving import carry_out
from sharedlog._engines.opening import create_engine
from tests.sharedlog.logs import message, producer, texts
from tests.sharedlog.places import ENGINES, url_of


@pytest.fixture(params=ENGINES)
def engine(request, tmp_path):
    url = url_of(request.param, tmp_path, request.getfixturevalue)
    made = create_engine(url, {})
    yield made
    made.close()


def entries(*bodies, tags=("t",)):
    return tuple(NewEntry(body, tags) for body in bodies)


def test_lsns_begin_at_one_and_have_no_gaps(engine):
    """Those of one commit are adjacent; a refused one takes none (L1)."""
    assert engine.tail() == 0
    assert engine.commit(Commit(entries=entries(b"a", b"b"))) == (1, 2)
    with pytest.raises(Refused):
        engine.commit(Commit((Condition("k", b"1"),), entries=entries(b"x")))
    assert engine.commit(Commit(entries=entries(b"c"))) == (3, 3)
    assert [(row.lsn, row.body) for row in engine.read(0, 10).rows] == [
        (1, b"a"),
        (2, b"b"),
        (3, b"c"),
    ]
    assert engine.tail() == 3


def test_a_refused_commit_writes_nothing_and_says_what_is_there(engine):
    """Of all its conditions, those that held too (L2)."""
    engine.commit(Commit(puts=(Put("a", b"1"), Put("b", b"2"))))
    wrong = Commit(
        (Condition("a", b"1"), Condition("b", None), Condition("c", None)),
        (Put("a", b"9"), Put("c", b"9")),
        entries(b"x"),
    )
    with pytest.raises(Refused) as caught:
        engine.commit(wrong)
    assert caught.value.found == {"a": b"1", "b": b"2", "c": None}
    assert engine.get(("a", "b", "c")) == {"a": b"1", "b": b"2", "c": None}
    assert engine.tail() == 0


def test_keys_are_put_stamped_and_deleted(engine):
    """A stamp is the commit's first or last LSN behind the value; an empty value is a value."""
    engine.commit(Commit(entries=entries(b"0")))
    engine.commit(
        Commit(
            puts=(
                Put("first", b"f", Stamp.FIRST),
                Put("last", b"", Stamp.LAST),
                Put("plain", b""),
                Put("gone", b"g"),
            ),
            entries=entries(b"a", b"b", b"c"),
        )
    )
    engine.commit(Commit((Condition("plain", b""),), (Put("gone", None), Put("never", None))))
    assert engine.get(("first", "last", "plain", "gone", "never")) == {
        "first": b"f" + (2).to_bytes(8, "big"),
        "last": (4).to_bytes(8, "big"),
        "plain": b"",
        "gone": None,
        "never": None,
    }


def test_many_keys_are_read_as_of_one_moment(engine):
    """As many as a commit may name, while somebody writes them all (the interface)."""
    count = min(engine.limits.operations, 500)
    keys = tuple(f"k/{number}" for number in range(count))
    assert engine.get(()) == {}
    over = threading.Event()

    def write() -> None:
        number = 0
        while not over.is_set():
            number += 1
            engine.commit(Commit(puts=tuple(Put(key, b"%d" % number) for key in keys)))

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            for _ in range(5):
                found = engine.get(keys)
                assert (len(found), len(set(found.values()))) == (count, 1)
        finally:
            over.set()
        writing.result(60)


def test_a_scan_finds_its_prefix_and_nothing_else(engine):
    """Characters that patterns give a meaning are characters."""
    keys = ["a/1", "a/%", "a/_", "a/é", "a", "b/1", "a0", "A/1", "a/\U0001f600"]
    engine.commit(Commit(puts=tuple(Put(key, key.encode()) for key in keys)))
    assert set(engine.scan("a/")) == {"a/1", "a/%", "a/_", "a/é", "a/\U0001f600"}
    assert engine.scan("a/%") == {"a/%": b"a/%"}
    assert engine.scan("c") == {}


def test_a_tagged_read_returns_exactly_what_has_the_tag(engine):
    """In order, from anywhere, and says through which LSN that is all (L5)."""
    for number in range(1, 10):
        tags = ("all", "even") if number % 2 == 0 else ("all", "odd")
        engine.commit(Commit(entries=(NewEntry(str(number).encode(), tags),)))
    found = engine.read(0, 3, "even")
    assert ([row.lsn for row in found.rows], found.through) == ([2, 4, 6], 6)
    found = engine.read(6, 3, "even")
    assert ([row.lsn for row in found.rows], found.through) == ([8], 9)
    assert engine.read(9, 3, "even") == ([], 9)
    assert engine.read(0, 5, "none") == ([], 9)
    assert [row.tags for row in engine.read(3, 2).rows] == [("all", "even"), ("all", "odd")]


def test_a_tag_named_twice_and_a_body_without_tags_are_read_once(engine):
    """As any other entry (L5)."""
    engine.commit(Commit(entries=(NewEntry(b"a", ("t", "t")), NewEntry(b"", ()))))
    assert [row.body for row in engine.read(0, 5, "t").rows] == [b"a"]
    assert [(row.body, row.tags) for row in engine.read(1, 5).rows] == [(b"", ())]


def test_of_rivals_for_one_key_one_wins(engine):
    """Each step counts once, whoever meets whom (L2, L7)."""
    engine.commit(Commit(puts=(Put("n", (0).to_bytes(8, "big")),)))

    def count() -> None:
        for _ in range(20):
            while True:
                value = engine.get(("n",))["n"]
                more = (int.from_bytes(value, "big") + 1).to_bytes(8, "big")
                try:
                    engine.commit(
                        Commit((Condition("n", value),), (Put("n", more),), entries(more))
                    )
                except Refused:
                    continue
                break

    with ThreadPoolExecutor(8) as pool:
        for each in [pool.submit(count) for _ in range(8)]:
            each.result(60)
    assert int.from_bytes(engine.get(("n",))["n"], "big") == 160
    assert [int.from_bytes(row.body, "big") for row in engine.read(0, 500).rows] == list(
        range(1, 161)
    )


def test_what_returned_is_in_every_later_read(engine):
    """Readers see LSNs grow without holes, and whole appends, while writers meet (L1, L2, L7)."""
    stop = threading.Event()

    def watch() -> int:
        seen = 0
        while not stop.is_set():
            rows = engine.read(0, 10_000).rows
            assert [row.lsn for row in rows] == list(range(1, len(rows) + 1))
            assert len(rows) >= seen
            # Each append has two.
            assert len(rows) % 2 == 0
            seen = len(rows)
        return seen

    def write(number: int) -> None:
        mine = producer(engine)
        for seq in range(1, 21):
            found = carry_out(engine, append(mine, seq, [message(f"{number}.{seq}")] * 2))
            assert engine.tail() >= found.lsn
            assert engine.read(found.lsn - 1, 1).rows[0].lsn == found.lsn

    with ThreadPoolExecutor(6) as pool:
        watching = [pool.submit(watch) for _ in range(2)]
        try:
            for each in [pool.submit(write, number) for number in range(4)]:
                each.result(60)
        finally:
            stop.set()
        for each in watching:
            each.result(60)
    assert len(texts(engine)) == 160


def test_times_never_fall_from_one_row_to_the_next(engine):
    """Whatever clocks the writers have; a commit's rows have one time, and removal keeps it."""
    for at_us in (50, 30, 70):
        engine.commit(Commit(entries=entries(b"a", b"b"), at_us=at_us))
    assert [row.at_us for row in engine.read(0, 10).rows] == [50, 50, 50, 50, 70, 70]
    assert [row.at_us for row in engine.read(3, 10, "t").rows] == [50, 70, 70]
    engine.remove(6)
    engine.commit(Commit(entries=entries(b"c"), at_us=1))
    assert [(row.lsn, row.at_us) for row in engine.read(6, 10).rows] == [(7, 70)]


def test_what_was_removed_is_told_and_never_skipped(engine):
    """By tag, too; LSNs go on, also where nothing is left (L1, L6)."""
    assert engine.first() == 1
    for body in (b"a", b"b", b"c", b"d"):
        engine.commit(Commit(entries=entries(body)))
    engine.remove(2)
    engine.remove(1)
    assert (engine.first(), engine.tail()) == (3, 4)
    for tag in (None, "t", "none"):
        with pytest.raises(TrimmedLog) as caught:
            engine.read(1, 10, tag)
        assert caught.value.first == 3
    assert [row.body for row in engine.read(2, 10).rows] == [b"c", b"d"]
    assert [row.body for row in engine.read(2, 10, "t").rows] == [b"c", b"d"]
    engine.remove(100)
    assert (engine.first(), engine.tail()) == (5, 4)
    assert engine.read(4, 10) == ([], 4)
    assert engine.commit(Commit(entries=entries(b"e"))) == (5, 5)


def test_who_waits_learns_of_an_append_or_of_the_end_of_its_time(engine):
    """In any thread; a closed log lets nobody wait (L5)."""
    assert engine.wait(0, 0.01) == 0
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(engine.wait, 0, 60) for _ in range(2)]
        engine.commit(Commit(entries=entries(b"a")))
        assert [each.result(30) for each in waiting] == [1, 1]
        assert engine.wait(0, 60) == 1
        ended = pool.submit(engine.wait, 1, 60)
        engine.close()
        with pytest.raises(LogUnavailable):
            ended.result(30)


def test_what_no_store_could_take_is_refused_before_it_is_asked(engine):
    """Nothing of it is written, and the log goes on (the engine's limits)."""
    limits = engine.limits
    wrong = [
        Commit(entries=(NewEntry(b"x" * (limits.append_bytes + 1)),)),
        Commit(entries=(NewEntry(b""),) * (limits.entries + 1)),
        Commit(entries=(NewEntry(b"x", ("t" * 201,)),)),
        Commit(entries=(NewEntry(b"x", ("é" * 101,)),)),
        Commit(entries=(NewEntry(b"x", ("",)),)),
        Commit(entries=(NewEntry(b"x", tuple(map(str, range(1025)))),)),
        Commit(puts=(Put("k", b"v", Stamp.LAST),)),
        Commit(puts=tuple(Put(str(each), b"v") for each in range(limits.operations + 1))),
    ]
    for commit in wrong:
        with pytest.raises(InvalidRequest):
            engine.commit(commit)
    assert engine.commit(Commit(entries=entries(b"a"))) == (1, 1)


def test_a_read_of_large_rows_is_bounded_and_makes_progress(engine):
    """By about eight megabytes of bodies, but never nothing (the interface's bound)."""
    # With the tag.
    size = min(3 << 20, engine.limits.append_bytes - 1)
    count = 4 * (3 << 20) // size
    for _ in range(count):
        engine.commit(Commit(entries=entries(b"x" * size)))
    found = engine.read(0, 1000, "t")
    assert 0 < len(found.rows) < count
    assert found.through == len(found.rows)
    rest = engine.read(found.through, 1000, "t")
    assert rest.rows[0].lsn == found.through + 1
