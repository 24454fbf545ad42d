"""Damage to groups' logs: each is told by type, and no wrong entry is returned (DESIGN §7)."""

from __future__ import annotations

import contextlib
import itertools

import pytest

from curp._cli.command import main
from curp.log import create_log
from curp.log._errors import CorruptLog, LogError, NewerFormat
from curp.log._values import LogEntry
from tests.curp.log.conformance import Writer
from tests.curp.log.damage import redis, sqlite
from tests.curp.replica.running import replica
from tests.helpers.waiting import until

pytestmark = pytest.mark.faults

_STORES = {"sqlite": sqlite, "redis": redis}
_LAST = 300
_TAGS = ("t",)


def _each(*kinds):
    """Return a parameter for each store, and each damage of these kinds that it can have."""
    return pytest.mark.parametrize(
        ("log", "damage"),
        [
            pytest.param(store, damage, id=f"{store}: {name}")
            for store, module in _STORES.items()
            for kind in kinds
            for name, damage in getattr(module, kind).items()
        ],
        indirect=["log"],
    )


_in_each_store = pytest.mark.parametrize("log", list(_STORES), indirect=True)


@pytest.fixture
def log(request, tmp_path):
    """A log with a little of everything: entries 3 to 300, a snapshot, metadata, a leader."""
    if request.param == "sqlite":
        made = sqlite.SqliteLog(tmp_path)
    else:
        server = request.getfixturevalue(f"shared_{request.param}")
        made = _STORES[request.param].RedisLog(server, request.getfixturevalue("group"))
    writer = Writer(made.open())
    writer.append(*map(_body, range(1, _LAST + 1)), tags=_TAGS, metadata={"k": b"v"})
    writer.snapshot(4, b"one", b"two")
    writer.engine.trim(2, configuration=writer.configuration)
    made.close()
    yield made
    made.close()


def _body(lsn):
    return b"body %d" % lsn


def _entries(*lsns):
    return [LogEntry(lsn, _body(lsn), _TAGS) for lsn in range(*lsns)]


def _verified(log):
    """Return what ``curp log verify`` exits with."""
    return main(["log", "verify", log.url])


def _open(log):
    """Open it, or say why it cannot be."""
    try:
        return log.open()
    except LogError as error:
        return error


class _Asked:
    """What a replica could ask of the log, each with whether the answer can be right."""

    def __init__(self, engine):
        self.engine = engine
        self.right = _entries(3, _LAST + 1)

    def entries(self):
        """All of them, or an error."""
        return self.engine.read(2) == self.right

    def tagged(self):
        """Those that carry the tag; ``verify`` tells of one that is not listed."""
        return all(entry in self.right for entry in self.engine.read(2, tag="t"))

    def snapshot(self):
        """The snapshot, if it is there: a replica misses it by the entries that were trimmed."""
        found = self.engine.load_snapshot()
        return found is None or [found.lsn, *found.chunks] == [4, b"one", b"two"]

    def metadata(self):
        """What was written, if it is there."""
        return self.engine.all_metadata().get("k") in (None, b"v")

    def end(self):
        """Where the log ends."""
        return self.engine.tail() == _LAST

    def beginning(self):
        """Where it begins."""
        return self.engine.first() == 3

    def leader(self):
        """Whose it is."""
        return self.engine.leadership()[:3] == (1, "one", "one:1")

    def more(self):
        """A take-over, and an append."""
        return Writer(self.engine).append(b"more") == _LAST + 1

    def trim(self):
        """A trim by the leader of the moment."""
        leader = self.engine.leadership()
        return leader is None or self.engine.trim(4, configuration=leader.configuration) is None


_CONTENTS = ("entries", "tagged", "snapshot", "metadata")
_QUESTIONS = (*_CONTENTS, "end", "beginning", "leader", "more", "trim")


def _answers(log, exact=_QUESTIONS):
    """Ask all of it: whether each answer is right, None for a typed error.

    ``exact``: the answers of which none may be wrong.
    """
    engine = _open(log)
    if isinstance(engine, LogError):
        return {"open": None}
    answers = {}
    for question in _QUESTIONS:
        answers[question] = None
        with contextlib.suppress(LogError):
            answers[question] = getattr(_Asked(engine), question)() or question not in exact
    assert False not in answers.values(), answers
    return answers


# Entries.


@_each("ENTRIES", "ENDS")
def test_a_damaged_or_missing_entry(log, damage, capsys):
    """It is CorruptLog, by tag and without; the entries before it can be read."""
    damage(log)
    assert _verified(log) == 1
    assert capsys.readouterr().err.startswith("curp: ")
    found = []

    def read_on(limit, tag=None):
        engine = log.open()
        while True:
            found.extend(engine.read(2 + len(found), limit=limit, tag=tag))

    for limit, tag in itertools.product((1, 1000), (None, "t")):
        found.clear()
        with pytest.raises(CorruptLog):
            read_on(limit, tag)
        assert found == _entries(3, 3 + len(found))
        assert len(found) in (0, 4, _LAST - 3)


