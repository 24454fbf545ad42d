"""The demo of a pipeline with Spark, short: what it counts, and that it can find what is wrong."""

import json
import os
import sqlite3
import subprocess
import sys

import pytest

from examples.pipeline import billing, rides
from examples.pipeline.audit import audit
from examples.pipeline.callers import Ride, closing
from examples.pipeline.fleet import KINDS


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_each_ride_is_billed_once_though_all_four_processes_are_killed(tmp_path):
    """From the call through the event and Spark's row to the other service (DESIGN-LOG §16)."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "examples.pipeline",
            "--hours",
            "5",
            "--rides",
            "20",
            "--kills",
            "4",
        ],
        capture_output=True,
        text=True,
        timeout=1700,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counted = json.loads(done.stdout.splitlines()[-1])
    assert list(tmp_path.iterdir()) == []
    # One call is behind them, so that all hours are over.
    assert counted["calls"] == counted["events"] == 5 * 20 + 1
    assert 0 < counted["rows"] == counted["deliveries"] <= 100
    assert [counted[each] for each in ("duplicates", "missing", "wrong")] == [0, 0, 0]
    assert {name: counted["killed"][name] for name in KINDS} == dict.fromkeys(KINDS, 1)


_RIDES = [
    Ride("a", "rider 1", 7200, 100),
    Ride("b", "rider 1", 7300, 20),
    Ride("c", "rider 2", 7400, 300),
    Ride("d", "rider 1", 10800, 50),
]
_BILLS = [("rider 1", 7200, 2, 120), ("rider 2", 7200, 1, 300), ("rider 1", 10800, 1, 50)]


@pytest.mark.parametrize(
    ("place", "change", "counts"),
    [
        ("rides", "", (0, 0, 0)),
        ("rides", "DELETE FROM ride WHERE id = 'b'", (0, 1, 0)),
        (
            "rides",
            "INSERT INTO ride SELECT 9, id, rider, ended, cents FROM ride LIMIT 1",
            (1, 0, 0),
        ),
        ("billing", "DELETE FROM charge WHERE number = 1", (0, 1, 0)),
        ("billing", "UPDATE charge SET cents = 140 WHERE number = 1", (0, 1, 1)),
        (
            "billing",
            "INSERT INTO charge SELECT 9, rider, hour, rides, cents FROM charge WHERE number = 2",
            (1, 0, 0),
        ),
    ],
    ids=["as it was", "no ride", "ride twice", "no charge", "another charge", "charged twice"],
)
def test_the_audit_finds_what_is_wrong_in_a_table(tmp_path, place, change, counts):
    """A demo that counts nothing wrong has looked (DESIGN §8)."""
    found = _audited(tmp_path, place, change)
    assert (found.duplicates, found.missing, found.wrong) == counts


def test_the_audit_finds_what_is_wrong_in_a_stream(tmp_path):
    """An event that is lost, a bill that is written twice, and one of no ride's."""
    rows = [*_BILLS, _BILLS[0], ("rider 3", 7200, 1, 1)]
    found = _audited(tmp_path, events=_RIDES[1:], rows=rows)
    assert (found.duplicates, found.missing, found.wrong) == (1, 1, 1)
    assert (found.calls, found.events, found.rows, found.deliveries) == (5, 4, 5, 3)


def _audited(tmp_path, place="rides", change="", events=_RIDES, rows=_BILLS):
    """What the demo leaves behind, by hand, and changed."""
    tables = {"rides": tmp_path / "rides.db", "billing": tmp_path / "billing.db"}
    rides.create(tables["rides"])
    billing.create(tables["billing"])
    last = closing(2)
    with sqlite3.connect(tables["rides"]) as database:
        database.executemany(
            "INSERT INTO ride (id, rider, ended, cents) VALUES (?, ?, ?, ?)", [*_RIDES, last]
        )
    database.close()
    with sqlite3.connect(tables["billing"]) as database:
        database.executemany(
            "INSERT INTO charge (rider, hour, rides, cents) VALUES (?, ?, ?, ?)", _BILLS
        )
    database.close()
    with sqlite3.connect(tables[place]) as database:
        database.execute(change)
    database.close()
    return audit(_RIDES, last, tables["rides"], [*events, last], rows, tables["billing"])
