"""Committed reads, from any position, whatever is on its way (DESIGN-LOG §13, C3 and C4)."""

import itertools
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharedlog._core.commit import Commit, NewEntry, Refused
from sharedlog._core.entry import ProducerDecision, Row, committed_bodies, read_row
from sharedlog._core.errors import (
    CorruptLog,
    InvalidRequest,
    LogForked,
    LogUnavailable,
    NewerFormat,
    ProducerRetired,
    SpanGone,
)
from sharedlog._core.position import Position
from sharedlog._core.producers import append
from sharedlog._core.reading import Reader
from sharedlog._core.spans import decide, pend, retire
from sharedlog._core.streams import check_name, fnv1a, substream_of, tag_of
from sharedlog._core.verifying import Verifier
from sharedlog._engines.driving import carry_out, do
from sharedlog._engines.memory import MemoryEngine
from tests.sharedlog.logs import (
    INCARNATION,
    Ended,
    message,
    next_step,
    pending,
    producer,
    read,
)


def test_a_reader_can_begin_behind_every_message():
    """Within a commit, too: a position is a whole checkpoint (C4)."""
    engine = MemoryEngine()
    mine, other = producer(engine), producer(engine)
    carry_out(engine, append(other, 1, [message("a", 0), message("x", 1), message("b", 0)]))
    begins = carry_out(engine, pend(mine, 1, [pending("c"), pending("d", 1)], [])).begins
    carry_out(engine, append(other, 2, [message("e", 1), message("f", 0), message("y", 1)]))
    carry_out(engine, pend(mine, 2, [pending("g")], sorted(begins)))
    carry_out(engine, decide(mine, 3, [ProducerDecision(mine.id, 2, begins)], commits=True))
    whole = read(engine)
    assert [text for _, text in whole] == ["a", "b", "f", "c", "g"]
    assert [position for position, _ in whole] == sorted(position for position, _ in whole)
    for place, (position, _) in enumerate(whole):
        for ring in (0, 1, 10_000):
            kept = Position.parse(str(position))
            assert read(engine, 0, kept, ring=ring, limit=1) == whole[place + 1 :]


def test_a_read_never_stops_inside_a_commit():
    """Its limit is rounded up (DESIGN-LOG §18), and an append of any size is read."""
    engine = MemoryEngine()
    mine = producer(engine)
    carry_out(engine, append(mine, 1, [message(str(n)) for n in range(2500)]))
    carry_out(engine, append(mine, 2, [message("last")]))
    found = read(engine, limit=1)
    assert len(found) == 2501
    assert {position.lsn for position, _ in found[:-1]} == {2500}


def test_a_position_of_another_log_is_refused():
    """One of another incarnation, beyond the tail, or with another entry in its place (§12)."""
    engine, copy = MemoryEngine(), MemoryEngine()
    for log, text in ((engine, "a"), (copy, "b")):
        carry_out(log, append(producer(log), 1, [message(text)]))
    ((position, _),) = read(engine)
    with pytest.raises(LogForked):
        read(copy, 0, position)
    with pytest.raises(LogForked):
        read(MemoryEngine(), 0, position)
    with pytest.raises(LogForked):
        position.check_incarnation("beef")
    assert read(engine, 0, position) == []


def test_positions_order_print_and_pickle():
    """By LSN, then ordinal; what is no position is refused (C3)."""
    early, late = Position(3, 10, 7, INCARNATION, 0), Position(12, 2, 0xFFFFFFFF, INCARNATION, 1)
    assert early < late
    assert Position(12, 1, 0xFFFFFFFF, INCARNATION, 1) < late
    for each in (early, late):
        assert Position.parse(str(each)) == each
        assert pickle.loads(pickle.dumps(each)) == each  # noqa: S301 - our own
    for text in (
        *("", "1", "1.2/0-3", "1.2/0-00000003@", "a.2/0-00000003@x", "1.2/0-3@x"),
        *("+1.2/0-00000003@x", "1.2-00000003@x", "1.2/-00000003@x"),
    ):
        with pytest.raises(InvalidRequest):
            Position.parse(text)


