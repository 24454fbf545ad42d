"""A shared log in SQLite as a text file, and back: a format that is kept.

``python -m tests.compat.shared_logs`` writes it. Until the first release is tagged, run it
whenever the format changes; after that, each format keeps the file of its first release.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import sharedlog
from sharedlog._core import envelope as envelopes
from sharedlog._core.entry import ProducerDecision
from sharedlog._core.producers import NewMessage, grant
from sharedlog._core.spans import decide, pend

__all__ = ["ABOUT", "FILE", "fill", "load_sqlite", "named_turn"]

FILE = Path(__file__).with_name("shared_log_sqlite.sql")
ABOUT = sharedlog.About(
    content_type="text/plain",
    schema_name="shop.Order",
    trace_parent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    trace_state="a=b",
    causation_id="cause",
    event_time_us=1_700_000_000_000_000,
)
# How the line begins that has what is noted beside the file, in hexadecimal.
_NOTED = "-- events.log.sharedlog: "


def fill(log: sharedlog.Log) -> None:
    """Write a little of everything that a log keeps.

    Streams; messages with all that an envelope has; transactions of one append, and of several,
    which a marker commits, which were rolled back, and which nobody decided; a named producer; a
    fence; holds, one of them dropped; and a beginning that is trimmed.
    """
    log.stream("orders", 2, timedelta(0))
    log.stream("audit", 1, timedelta(0))
    for number in range(4):
        log.publish("orders", f"old {number}", key="k")
    with log.follow("orders", name="billing") as following:
        following.done(following.poll()[-1])
    with log.follow("audit", name="gone"):
        pass
    log.drop_hold("gone")
    log.trim()
    log.publish("orders", b"\x00\xff", key=b"\xff", headers={"h": b"\x00", "i": "j"}, about=ABOUT)
    log.publish_call("audit", "/shop.Shop/Reserve", b"request")
    with log.producer().transaction() as transaction:
        transaction.publish("orders", "both", key="k")
        transaction.publish("audit", "both")
    named_turn(log, 1)
    named_turn(log, 2)
    for end, commits in (("committed", True), ("rolled back", False), ("pending", None)):
        mine = log._run(grant(end.encode().rjust(16)))
        begins: dict[str, int] = {}
        for seq, tag in ((1, "orders/1"), (2, "audit/0")):
            message = NewMessage(envelopes.pack(end.encode(), None, None, 0), (tag,))
            begins |= log._run(pend(mine, seq, [message], sorted(begins))).begins
        if commits is not None:
            log._run(decide(mine, 3, [ProducerDecision(mine.id, 2, begins)], commits=commits))
    log.raise_fence("writer")


def named_turn(log: sharedlog.Log, seq: int) -> sharedlog.Position:
    """Publish what the name ``relay`` publishes as this seq; where it is."""
    with log.producer("relay").transaction(seq=seq, follows=seq - 1) as transaction:
        transaction.publish("audit", f"named {seq}")
    return transaction.positions[0]


def make() -> str:
    """Return a log as SQL, and what is noted beside its file."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "events.log"
        with sharedlog.create(f"sqlite:///{path}") as log:
            fill(log)
        with closing(sqlite3.connect(path)) as connection:
            lines = list(connection.iterdump())
        return "\n".join([_NOTED + _note_of(path).read_bytes().hex(), *lines]) + "\n"


def load_sqlite(path: Path, text: str) -> None:
    """Write the file, and what is noted beside it."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(text)
    noted = text.partition("\n")[0].removeprefix(_NOTED)
    _note_of(path).write_bytes(bytes.fromhex(noted))


def _note_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sharedlog")


def main() -> None:
    """Write the file."""
    FILE.write_text(make())
    sys.stdout.write(f"{FILE}\n")


if __name__ == "__main__":
    main()
