"""The demo of deliveries, short: what it counts, and that it can find what is wrong."""

import json
import os
import sqlite3
import subprocess
import sys

import pytest

from examples.delivered_orders import services
from examples.delivered_orders.audit import audit

pytestmark = pytest.mark.faults


@pytest.mark.slow
def test_each_order_is_delivered_once_and_in_order_while_processes_are_killed(tmp_path):
    """Whoever dies by SIGKILL, and nothing is left behind (DESIGN-LOG §15)."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.delivered_orders", "--orders", "60"],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counted = json.loads(done.stdout.splitlines()[-1])
    assert list(tmp_path.iterdir()) == []
    assert (counted["orders"], counted["deliveries"]) == (60, 180)
    kinds = {"shop", "inventory", "billing", "mail", "player 1", "player 2", "dispatcher"}
    assert counted["killed"].keys() == kinds
    assert counted["kills"] == sum(counted["killed"].values())
    # It falls with an order written and not answered: whoever calls it again without knowing
    # doubles that one.
    assert counted["crashed"].keys() == {"billing"}
    assert counted["naive_duplicates"] > 0
    assert [counted[each] for each in ("duplicates", "missing", "out_of_order")] == [0, 0, 0]


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        ("", (0, 0, 0, 0)),
        ("DELETE FROM effect WHERE number = 2", (0, 1, 0, 0)),
        (
            "INSERT INTO effect SELECT 9, name, substream, lsn, ordinal, at_ns FROM effect "
            "WHERE number = 4",
            (1, 0, 0, 1),
        ),
        ("UPDATE effect SET number = -number", (0, 0, 0, 2)),
        ("UPDATE effect SET name = 'x' WHERE number = 1", (0, 1, 1, 0)),
    ],
    ids=["as it was", "missing", "doubled", "out of order", "never ordered"],
)
def test_the_audit_finds_what_is_wrong(tmp_path, change, counts):
    """A demo that counts nothing wrong has looked (DESIGN §8)."""
    path = tmp_path / "mail.db"
    services.create(path)
    ordered = [f"order {number}" for number in range(4)]
    with sqlite3.connect(path) as view:
        for number, name in enumerate(ordered, 1):
            row = (number, name, number % 2, number, 0, number)
            view.execute("INSERT INTO effect VALUES (?, ?, ?, ?, ?, ?)", row)
            view.execute("INSERT INTO naive_effect (name) VALUES (?)", (name,))
        view.execute(change)
    view.close()
    found = audit(ordered, ordered, {"mail": path})
    assert (found.duplicates, found.missing, found.never_ordered, found.out_of_order) == counts
    assert (found.naive_duplicates, found.naive_missing, found.ordered_twice) == (0, 0, 0)
