"""Refusals of ``curp``, in processes of their own (DESIGN §7; docs/reference/curp.md)."""

from __future__ import annotations

from pathlib import Path

from curp.log import create_log
from tests.curp.replica.operated import operated
from tests.helpers.ports import free_port
from tests.helpers.processes import started


def _url(directory: Path) -> str:
    return f"sqlite:///{directory}/bank.log?group=bank"


def _refused(directory: Path, *arguments: str) -> str:
    """Run a command that ends with 1 by itself, and listens nowhere; what it says."""
    errors = directory / "refused.err"
    errors.unlink(missing_ok=True)
    with started("curp", *arguments, log=errors) as process:
        assert process.wait() == 1, process.errors()
        return process.errors()


def _serve(directory: Path, listen: str) -> tuple[str, ...]:
    return (
        *("serve", "examples.replicated_bank.bank:MemoryBank", "--engine", _url(directory)),
        *("--name", "r1", "--listen", listen),
    )


def test_a_replica_ends_where_its_log_never_was_or_is_empty(tmp_path: Path) -> None:
    """It starts over no empty log, and makes none: only ``curp init`` does (DESIGN §7)."""
    file, serve = tmp_path / "bank.log", _serve(tmp_path, f"127.0.0.1:{free_port()}")
    assert "curp init" in _refused(tmp_path, *serve)
    assert not file.exists()
    with operated(tmp_path, _url(tmp_path), replicas=1) as group:
        group.start()
        group.deposit("a")
        group.stop()
    assert file.stat().st_size > 0
    # As a volume that was made anew.
    file.write_bytes(b"")
    told = _refused(tmp_path, *serve)
    assert "lost" in told
    assert "curp init" in told


def test_nobody_is_handed_the_leadership_by_a_wrong_name(tmp_path: Path) -> None:
    """The one that leads goes on, and the operator is told who there is (DESIGN §7)."""
    with operated(tmp_path, _url(tmp_path), replicas=1) as group:
        group.start()
        assert group.leader() == "r1"
        before = group.status("r1")["configuration"]
        told = _refused(tmp_path, "transfer", group.replicas["r1"], "--to", "nobody")
        assert "no replica is called 'nobody'" in told
        after = group.status("r1")
        assert (after["role"], after["configuration"]["configuration"]) == (
            "leader",
            before["configuration"],
        )


def test_a_replica_ends_that_would_be_reached_nowhere(tmp_path: Path) -> None:
    """It may listen everywhere, and tells clients where: not ``0.0.0.0`` (DESIGN §3)."""
    create_log(_url(tmp_path))
    port = free_port()
    everywhere = (*_serve(tmp_path, f"0.0.0.0:{port}"), "--no-group-token")
    assert "--advertise" in _refused(tmp_path, *everywhere)
    advertised = ("--advertise", f"127.0.0.1:{port}")
    with started("curp", *everywhere, *advertised, log=tmp_path / "r1.err") as process:
        assert process.line() == advertised[1]
