"""Logs that an earlier release created by itself, without an id (DESIGN §7)."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from curp.log import open_engine
from curp.log._creation import log_id
from curp.log._engine import NewLog
from curp.log._opening import open_new
from tests.curp.replica.by_hand import ByHand
from tests.curp.replica.running import replica

pytestmark = pytest.mark.slow


def _id(url: str) -> int:
    with contextlib.closing(open_engine(url)) as engine:
        return log_id(engine)


def test_a_log_of_an_earlier_release_gets_its_id_from_its_next_leader(tmp_path: Path) -> None:
    """It opens as it is, and the id that its leader drew stays (DESIGN §7: the way over)."""
    url = f"sqlite:///{tmp_path}/bank.log?group=bank"
    # What such a release made: the tables are the same, the metadata empty.
    open_new(url, NewLog({}), layout=1).close()
    assert _id(url) == 0
    with replica(url) as running:
        running.until_leading()
        assert ByHand(running.address).deposit("one", "alice", 1).ok
    drawn = _id(url)
    assert drawn
    with replica(url, "r2") as running:
        running.until_leading()
        assert running.bank.paid == {"one": 1}
    assert _id(url) == drawn
