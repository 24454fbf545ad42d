"""A shared log of this format opens, with all that it holds, and goes on (DESIGN-LOG §12)."""

from __future__ import annotations

import pytest

import sharedlog
from sharedlog._core.sweeping import unfinished
from sharedlog._core.verifying import Verifier
from tests.compat.shared_logs import ABOUT, FILE, load_sqlite, named_turn


@pytest.fixture
def log(tmp_path):
    """The log of the file."""
    path = tmp_path / "events.log"
    load_sqlite(path, FILE.read_text())
    with sharedlog.open(f"sqlite:///{path}") as opened:
        yield opened


def _all(log, stream, **how):
    with log.follow(stream, **how) as following:
        found = []
        while messages := following.poll():
            found += messages
        return found


def _values(log, stream, **how):
    return [(each.value, each.state.value) for each in _all(log, stream, **how)]


def test_what_was_published_is_read(log):
    """Envelopes whole, in the order of commits; what is pending is read by nobody (C3)."""
    (old, whole, *_), (call, *_) = _all(log, "orders"), _all(log, "audit")
    assert (old.text, old.key) == ("old 3", b"k")
    assert (whole.value, whole.key) == (b"\x00\xff", b"\xff")
    assert dict(whole.headers) == {"h": b"\x00", "i": b"j"}
    about = ABOUT._replace(headers=None)
    assert about == sharedlog.About(
        content_type=whole.content_type,
        schema_name=whole.schema_name,
        trace_parent=whole.trace_parent,
        trace_state=whole.trace_state,
        causation_id=whole.causation_id,
        event_time_us=int(whole.event_time.timestamp() * 1e6),
    )
    assert (call.method, call.value) == ("/shop.Shop/Reserve", b"request")
    assert [each.text for each in _all(log, "orders", after=whole)] == ["both", "committed"]
    assert [each.text for each in _all(log, "audit", after=call)] == [
        "both",
        "named 1",
        "named 2",
        "committed",
    ]
    assert _values(log, "orders", committed=False)[-2:] == [
        (b"rolled back", "rolled back"),
        (b"pending", "pending"),
    ]


def test_what_it_keeps_beside_its_rows_holds(log):
    """Streams, holds, names, fences, spans, what was trimmed: no rule is broken (L3, L4, L6)."""
    verifier = Verifier(log._place.seals)
    while log._run(verifier.read()):
        pass
    report = log._run(verifier.report())
    assert (report.problems, report.first > 1) == ([], True)
    assert [(each.name, each.substreams) for each in log.streams()] == [("audit", 1), ("orders", 2)]
    assert _values(log, "orders", name="billing")[0] == (b"\x00\xff", "committed")
    with pytest.raises(sharedlog.TrimmedLog, match="dropped"):
        _all(log, "audit", name="gone")
    assert log.producer("relay").last() == 2
    assert log.raise_fence("writer").number == 2


def test_it_goes_on(log):
    """A turn of before is answered, and the next appended; what is pending is rolled back (C2)."""
    before = [each.position for each in _all(log, "audit") if each.value == b"named 2"]
    assert [named_turn(log, 2)] == before
    tail = log._engine.tail()
    assert named_turn(log, 3).lsn == tail + 1
    (pending,) = log._run(unfinished())
    log.retire(pending)
    assert _values(log, "orders", committed=False)[-1] == (b"pending", "rolled back")
    assert log.publish("orders", b"new").lsn == log._engine.tail()
