"""Clients in other words than ours, against a real server."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.interop import scenario

HERE = Path(__file__).parent
SCRIPT = HERE / "grpcio_client.py"
_KINDS = ("sync", "threads")


def _play(command: list[str], kind: str, directory: Path) -> None:
    with scenario.served(kind, directory) as (target, bank, ledger):
        finished = subprocess.run(
            [*command, target, str(scenario.HEADERS)],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert finished.returncode == 0, finished.stdout + finished.stderr
        lines = [json.loads(line) for line in finished.stdout.splitlines()]
        seen: dict[str, dict[str, Any]] = {line["step"]: line for line in lines}
        scenario.check(kind, seen, bank, ledger)


@pytest.mark.parametrize("kind", _KINDS)
def test_client_of_grpcio_alone(kind: str, tmp_path: Path) -> None:
    """What protocol.md says is enough for exactly-once calls from Python (DESIGN §3, §5)."""
    _play([sys.executable, str(SCRIPT)], kind, tmp_path)


def test_client_of_grpcio_alone_imports_nothing_of_ours() -> None:
    """The client is made of grpcio and the standard library."""
    imported = {
        name.name.split(".")[0]
        for node in ast.walk(ast.parse(SCRIPT.read_text()))
        if isinstance(node, ast.Import)
        for name in node.names
    }
    sources = [n for n in ast.walk(ast.parse(SCRIPT.read_text())) if isinstance(n, ast.ImportFrom)]
    assert sources == []
    assert imported - sys.stdlib_module_names == {"grpc"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", _KINDS)
def test_client_in_go(kind: str, go_client: list[str], tmp_path: Path) -> None:
    """What protocol.md says is enough for exactly-once calls from Go (DESIGN §3, §5)."""
    _play(go_client, kind, tmp_path)