@_each("ENTRIES")
def test_a_snapshot_behind_a_damaged_entry_lets_the_log_go_on(log, damage):
    """A trim removes damaged entries as it does others; the rest is read, and appended to."""
    with contextlib.closing(log.open()) as engine:
        writer = Writer(engine)
        writer.append(b"more", tags=("u",))
        writer.snapshot(_LAST, b"all")
    damage(log)
    writer.engine = log.open()
    for through in (7, _LAST):
        writer.engine.trim(through, configuration=writer.configuration)
    assert writer.append(b"and more") == _LAST + 2
    assert [entry.body for entry in writer.engine.read(_LAST)] == [b"more", b"and more"]
    assert _verified(log) == 0


@_in_each_store
def test_a_replica_stops_over_a_damaged_entry(log):
    """It says so by type, and serves nothing over it."""
    log.close()
    _STORES[log.store].ENTRIES["a flipped bit of a body"](log)
    with replica(log.url) as running:
        until(lambda: running.replica.role == "stopped", "it stops", 60.0)
        assert "CorruptLog" in running.replica.waiting_for


# The index of tags.


@_each("INDEX_THAT_LIES")
def test_a_tag_that_an_entry_does_not_carry(log, damage):
    """An index that names it is CorruptLog; reads without a tag go on."""
    damage(log)
    engine = log.open()
    with pytest.raises(CorruptLog):
        engine.read(2, tag="u")
    assert engine.read(2) == _entries(3, _LAST + 1)


@_each("INDEX_THAT_LACKS")
def test_a_tag_that_is_not_listed(log, damage, capsys):
    """``curp log verify`` tells of an entry that its tag does not lead to."""
    damage(log)
    assert _verified(log) == 1
    assert "is not listed under its tag 't'" in capsys.readouterr().err
    assert log.open().read(2) == _entries(3, _LAST + 1)


# Snapshots.


@_each("SNAPSHOTS")
def test_a_damaged_snapshot(log, damage):
    """A piece that is missing or changed is CorruptLog, and so is a snapshot that is lost."""
    damage(log)
    assert _verified(log) == 1
    with contextlib.suppress(CorruptLog):
        snapshot = log.open().load_snapshot()
        if snapshot is not None:
            with pytest.raises(CorruptLog):
                list(snapshot.chunks)


@_in_each_store
def test_a_flipped_bit_of_the_snapshots_position(log):
    """No other position, and no fewer pieces, are taken for the snapshot's (invariant 8)."""
    engine, kept = log.open(), log.kept("snapshot")
    for at, bit in itertools.product(range(len(kept)), range(8)):
        flipped = kept[:at] + bytes((kept[at] ^ 1 << bit,)) + kept[at + 1 :]
        log.keep("snapshot", flipped)
        with contextlib.suppress(LogError):
            snapshot = engine.load_snapshot()
            assert [snapshot.lsn, *snapshot.chunks] == [4, b"one", b"two"], flipped


# Where the log stands, and whose it is.


@_each("CONTROL")
def test_damage_to_where_the_log_stands(log, damage):
    """Nothing is guessed: ``verify`` tells, and each answer is right or an error by type."""
    damage(log)
    assert _verified(log) == 1
    assert None in _answers(log).values()


@_in_each_store
def test_a_newer_format(log):
    """A log that a newer release wrote is refused, and left unchanged; none is made over it."""
    _STORES[log.store].NEWER(log)
    for _ in range(2):
        with pytest.raises(NewerFormat, match="newer release"):
            log.open()
    with pytest.raises(LogError):
        create_log(log.url)
    assert _verified(log) == 1


@_each("WITHOUT_FORMAT")
def test_a_log_without_its_format(log, damage):
    """No format is guessed."""
    damage(log)
    with pytest.raises(CorruptLog):
        log.open()
    assert _verified(log) == 1


# Any bit.


@pytest.mark.parametrize("log", ["sqlite"], indirect=True)
@pytest.mark.parametrize("start", range(4))
def test_a_flipped_bit_anywhere_in_a_file(log, start):
    """No answer is wrong, and no error is without a type, whichever bit it is."""
    used = log.used_bytes()
    for number, at in enumerate(used[start * 53 :: 211]):
        with log.flipped(at, (number + 2 * start) % 8):
            _answers(log, _CONTENTS)
            log.close()


@pytest.mark.parametrize("log", ["redis"], indirect=True)
@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_in_any_field_of_redis(log, bit):
    """No answer is wrong, and no error is without a type, whichever bit it is."""
    for number, (part, field) in enumerate(log.stored()):
        with log.flipped(part, field, number + bit, bit):
            _answers(log, _CONTENTS)
            log.close()
