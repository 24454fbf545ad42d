"""A log that was restored from an older copy, under witnesses that know more (DESIGN §7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from curp._cli.command import main
from tests.curp.replica.by_hand import ByHand
from tests.curp.replica.running import Running, replica
from tests.helpers.processes import started
from tests.helpers.waiting import until

pytestmark = pytest.mark.slow

_DEADLINE_S = 60.0


def _until_listed(running: Running, witness: str) -> None:
    def listed() -> bool:
        return list(running.replica.configuration().witnesses) == [witness]

    running.until_leading()
    until(listed, "the witness is listed", _DEADLINE_S)


@pytest.mark.parametrize(
    ("log", "since"),
    [
        ("sqlite", ("r2",)),
        ("sqlite", ("r2", "r3")),
        ("postgres", ("r2",)),
        ("etcd", ("r2",)),
        *(
            pytest.param(engine, ("r2", "r3")[:lead], marks=pytest.mark.long)
            for engine, lead in (("redis", 1), ("redis", 2), ("postgres", 2), ("etcd", 2))
        ),
    ],
    indirect=["log"],
)
def test_a_witness_tells_that_the_log_is_an_older_copy(
    tmp_path: Path, log: Any, since: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """It served numbers that the log never gave: nobody leads on it, and it is said why (2, 5).

    However many try, and take a number each, until an operator accepts what is lost.
    """
    url = log.url
    with started("curp.witness", "--listen", "127.0.0.1:0", log=tmp_path / "w") as process:
        witness = process.line()
        with replica(url, "r1", witnesses=[witness]) as running:
            _until_listed(running, witness)
            assert ByHand(running.address).deposit("one", "alice", 1).ok
        restore = log.keep()
        for name in since:
            with replica(url, name, witnesses=[witness]) as running:
                _until_listed(running, witness)
                assert ByHand(running.address).deposit(name, "alice", 1).ok
        restore()
        for name in ("r4", "r5", "r6"):
            with replica(url, name, witnesses=[witness]) as running:
                until(lambda: running.replica.role == "stopped", "it stops", _DEADLINE_S)
                assert "the log went back" in running.replica.waiting_for
                assert witness in running.replica.waiting_for
    assert main(["recover", url]) == 0
    assert f"the log went back: witness {witness}" in capsys.readouterr().out
    assert main(["recover", url, "--accept-loss", "--why", "burnt", "--yes"]) == 0
    assert "This log is an older copy" in capsys.readouterr().out
    with started("curp.witness", "--listen", witness, log=tmp_path / "w2") as process:
        process.line()
        with replica(url, "r7", witnesses=[witness]) as running:
            _until_listed(running, witness)
            assert ByHand(running.address).deposit("two", "alice", 1).ok
