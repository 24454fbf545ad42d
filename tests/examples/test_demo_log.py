"""The log's demo, short: what it counts, that it can find what is wrong, and that it cleans up."""

import json
import os
import subprocess
import sys

import pytest

from examples.shared_log.audit import audit
from examples.shared_log.follower import open_view
from examples.shared_log.work import SUBSTREAMS, work_of

# The seq of a transaction over both streams.
SEQ = next(seq for seq in range(1, 40) if len(work_of("north", seq).messages) > 2)


@pytest.mark.slow
def test_nothing_is_lost_doubled_torn_or_reordered_while_processes_are_killed(tmp_path):
    """Publishers and followers die by SIGKILL, and nothing is left behind (DESIGN-LOG §12, §13)."""
    flags = ["--transactions", "150"]
    done = subprocess.run(
        [sys.executable, "-m", "examples.shared_log", *flags],
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counted = json.loads(done.stdout.splitlines()[-1])
    assert list(tmp_path.iterdir()) == []
    assert counted["published"] == counted["committed"] > 600
    assert counted["followed"] > counted["published"]
    assert counted["kills"] > 0
    assert [counted[each] for each in ("lost", "doubled", "torn", "reordered")] == [0, 0, 0, 0]


def _view(path, stream, seqs):
    """A follower's database with the messages of these transactions, in this order."""
    view = open_view(path)
    for seq in seqs:
        for place, message in enumerate(work_of("north", seq).messages):
            if message.stream == stream:
                text = message.text[:60]
                view.execute(
                    "INSERT INTO effect (substream, text, at) VALUES (?, ?, ?)",
                    (place % SUBSTREAMS, text, float(seq)),
                )
    return view


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        ("", (0, 0, 0, 0)),
        ("DELETE FROM effect WHERE number = (SELECT max(number) FROM effect)", (1, 0, 1, 0)),
        (
            "INSERT INTO effect (substream, text, at) "
            "SELECT substream, text, at FROM effect ORDER BY number DESC LIMIT 1",
            (0, 1, 0, 0),
        ),
        ("UPDATE effect SET number = -number, substream = 0", (0, 0, 0, None)),
        ("UPDATE effect SET text = 'never to be seen, ' || text WHERE number = 1", (1, 0, 0, None)),
    ],
    ids=["as it was", "lost", "doubled", "reordered", "never published"],
)
def test_the_audit_finds_what_is_wrong(tmp_path, change, counts):
    """A demo that counts nothing wrong has looked (DESIGN §8)."""
    views = {tmp_path / "a.db": "orders", tmp_path / "b.db": "invoices"}
    for path, stream in views.items():
        view = _view(path, stream, range(1, SEQ + 1))
        if change and stream == "orders":
            view.execute(change)
        view.close()
    found = audit(["north"], SEQ, views)
    lost, doubled, torn, reordered = counts
    assert (found.lost, found.doubled, found.torn) == (lost, doubled, torn)
    if reordered is None:
        assert found.reordered + found.never_published > 0
    else:
        assert (found.reordered, found.never_published) == (0, 0)
