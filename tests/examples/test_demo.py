"""The demo, small and seeded: what it counts, and that it cleans up."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.demo.audit import Audit
from examples.demo.picture import picture
from examples.demo.report import COLUMNS, FIELDS, rows_of

ROOT = Path(__file__).parents[2]
CALLS = 300


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """One short run, in a temporary directory of its own."""
    scratch = tmp_path_factory.mktemp("demo")
    flags = f"--seed 5 --calls {CALLS} --threads 6 --resets 2 --drops 4 --kills 2".split()
    finished = subprocess.run(
        [sys.executable, "-m", "examples.demo", *flags],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert list(scratch.iterdir()) == [], "the demo left files behind"
    return finished


def _counted(demo: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert demo.stdout, demo.stderr
    counted: dict[str, Any] = json.loads(demo.stdout.splitlines()[-1])
    return counted


def test_demo_finds_each_call_once_behind_rifl(demo: subprocess.CompletedProcess[str]) -> None:
    """The atomic run has one effect for each call and knows every outcome (DESIGN §1)."""
    assert demo.returncode == 0, demo.stdout + demo.stderr
    counted = _counted(demo)
    assert counted["calls"] == CALLS
    assert counted["rifl_effects"] == CALLS
    assert counted["rifl_duplicates"] == 0
    assert counted["rifl_lost"] == 0
    assert counted["rifl_unknown"] == 0
    assert counted["rifl_balance_cents"] == counted["rifl_expected_cents"]


def test_demo_never_doubles_behind_unchanged_methods(
    demo: subprocess.CompletedProcess[str],
) -> None:
    """A plain method's call is made once or reported as unknown (DESIGN §1)."""
    counted = _counted(demo)
    assert counted["rifl_plain_duplicates"] == 0
    assert counted["rifl_plain_lost"] == 0
    assert counted["rifl_plain_effects"] >= CALLS - counted["rifl_plain_unknown"]


def test_demo_shows_what_retries_do_without_rifl(demo: subprocess.CompletedProcess[str]) -> None:
    """gRPC's own retries repeat effects, and the demo counts them (anchors.md)."""
    counted = _counted(demo)
    assert counted["plain_duplicates"] > 0
    assert counted["plain_effects"] >= CALLS + counted["plain_duplicates"] - 1


def test_demo_prints_its_faults(demo: subprocess.CompletedProcess[str]) -> None:
    """The schedule of seeded faults is on the screen before the table."""
    schedule, table = demo.stdout.find("KILL -9"), demo.stdout.find("counted afterwards")
    assert 0 <= schedule < table


def test_the_picture_is_what_the_demo_would_draw() -> None:
    """docs/demo.svg has today's rows, columns and looks: else run ``make demo-picture``."""
    drawn = (ROOT / "docs/demo.svg").read_text()
    # The title, the columns' names, then row by row.
    _, *rest = re.findall(r"<text[^>]*>([^<]*)</text>", drawn)[len(COLUMNS) :]
    rows = {
        label: counts for label, *counts in zip(*[iter(rest)] * (1 + len(COLUMNS)), strict=True)
    }
    number = [
        {label: int(counts[at].replace(",", "").replace(".", "")) for label, counts in rows.items()}
        for at in range(len(COLUMNS))
    ]
    audits = [
        Audit(
            **{field: counted[label] for label, field in FIELDS.items()},
            balance_cents=counted["balance of the bank"],
            expected_cents=counted["expected"],
        )
        for counted in number
    ]
    assert picture(COLUMNS, rows_of(audits)) == drawn
    plain, unchanged, exact = audits
    assert plain.duplicates
    assert unchanged.exact
    assert exact.exact
    assert exact.effects == exact.calls