def test_rows_that_are_no_entries_are_never_skipped():
    """Garbage, an empty row, and a newer release's entry stop the reader (L1)."""
    for body, error in (
        *((body, CorruptLog) for body in (b"", b"\xff\xff")),
        (b"\x08\x02\x10\x01\x20\x01", NewerFormat),
    ):
        with pytest.raises(error):
            read_row(Row(1, body, ()))


def test_keys_go_where_every_language_puts_them():
    """FNV-1a, 32 bits: the published vectors (§12)."""
    assert [fnv1a(data) for data in (b"", b"a", b"foobar")] == [0x811C9DC5, 0xE40C292C, 0xBF9CF968]
    assert substream_of(b"foobar", 8) == 0xBF9CF968 % 8
    for name in ("", "a/b", ".a", "-a", "a b", "é", "a" * 181):
        with pytest.raises(InvalidRequest):
            check_name(name)
    check_name("orders_2.eu-west")


class _Lost(Exception):
    """The reply was lost; the commit may have happened."""


class _Writer:
    """One producer's transactions, step by step; its replies may be lost, and it may be retired."""

    def __init__(self, engine: MemoryEngine, name: str) -> None:
        self.engine = engine
        self.name = name
        self.producer = producer(engine)
        self.seq = 0
        self.begins: dict[str, int] = {}
        self.waiting: list[tuple[str, int]] = []
        self.retired = False
        self._rule = None
        self._make = None
        self._then = None
        self._answer = None

    def begin(self, make, then) -> None:
        """The next thing that it does, once what it does has ended."""
        self._make, self._then = make, then
        self._rule = make()
        self._answer = None

    @property
    def busy(self) -> bool:
        return self._rule is not None

    def step(self, *, lose: bool) -> None:
        """Carry one step out; a lost reply has the whole rule run again."""
        try:
            step = self._rule.send(self._answer)
            self._answer = None
            while True:
                try:
                    self._answer = do(self.engine, step)
                    break
                except Refused as refused:
                    step = self._rule.throw(refused)
            if lose and isinstance(step, Commit):
                self._rule, self._answer = self._make(), None
        except StopIteration as stop:
            self._rule = None
            self._then(stop.value)
        except (ProducerRetired, SpanGone):
            self._rule = None
            self.retired = True


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_every_interleaving_reads_what_was_committed(data):
    """Writers, lost replies and a sweeper that retires: each reader sees each commit once.

    Of a transaction all messages or none, in their order; what an answered writer was told is
    there; what was rolled back is not (C1 to C4, L3).
    """
    engine = MemoryEngine()
    writers = [_Writer(engine, name) for name in "abc"]
    told: set[str] = set()
    # What belongs together, by its messages' texts, and where each goes.
    transactions: list[list[tuple[str, int]]] = []
    number = 0

    def act(writer: _Writer) -> None:
        nonlocal number
        kind = data.draw(st.sampled_from(["append", "pend", "pend", "commit", "rollback"]))
        seq = writer.seq + 1
        if kind in ("append", "pend"):
            places = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=3))
            batch = [(f"{writer.name}{number + n}", place) for n, place in enumerate(places)]
            number += len(batch)
        if kind == "append":
            transactions.append(batch)

            def appended(_: object) -> None:
                writer.seq = seq
                told.update(text for text, _ in batch)

            messages = [message(*each) for each in batch]
            writer.begin(lambda: append(writer.producer, seq, messages), appended)
        elif kind == "pend":
            held = sorted(writer.begins)

            def pended(found) -> None:
                writer.seq = seq
                writer.begins |= found.begins
                writer.waiting += batch

            messages = [pending(*each) for each in batch]
            writer.begin(lambda: pend(writer.producer, seq, messages, held), pended)
        elif writer.begins:
            commits = kind == "commit"
            decision = ProducerDecision(writer.producer.id, writer.seq, dict(writer.begins))
            if commits:
                transactions.append(list(writer.waiting))

            def decided(_: object) -> None:
                writer.seq = seq
                if commits:
                    told.update(text for text, _ in writer.waiting)
                writer.begins, writer.waiting = {}, []

            writer.begin(lambda: decide(writer.producer, seq, [decision], commits=commits), decided)

    for _ in range(data.draw(st.integers(5, 60))):
        writer = data.draw(st.sampled_from(writers))
        if writer.busy:
            writer.step(lose=data.draw(st.integers(0, 4)) == 0)
        elif writer.retired or data.draw(st.integers(0, 30)) == 0:
            carry_out(engine, retire(writer.producer.id))
            writers[writers.index(writer)] = _Writer(engine, writer.name)
        else:
            act(writer)

    found = {place: [text for _, text in read(engine, place)] for place in (0, 1)}
    seen = {text for texts in found.values() for text in texts}
    assert told <= seen
    assert len(seen) == sum(map(len, found.values()))
    for transaction in transactions:
        here = [(text, place) for text, place in transaction if text in seen]
        assert here in ([], transaction)
        for place in (0, 1):
            mine = [text for text, at in transaction if at == place and text in seen]
            order = [text for text in found[place] if text in mine]
            assert order == mine
    assert seen <= {text for transaction in transactions for text, _ in transaction}
    place = data.draw(st.integers(0, 1))
    whole = read(engine, place, ring=0, limit=data.draw(st.integers(1, 5)))
    assert [text for _, text in whole] == found[place]
    for index, (position, _) in enumerate(whole):
        assert (
            read(engine, place, position, ring=data.draw(st.sampled_from([0, 2, 99])))
            == (whole[index + 1 :])
        )


