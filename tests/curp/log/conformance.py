"""The scenarios every log engine must pass (DESIGN §7), at the ``GroupLog`` interface.

An engine joins by a subclass of ``LogConformance`` with a ``place`` fixture that
yields a ``Place``: somewhere one group's log lives, that can be opened any number
of times.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import pytest

from curp.log._checks import MAX_APPEND_ENTRIES, MAX_TAGS
from curp.log._commits import GroupLog
from curp.log._errors import (
    ConditionFailed,
    CorruptLog,
    InvalidRequest,
    LeadershipOver,
    LeaseHeld,
    LogStopped,
    TailMismatch,
    TrimmedLog,
)
from curp.log._values import LogEntry, MetadataCondition, NewLogEntry
from tests.helpers.waiting import DEADLINE_S

__all__ = ["LogConformance", "Place", "Writer", "append_id"]

TERM_S = 100.0
_NUMBERS = itertools.count(1)


class Place(Protocol):
    """Where a log lives. The fixture closes what it opened."""

    def open(self) -> GroupLog:
        """Return one more engine over the log."""

    def pass_time(self, seconds: float) -> None:
        """Let the clock that leases end by go on."""


def append_id() -> bytes:
    """Return an append id that was never used."""
    return next(_NUMBERS).to_bytes(16, "big")


class Writer:
    """A replica that leads, as far as it knows, and the tail it expects."""

    def __init__(self, engine: GroupLog, replica: str = "one") -> None:
        self.engine = engine
        self.configuration = engine.take_leadership(replica, f"{replica}:1", term_s=TERM_S)
        self.tail = engine.tail()

    def append(self, *bodies: bytes, tags: Sequence[str] = (), **more: Any) -> int:
        """Append entries with these bodies, behind the expected tail."""
        self.tail = self.engine.append(
            [NewLogEntry(body, tuple(tags)) for body in bodies],
            configuration=more.pop("configuration", self.configuration),
            expected_tail=more.pop("expected_tail", self.tail),
            append_id=more.pop("append_id", None) or append_id(),
            **more,
        )
        return self.tail

    def snapshot(self, lsn: int, *chunks: bytes) -> None:
        """Save a snapshot."""
        self.engine.save_snapshot(lsn, chunks, configuration=self.configuration)


class LogConformance:
    """Inherit, and give a ``place``."""

    @pytest.fixture
    def engine(self, place: Place) -> GroupLog:
        """An engine over an empty log."""
        return place.open()

    @pytest.fixture
    def writer(self, engine: GroupLog) -> Writer:
        """A leader over an empty log."""
        return Writer(engine)

    # The log.

    def test_an_empty_log(self, engine):
        """It has no leader, no entry, no metadata and no snapshot (DESIGN §7)."""
        assert engine.leadership() is None
        assert (engine.tail(), engine.first(), engine.read(0)) == (0, 1, [])
        assert engine.metadata("a") is None
        assert engine.load_snapshot() is None
        assert engine.wait(0, timeout_s=0.0) == 0
        assert len(engine.durability) > 10

    def test_entries_come_back_as_they_went_in(self, place, writer):
        """LSNs from 1 with no gap, bodies and tags whole, for every reader (DESIGN §7)."""
        assert writer.append(b"a", b"\x00\xff", tags=("t", "ü")) == 2
        assert writer.append(b"") == 3
        expected = [
            LogEntry(1, b"a", ("t", "ü")),
            LogEntry(2, b"\x00\xff", ("t", "ü")),
            LogEntry(3, b""),
        ]
        for engine in (writer.engine, place.open()):
            assert engine.read(0) == expected
            assert engine.read(1) == expected[1:]
            assert engine.read(3) == []
            assert (engine.tail(), engine.first()) == (3, 1)

    def test_a_read_is_bounded(self, writer):
        """By count and by bytes, and never empty when there is an entry (DESIGN §9)."""
        writer.append(b"x" * 100, b"y" * 100, b"z" * 100)
        assert [entry.lsn for entry in writer.engine.read(0, limit=2)] == [1, 2]
        assert [entry.lsn for entry in writer.engine.read(0, max_bytes=200)] == [1, 2]
        assert [entry.lsn for entry in writer.engine.read(1, max_bytes=1)] == [2]

    def test_reading_by_tag(self, writer):
        """Several tags on one entry are an append to several streams (DESIGN §7)."""
        writer.append(b"1", tags=("a", "b"))
        writer.append(b"2", b"3", tags=("b",))
        writer.append(b"4", tags=("a",))

        def read(tag, **more):
            return [entry.body for entry in writer.engine.read(more.pop("after", 0), tag=tag)]

        assert read("a") == [b"1", b"4"]
        assert read("b") == [b"1", b"2", b"3"]
        assert read("b", after=2) == [b"3"]
        assert read("c") == []
        assert [e.lsn for e in writer.engine.read(0, tag="b", limit=2)] == [1, 2]
        assert [e.lsn for e in writer.engine.read(0, tag="b", max_bytes=1)] == [1]

    def test_many_entries(self, writer):
        """A log longer than one read is read piece by piece (DESIGN §7)."""
        for start in range(0, 3000, 500):
            writer.append(*(str(n).encode() for n in range(start, start + 500)), tags=("t",))
        found: list[LogEntry] = []
        while more := writer.engine.read(len(found)):
            found += more
        assert [entry.body for entry in found] == [str(n).encode() for n in range(3000)]
        assert [entry.lsn for entry in found] == list(range(1, 3001))
        tagged = writer.engine.read(2500, tag="t")
        assert [entry.lsn for entry in tagged] == list(range(2501, 3001))

    def test_a_large_entry(self, writer):
        """A body of megabytes comes back, if the engine takes so much (DESIGN §9, bounds)."""
        size = min(4 << 20, writer.engine.limits.append_bytes)
        body = (bytes(range(256)) * 16384)[:size]
        writer.append(body)
        assert writer.engine.read(0)[0].body == body

    def test_an_append_within_the_limits(self, writer):
        """As many entries as the engine takes, with tags, are one append (DESIGN §9)."""
        entries, size = writer.engine.limits
        entries = min(entries, 2000)
        share = min(size // entries, 1000)
        names = [f"{n:02}" for n in range(20)]
        body = b"x" * (share - 40)
        assert writer.append(*[body] * entries, tags=names) == entries
        found: list[LogEntry] = []
        while more := writer.engine.read(len(found)):
            found += more
        assert found == [LogEntry(lsn, body, tuple(names)) for lsn in range(1, entries + 1)]

    def test_more_than_the_limits(self, writer):
        """It is refused by type, and nothing is written (DESIGN §9, bounds)."""
        entries, size = writer.engine.limits
        for bodies in ([b""] * (entries + 1), [b"x" * (size + 1)]):
            with pytest.raises(InvalidRequest):
                writer.append(*bodies)
        assert writer.engine.tail() == 0

    # Conditions of an append.

    def test_an_append_without_a_leader_is_refused(self, engine):
        """No configuration number is current before the first (DESIGN §7)."""
        for configuration, error in ((0, LeadershipOver), (1, CorruptLog)):
            with pytest.raises(error):
                engine.append(
                    [NewLogEntry(b"x")],
                    configuration=configuration,
                    expected_tail=0,
                    append_id=append_id(),
                )
        assert engine.tail() == 0

    def test_an_append_by_a_deposed_leader_is_refused(self, place, writer):
        """Every write under an older number is refused, and nothing is written (§7, inv. 4)."""
        writer.append(b"a")
        writer.snapshot(1, b"s")
        place.pass_time(TERM_S + 1)
        newer = Writer(place.open(), "two")
        engine, old = writer.engine, writer.configuration
        for refused in (
            lambda: writer.append(b"b", metadata={"k": b"v"}),
            lambda: engine.put_metadata({"k": b"v"}, configuration=old),
            lambda: engine.renew_leadership(old, term_s=TERM_S),
            lambda: engine.next_configuration(old, {"k": b"v"}, term_s=TERM_S),
            lambda: engine.save_snapshot(1, [b"other"], configuration=old),
            lambda: engine.trim(1, configuration=old),
        ):
            with pytest.raises(LeadershipOver):
                refused()
        engine.end_leadership(old)
        assert newer.engine.leadership().expires_in_s > TERM_S / 2
        assert (engine.tail(), engine.first(), engine.metadata("k")) == (1, 1, None)
        assert list(engine.load_snapshot().chunks) == [b"s"]
        assert newer.append(b"b") == 2

    def test_an_append_behind_another_tail_is_refused(self, writer):
        """The refusal says where the tail is, and nothing is written (DESIGN §7)."""
        writer.append(b"a", b"b")
        for expected in (0, 1, 3, 1000):
            with pytest.raises(TailMismatch) as caught:
                writer.append(b"c", expected_tail=expected, metadata={"k": b"v"})
            assert caught.value.tail == 2
        assert (writer.engine.tail(), writer.engine.metadata("k")) == (2, None)

    def test_an_append_whose_reply_was_lost_is_recognised(self, writer):
        """Asked again it returns the same tail, and is there once (DESIGN §7)."""
        first, second = append_id(), append_id()
        assert writer.append(b"a", b"b", append_id=first) == 2
        assert writer.append(b"a", b"b", append_id=first, expected_tail=0) == 2
        assert writer.append(b"c", append_id=second) == 3
        # Also once others stand behind it.
        assert writer.append(b"a", b"b", append_id=first, expected_tail=0) == 2
        assert [entry.body for entry in writer.engine.read(0)] == [b"a", b"b", b"c"]

    def test_a_recognised_append_repeats_none_of_its_writes(self, writer):
        """Nor its metadata, nor its condition, which held then (DESIGN §7)."""
        twice = {"append_id": append_id(), "expected_tail": 0, "metadata": {"k": b"1"}}
        condition = MetadataCondition("k", None)
        assert writer.append(b"a", condition=condition, **twice) == 1
        writer.engine.put_metadata({"k": b"2"}, configuration=writer.configuration)
        assert writer.append(b"a", condition=condition, **twice) == 1
        assert writer.engine.metadata("k") == b"2"

    def test_a_lost_reply_is_recognised_after_a_take_over(self, place, writer):
        """What stands in the log is not called refused: it is there (DESIGN §7)."""
        name = append_id()
        writer.append(b"a", append_id=name)
        place.pass_time(TERM_S + 1)
        Writer(place.open(), "two").append(b"b")
        assert writer.append(b"a", append_id=name, expected_tail=0) == 1
        with pytest.raises(LeadershipOver):
            writer.append(b"c", expected_tail=2)

    def test_an_append_id_names_one_place_only(self, writer):
        """At another tail the same id is no lost reply (DESIGN §7)."""
        name = append_id()
        writer.append(b"a", append_id=name)
        with pytest.raises(TailMismatch):
            writer.append(b"a", append_id=name, expected_tail=5)

    # Metadata.

    def test_metadata_goes_with_an_append(self, place, writer):
        """Entries and keys are written in one step, None deletes a key (DESIGN §7)."""
        writer.append(b"a", metadata={"k": b"\x00v", "l": b""})
        other = place.open()
        assert (other.metadata("k"), other.metadata("l"), other.metadata("m")) == (
            b"\x00v",
            b"",
            None,
        )
        writer.append(b"b", metadata={"k": None, "m": b"n"})
        assert (other.metadata("k"), other.metadata("l"), other.metadata("m")) == (None, b"", b"n")

    def test_metadata_alone(self, place, writer):
        """Keys are written under the current number, deleted by None (DESIGN §7)."""
        writer.engine.put_metadata({"a": b"1", "b": b"2"}, configuration=writer.configuration)
        writer.engine.put_metadata({"a": None, "c": b"3"}, configuration=writer.configuration)
        assert [place.open().metadata(key) for key in "abc"] == [None, b"2", b"3"]

    @pytest.mark.parametrize("value", [None, b"", b"other"])
    def test_a_condition_that_does_not_hold(self, writer, value):
        """An append and a write happen only if the key holds exactly that (DESIGN §7)."""
        writer.engine.put_metadata({"k": b"v"}, configuration=writer.configuration)
        condition = MetadataCondition("k", value)
        with pytest.raises(ConditionFailed):
            writer.append(b"a", condition=condition, metadata={"l": b"1"})
        with pytest.raises(ConditionFailed):
            writer.engine.put_metadata(
                {"l": b"1"}, configuration=writer.configuration, condition=condition
            )
        assert (writer.engine.tail(), writer.engine.metadata("l")) == (0, None)

    def test_a_condition_that_holds(self, writer):
        """On a value, an empty one, and an absent key (DESIGN §7)."""
        engine, configuration = writer.engine, writer.configuration
        absent, empty, full = (MetadataCondition("k", value) for value in (None, b"", b"v"))
        engine.put_metadata({"k": b""}, configuration=configuration, condition=absent)
        engine.put_metadata({"k": b"v"}, configuration=configuration, condition=empty)
        assert writer.append(b"a", condition=full, metadata={"k": None}) == 1
        assert writer.append(b"b", condition=absent) == 2

    def test_refusals_come_in_order(self, place, writer):
        """The leadership before the tail, the tail before the condition (DESIGN §7)."""
        never = MetadataCondition("k", b"?")
        with pytest.raises(TailMismatch):
            writer.append(b"a", expected_tail=7, condition=never)
        place.pass_time(TERM_S + 1)
        Writer(place.open(), "two")
        with pytest.raises(LeadershipOver):
            writer.append(b"a", expected_tail=7, condition=never)

    # Leadership.

    def test_configuration_numbers_grow(self, place, engine):
        """Each is given once, with whose it is (DESIGN §7)."""
        assert engine.take_leadership("one", "a:1", term_s=TERM_S) == 1
        leader = place.open().leadership()
        assert (leader.configuration, leader.replica, leader.address) == (1, "one", "a:1")
        assert 0.9 * TERM_S < leader.expires_in_s <= TERM_S
        # A replica's own lease does not hold it up.
        assert place.open().take_leadership("one", "a:2", term_s=TERM_S) == 2
        assert engine.leadership().address == "a:2"

    def test_a_take_over_waits_out_the_lease(self, place, writer):
        """It is refused with the time left, until then (DESIGN §7, invariant 10)."""
        other = place.open()
        with pytest.raises(LeaseHeld) as caught:
            other.take_leadership("two", "b:1", term_s=TERM_S)
        assert 0.9 * TERM_S < caught.value.remaining_s <= TERM_S
        place.pass_time(0.8 * TERM_S)
        with pytest.raises(LeaseHeld) as caught:
            other.take_leadership("two", "b:1", term_s=TERM_S)
        assert 0 < caught.value.remaining_s <= 0.2 * TERM_S
        assert writer.append(b"a") == 1
        place.pass_time(0.3 * TERM_S)
        # The number stays current until another is taken.
        assert other.leadership().expires_in_s < 0
        assert writer.append(b"b") == 2
        assert other.take_leadership("two", "b:1", term_s=TERM_S) == 2

    def test_a_renewed_lease_runs_for_a_term_from_then(self, place, writer):
        """Longer or shorter, and also after it was over (DESIGN §7)."""
        place.pass_time(0.8 * TERM_S)
        writer.engine.renew_leadership(writer.configuration, term_s=TERM_S)
        assert writer.engine.leadership().expires_in_s > 0.9 * TERM_S
        writer.engine.renew_leadership(writer.configuration, term_s=TERM_S / 10)
        assert writer.engine.leadership().expires_in_s <= TERM_S / 10
        place.pass_time(TERM_S)
        writer.engine.renew_leadership(writer.configuration, term_s=TERM_S)
        with pytest.raises(LeaseHeld):
            place.open().take_leadership("two", "b:1", term_s=TERM_S)

    def test_a_lease_that_is_given_back(self, place, writer):
        """Another replica need not wait; said twice it is no error (DESIGN §7)."""
        writer.engine.end_leadership(writer.configuration)
        writer.engine.end_leadership(writer.configuration)
        assert writer.engine.leadership().expires_in_s <= 0
        assert place.open().take_leadership("two", "b:1", term_s=TERM_S) == 2

    def test_the_next_configuration(self, place, writer):
        """A new number and its metadata in one step, same leader (DESIGN §7, invariant 11)."""
        old = writer.configuration
        place.pass_time(0.8 * TERM_S)
        new = writer.engine.next_configuration(old, {"witnesses": b"w"}, term_s=TERM_S)
        assert new == old + 1
        leader = place.open().leadership()
        assert (leader.configuration, leader.replica, leader.address) == (new, "one", "one:1")
        assert leader.expires_in_s > 0.9 * TERM_S
        assert writer.engine.metadata("witnesses") == b"w"
        with pytest.raises(LeadershipOver):
            writer.append(b"a")
        assert writer.append(b"a", configuration=new) == 1

    def test_one_of_many_takes_the_leadership(self, place):
        """Of threads that try at once one gets it, the others the time left (DESIGN §7)."""
        engines = [place.open() for _ in range(6)]
        start = threading.Barrier(len(engines))
        results: list[int | None] = []

        def take(number: int) -> None:
            start.wait(DEADLINE_S)
            try:
                replica = f"r{number}"
                results.append(engines[number].take_leadership(replica, "a:1", term_s=TERM_S))
            except LeaseHeld:
                results.append(None)

        threads = [threading.Thread(target=take, args=(n,)) for n in range(len(engines))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert sorted(results, key=bool) == [None] * 5 + [1]

    def test_writers_at_once_leave_no_gap_and_no_double(self, place, writer):
        """Appends judged at one tail: one of each race gets in, whole (DESIGN §7)."""
        engines = [writer.engine, *(place.open() for _ in range(3))]
        written: list[tuple[int, bytes]] = []

        def write(number: int) -> None:
            engine, tail = engines[number], 0
            for turn in range(20):
                bodies = [b"%d.%d.%d" % (number, turn, part) for part in range(3)]
                while True:
                    try:
                        tail = engine.append(
                            [NewLogEntry(body) for body in bodies],
                            configuration=writer.configuration,
                            expected_tail=tail,
                            append_id=b"%7d %8d" % (number, turn),
                        )
                        break
                    except TailMismatch as error:
                        tail = error.tail
                written.extend(zip(range(tail - 2, tail + 1), bodies, strict=True))

        threads = [threading.Thread(target=write, args=(n,)) for n in range(len(engines))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S * 3)
        found = [(entry.lsn, entry.body) for entry in writer.engine.read(0)]
        assert found == sorted(written)
        assert len(found) == 4 * 20 * 3

    # Waiting.

    def test_waiting_for_an_append(self, place, writer):
        """It returns with the append of another engine, or when its time is over (DESIGN §7)."""
        other = place.open()
        assert other.wait(0, timeout_s=0.05) == 0
        found: list[int] = []
        waiter = threading.Thread(target=lambda: found.append(other.wait(0, timeout_s=DEADLINE_S)))
        waiter.start()
        writer.append(b"a", b"b")
        waiter.join(DEADLINE_S)
        assert found in ([1], [2])
        assert other.wait(0, timeout_s=DEADLINE_S) == 2
        assert other.wait(1, timeout_s=DEADLINE_S) == 2

    def test_closing_ends_a_wait(self, place, writer):
        """A replica that stops need not wait for its own reader (DESIGN §9)."""
        other = place.open()
        errors: list[Exception] = []

        def wait() -> None:
            try:
                while other.wait(0, timeout_s=DEADLINE_S) == 0:
                    pass
            except LogStopped as error:
                errors.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
        other.close()
        waiter.join(DEADLINE_S / 2)
        assert not waiter.is_alive()
        assert len(errors) == 1

    # Snapshots and trimming.

    def test_a_snapshot_comes_back_chunk_by_chunk(self, place, writer):
        """With its position, the chunks as they were (DESIGN §7, invariant 8)."""
        writer.append(b"a", b"b", b"c")
        writer.snapshot(2, b"\x00" * 100_000, b"", b"end")
        snapshot = place.open().load_snapshot()
        assert snapshot.lsn == 2
        assert list(snapshot.chunks) == [b"\x00" * 100_000, b"", b"end"]

    def test_a_newer_snapshot_takes_the_place_of_an_older(self, place, writer):
        """Also one of no chunks, and one at the same position (DESIGN §7)."""
        writer.append(b"a", b"b")
        for lsn, chunks in ((0, ()), (1, (b"1", b"2")), (2, (b"3",)), (2, (b"4", b"5"))):
            writer.snapshot(lsn, *chunks)
            snapshot = place.open().load_snapshot()
            assert (snapshot.lsn, tuple(snapshot.chunks)) == (lsn, chunks)

    def test_a_snapshot_that_breaks_off_leaves_the_older(self, place, writer):
        """It counts only when it is whole (DESIGN §7, invariant 8)."""
        writer.append(b"a", b"b")
        writer.snapshot(1, b"old")

        def chunks():
            yield b"new"
            raise KeyError("the state cannot be written")

        with pytest.raises(KeyError):
            writer.engine.save_snapshot(2, chunks(), configuration=writer.configuration)
        snapshot = place.open().load_snapshot()
        assert (snapshot.lsn, list(snapshot.chunks)) == (1, [b"old"])
        writer.snapshot(2, b"new")
        assert list(place.open().load_snapshot().chunks) == [b"new"]

    def test_a_leader_deposed_while_it_saves(self, place, writer):
        """Its snapshot is refused though it began in time (DESIGN §7: conditional snapshots)."""
        writer.append(b"a", b"b")
        writer.snapshot(1, b"old")

        def chunks():
            yield b"1"
            place.pass_time(TERM_S + 1)
            newer = Writer(place.open(), "two")
            newer.snapshot(1, b"of", b"two")
            yield b"2"

        with pytest.raises(LeadershipOver):
            writer.engine.save_snapshot(2, chunks(), configuration=writer.configuration)
        snapshot = place.open().load_snapshot()
        assert (snapshot.lsn, list(snapshot.chunks)) == (1, [b"of", b"two"])

    def test_a_snapshot_read_while_another_takes_its_place(self, place, writer):
        """The chunks are all of one snapshot, or the reader is told to begin again (DESIGN §7)."""
        writer.append(b"a")
        writer.snapshot(1, *(b"old" for _ in range(50)))
        chunks = place.open().load_snapshot().chunks
        assert next(chunks) == b"old"
        writer.snapshot(1, *(b"new" for _ in range(50)))
        with contextlib.suppress(TrimmedLog):
            assert list(chunks) == [b"old"] * 49
        assert list(place.open().load_snapshot().chunks) == [b"new"] * 50

    def test_trimming_a_prefix(self, place, writer):
        """Entries go, positions stay, readers of what is gone are told so (DESIGN §7)."""
        writer.append(*(b"%d" % n for n in range(1, 11)), tags=("t",))
        writer.snapshot(6, b"s")
        engine = place.open()
        engine.trim(4, configuration=writer.configuration)
        engine.trim(3, configuration=writer.configuration)
        assert (engine.first(), engine.tail()) == (5, 10)
        assert [entry.lsn for entry in writer.engine.read(4)] == list(range(5, 11))
        assert [entry.lsn for entry in writer.engine.read(4, tag="t")] == list(range(5, 11))
        for after, tag in ((0, None), (3, None), (3, "t"), (0, "u")):
            with pytest.raises(TrimmedLog) as caught:
                writer.engine.read(after, tag=tag)
            assert caught.value.first == 5
        assert writer.append(b"11") == 11

    def test_a_log_that_is_trimmed_to_its_end(self, place, writer):
        """It goes on where it was, and its first LSN is the next one (DESIGN §7)."""
        writer.append(b"a", b"b")
        writer.snapshot(2, b"s")
        writer.engine.trim(2, configuration=writer.configuration)
        other = place.open()
        assert (other.first(), other.tail(), other.read(2)) == (3, 2, [])
        assert other.wait(2, timeout_s=0.0) == 2
        assert writer.append(b"c") == 3
        assert other.read(2) == [LogEntry(3, b"c")]
        assert other.wait(2, timeout_s=DEADLINE_S) == 3

    def test_only_what_a_snapshot_covers_is_trimmed(self, writer):
        """Else a replica could never recover (DESIGN §7, invariant 8)."""
        writer.append(b"a", b"b")
        for through in (1, 2, 3):
            with pytest.raises(InvalidRequest):
                writer.engine.trim(through, configuration=writer.configuration)
        writer.snapshot(1, b"s")
        with pytest.raises(InvalidRequest):
            writer.engine.trim(2, configuration=writer.configuration)
        assert writer.engine.first() == 1

    # What can never be done.

    def test_a_reader_ahead_of_the_log_is_told(self, engine):
        """Its position came from this log, so the log went back (DESIGN §7)."""
        for ask in (
            lambda: engine.read(1),
            lambda: engine.read(1, tag="t"),
            lambda: engine.wait(1, timeout_s=0.0),
        ):
            with pytest.raises(CorruptLog):
                ask()

    def test_bad_requests_are_refused(self, writer):
        """Each with the same typed error in every engine, and nothing is written (DESIGN §9)."""
        writer.append(b"a")
        engine, configuration = writer.engine, writer.configuration
        key, value = "k" * 257, b"v" * ((1 << 20) + 1)
        for refused in (
            lambda: writer.append(),
            lambda: writer.append(*[b""] * (MAX_APPEND_ENTRIES + 1)),
            lambda: writer.append(b"x", append_id=b"short"),
            lambda: writer.append(b"x", expected_tail=-1),
            lambda: writer.append(b"x", tags=("",)),
            lambda: writer.append(b"x", tags=("t", "t")),
            lambda: writer.append(b"x", tags=[str(n) for n in range(MAX_TAGS + 1)]),
            lambda: writer.append(b"x", metadata={"": b""}),
            lambda: engine.put_metadata({key: b""}, configuration=configuration),
            lambda: engine.put_metadata({"k": value}, configuration=configuration),
            lambda: engine.next_configuration(configuration, {key: b""}, term_s=1),
            lambda: engine.next_configuration(configuration, {}, term_s=0),
            lambda: engine.take_leadership("", "a:1", term_s=1),
            lambda: engine.take_leadership("one", "a:1", term_s=-1),
            lambda: engine.renew_leadership(configuration, term_s=float("nan")),
            lambda: engine.read(-1),
            lambda: engine.read(0, limit=0),
            lambda: engine.save_snapshot(2, [], configuration=configuration),
            lambda: engine.save_snapshot(-1, [], configuration=configuration),
        ):
            with pytest.raises(InvalidRequest):
                refused()
        writer.snapshot(1, b"s")
        with pytest.raises(InvalidRequest):
            writer.snapshot(0, b"older")
        assert (engine.tail(), engine.leadership().configuration) == (1, configuration)

    def test_a_closed_engine(self, engine):
        """Closing is idempotent, and everything after it is a typed error (DESIGN §9)."""
        engine.close()
        engine.close()
        for refused in (
            engine.tail,
            engine.leadership,
            lambda: engine.read(0),
            lambda: engine.wait(0, timeout_s=0.0),
            lambda: engine.take_leadership("one", "a:1", term_s=1),
        ):
            with pytest.raises(LogStopped):
                refused()

    def test_all_is_there_when_it_is_opened_again(self, place, writer):
        """Entries, metadata, leadership, snapshot and trim outlive an engine (DESIGN §7)."""
        writer.append(b"a", b"b", tags=("t",), metadata={"k": b"v"})
        writer.snapshot(1, b"s")
        writer.engine.trim(1, configuration=writer.configuration)
        writer.engine.close()
        engine = place.open()
        assert engine.read(1) == [LogEntry(2, b"b", ("t",))]
        assert (engine.first(), engine.metadata("k")) == (2, b"v")
        assert engine.leadership().configuration == writer.configuration
        assert list(engine.load_snapshot().chunks) == [b"s"]
