"""A store's file under two names, as two that differ in case are on macOS (DESIGN §6).

Here they are two hard links, and so are their locks' files.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from _rifl_ground.sqlite import opening
from _rifl_ground.sqlite.failures import Stopped
from rifl._stores.errors import StoreLocked
from rifl._stores.sqlite.ownership import Ownership, owner_of

_ROOT = Path(__file__).parents[2]
_TAKE = (
    "import sys; from pathlib import Path; from rifl._stores.errors import StoreLocked\n"
    "from rifl._stores.sqlite.ownership import Ownership\n"
    "try: Ownership(Path(sys.argv[1]), 0.0)\n"
    "except StoreLocked: print('locked')\n"
    "else: print('taken')"
)


@pytest.fixture
def names(tmp_path):
    """Two names of one file, with locks of the same names."""
    for one, other in (("a.db", "A.DB"), ("a.db.lock", "A.DB.lock")):
        (tmp_path / one).touch()
        (tmp_path / other).hardlink_to(tmp_path / one)
    return tmp_path / "a.db", tmp_path / "A.DB"


def taken(path):
    """Whether another process can own the store."""
    return subprocess.run(
        [sys.executable, "-c", _TAKE, path], cwd=_ROOT, capture_output=True, text=True, timeout=250
    ).stdout.strip()


def test_one_process_owns_a_store_once_whatever_its_name(names):
    """Neither a look nor an attempt by the other name drops the lock: no other process gets it."""
    one, other = names
    owned = Ownership(one, 0.0)
    try:
        assert owner_of(other) == f"pid {os.getpid()}"
        with pytest.raises(StoreLocked, match="open in this process"):
            Ownership(other, 0.0)
        assert (taken(one), taken(other)) == ("locked", "locked")
    finally:
        owned.release()
    assert owner_of(other) is None
    assert taken(other) == "taken"


def test_a_file_that_the_parent_had_open_is_refused_by_both_names(names, monkeypatch):
    """SQLite's locks are those of the file (DESIGN §5)."""
    one, other = names
    monkeypatch.setattr(opening, "_inherited", {one.resolve()})
    for each in names:
        assert opening.is_inherited(each)
        with pytest.raises(Stopped, match="at the fork"):
            opening.connect(each, opening.Connection, busy_s=0.0)
    assert not opening.is_inherited(other.with_name("b.db"))
