"""On Windows the client works, and what needs POSIX is refused (DESIGN §2)."""

import json
import subprocess
import sys
from pathlib import Path

from rifl import Deduplicator
from tests.echo import served

_ROOT = Path(__file__).parents[2]


def test_the_client_calls_and_stores_in_files_are_refused():
    """Its modules import without what POSIX alone has; the refusal is typed, and says why."""
    with Deduplicator("memory:") as dedup, served(dedup) as target:
        found = subprocess.run(
            [sys.executable, "-m", "tests.systems.on_windows", target],
            cwd=_ROOT,
            capture_output=True,
            text=True,
            timeout=250,
        )
    assert found.returncode == 0, found.stderr
    answers, refused = json.loads(found.stdout)
    assert answers == ["sync", "keyed", "aio"]
    said = {name: error for name, (error, _) in refused.items()}
    assert said == {
        "store": "UnsupportedStore",
        "inspection": "UnsupportedStore",
        "log": "InvalidRequest",
        "group's log": "InvalidRequest",
        "outbox": "InvalidRequest",
        "witness": "JournalError",
    }
    assert all("Windows" in text and "WSL" in text for _, text in refused.values()), refused
