"""``verify`` and the index of tags: what reads of a substream go by (DESIGN-LOG §12, L5)."""

import pytest

from sharedlog._core import envelope, tag_index
from sharedlog._core.catalog import make_stream
from sharedlog._core.incarnation import new_log
from sharedlog._core.producers import NewMessage, append
from sharedlog._core.verifying import Verifier
from sharedlog._engines.driving import carry_out
from sharedlog._engines.memory import MemoryEngine, MemoryLog
from tests.sharedlog.logs import message, producer

ENVELOPE = envelope.pack(b"a", None, None, 0)


@pytest.fixture
def engine():
    """A log of ten messages, by turns of substreams 0 and 1."""
    made = MemoryEngine(MemoryLog(new_log("0" * 16)))
    carry_out(made, make_stream("s", 2))
    made.mine = producer(made)
    fill(made, range(1, 11))
    return made


def fill(engine, seqs):
    for seq in seqs:
        carry_out(
            engine, append(engine.mine, seq, [NewMessage(ENVELOPE, message("", seq % 2).tags)])
        )


def problems(engine, beside=lambda: None):
    verifier = Verifier()
    while carry_out(engine, verifier.read()):
        beside()
    return carry_out(engine, verifier.report()).problems


def lacking(lsns):
    del lsns[1:3]


def cut(lsns):
    del lsns[2:]


def doubled(lsns):
    lsns.insert(2, lsns[1])


def swapped(lsns):
    lsns[1], lsns[2] = lsns[2], lsns[1]


def foreign(lsns):
    lsns.insert(1, lsns[0] + 1)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lacking, "lacks 2 entries, the first is LSN 4"),
        (cut, "lacks 3 entries, the first is LSN 6"),
        (doubled, "has LSN 4 behind 4"),
        (swapped, "has LSN 4 behind 6"),
        (foreign, "has LSN 3, which lacks the tag"),
        (list.clear, "lacks 5 entries, the first is LSN 2"),
    ],
)
def test_an_index_that_lies_is_told(engine, damage, problem):
    """A read by tag would lose or double messages: verifying reads by tag, too (L5)."""
    assert problems(engine) == []
    damage(engine._log.tagged["s/0"])
    found = problems(engine)
    assert [each for each in found if problem in each and "'s/0'" in each], found
    assert not [each for each in found if "'s/1'" in each]


@pytest.mark.parametrize("kept", [1, 3, 100_000])
def test_a_whole_index_is_whole_beside_appends_and_trims(engine, kept, monkeypatch):
    """It is compared as far as rows were read, and from where rows are left (L5, L6)."""
    monkeypatch.setattr(tag_index, "_KEPT", kept)
    monkeypatch.setattr("sharedlog._core.verifying._ROWS", 3)
    seqs = iter(range(11, 21))
    removed = iter(range(1, 100))

    def beside():
        seq = next(seqs, None)
        if seq is not None:
            fill(engine, [seq])
        engine.remove(next(removed))

    assert problems(engine, beside) == []
    assert engine.first() > 3


def test_what_was_trimmed_whole_while_it_was_read_is_no_damage(engine):
    """Nor what is left of it in the index's place (L6)."""
    verifier = Verifier()
    while carry_out(engine, verifier.read()):
        pass
    engine.remove(7)
    assert carry_out(engine, verifier.report()).problems == []