@pytest.mark.parametrize("at", range(6))
def test_a_read_that_broke_off_is_done_again(at):
    """Whichever of its steps failed: the next read returns what it would have, once (C3, C4)."""
    engine = MemoryEngine()
    mine = producer(engine)
    carry_out(engine, append(mine, 1, [message("a")]))
    begins = carry_out(engine, pend(mine, 2, [pending("b"), pending("c")], [])).begins
    carry_out(engine, decide(mine, 3, [ProducerDecision(mine.id, 2, begins)], commits=True))
    carry_out(engine, append(mine, 4, [message("d")]))
    reader = Reader(tag_of("s", 0), INCARNATION)
    carry_out(engine, reader.begin())
    begun = reader.through
    rule, answer = reader.read(2), None
    broken = False
    for number in itertools.count():
        step = next_step(rule, answer)
        if isinstance(step, Ended):
            break
        if number == at:
            with pytest.raises(LogUnavailable):
                rule.throw(LogUnavailable("for a moment"))
            # What it took was not returned.
            assert reader.through == begun
            broken = True
            break
        answer = do(engine, step)
    found = [] if broken else step.value.messages
    while batch := carry_out(engine, reader.read(2)).messages:
        found += batch
    assert [each.envelope for each in found] == [b"a", b"b", b"c", b"d"]


class CountedEngine(MemoryEngine):
    """One that counts what is read."""

    reads = 0

    def read(self, after, limit, tag=None):
        self.reads += 1
        return super().read(after, limit, tag)


def test_a_substream_is_read_by_itself():
    """Entries say what names their commit: its last one, of another substream, is not read."""
    engine = CountedEngine()
    mine = producer(engine)
    for seq in range(1, 101):
        carry_out(engine, append(mine, seq, [message("a", 0), message("b", 1), message("c", 2)]))
    engine.reads = 0
    found = read(engine, 0, limit=1000)
    assert [position.lsn for position, _ in found] == list(range(3, 301, 3))
    # Two of them find the end.
    assert engine.reads <= 3
    # Each names the last entry as it is: reading can go on behind it.
    for place in (0, 50, 99):
        assert read(engine, 0, found[place][0]) == found[place + 1 :]


def test_an_entry_that_names_another_end_of_its_append_is_reported():
    """Positions have that checksum: verifying reads what they rest on (§12)."""
    engine = MemoryEngine()
    mine = producer(engine)
    carry_out(engine, append(mine, 1, [message("a"), message("b")]))
    bodies = committed_bodies([b"a", b"b", b"c"], mine.id, 2)
    bodies[1] = committed_bodies([b"a", b"b", b"other"], mine.id, 2)[1]
    do(engine, Commit(entries=tuple(NewEntry(body, ("s/0",)) for body in bodies)))
    verifier = Verifier()
    while carry_out(engine, verifier.read()):
        pass
    problems = carry_out(engine, verifier.report()).problems
    assert "LSN 4 names another end of its append" in problems
    assert not any("LSN 1 names" in each for each in problems)
