"""The log's demo, short: what it counts, that it can find what is wrong, and that it cleans up."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from examples.shared_log.audit import audit
from examples.shared_log.follower import open_view
from examples.shared_log.work import SUBSTREAMS, work_of

# The seq of a transaction over both streams.
SEQ = next(seq for seq in range(1, 40) if len(work_of("north", seq).messages) > 2)


@pytest.fixture
def scratch():
    """A directory where the server's own user may look, as pytest's are not."""
    with tempfile.TemporaryDirectory(prefix="demo-log-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


def _run(scratch, log, transactions, timeout):
    """What the demo counted, in its last line, of a run that left nothing behind."""
    flags = ["--log", log, "--transactions", str(transactions)]
    done = subprocess.run(
        [sys.executable, "-m", "examples.shared_log", *flags],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(scratch.iterdir()) == []
    counted = json.loads(done.stdout.splitlines()[-1])
    assert counted["published"] == counted["committed"] > 4 * transactions
    assert counted["followed"] > counted["published"]
    assert counted["kills"] > 0
    return done.stdout, counted


@pytest.mark.slow
def test_nothing_is_lost_doubled_torn_or_reordered_while_processes_are_killed(scratch):
    """Publishers and followers die by SIGKILL, and nothing is left behind (DESIGN-LOG §12, §13)."""
    _, counted = _run(scratch, "sqlite", 150, 110)
    assert [counted[each] for each in ("lost", "doubled", "torn", "reordered")] == [0, 0, 0, 0]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("log", "killed"),
    [("postgresql", "PostgreSQL killed"), ("redis", "Redis killed"), ("etcd", "etcd's n")],
)
def test_nothing_is_lost_where_the_log_s_server_is_killed_too(scratch, log, killed):
    """Over each engine with a server, which dies by SIGKILL as well (DESIGN-LOG §12, §13)."""
    said, counted = _run(scratch, log, 400, 580)
    assert killed in said
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
