"""Clients in other words than ours, against a real server."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.interop import scenario

HERE = Path(__file__).parent
SCRIPT = HERE / "grpcio_client.py"
_KINDS = ("sync", "threads")
# As go.mod says.
_OLDEST_GO = (1, 24)


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
    """What docs/protocol.md says is enough for exactly-once calls from Python (DESIGN §3, §5)."""
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


def _without(why: str) -> NoReturn:
    said = f"{why}: the client in Go was NOT tested"
    if os.environ.get("CI") == "true":
        pytest.fail(said)
    pytest.skip(said)


@pytest.fixture(scope="module")
def go_client(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The Go client, built by the machine's Go into a temporary directory."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        _without("no `go` on PATH or in /usr/local/go/bin")
    version = subprocess.run(
        [go, "env", "GOVERSION"], capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()
    # A version between releases calls itself devel, and knows what to do.
    found = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if version.startswith("go") and found < _OLDEST_GO:
        _without(f"{go} is {version}, and Go {'.'.join(map(str, _OLDEST_GO))} is needed")
    # Go rewrites go.mod and go.sum where they are: not in the repository.
    source = tmp_path_factory.mktemp("go")
    for file in (HERE / "go").iterdir():
        shutil.copy(file, source)
    built = source / "client"
    finished = subprocess.run(
        [go, "build", "-o", str(built), "."],
        cwd=source,
        # No other toolchain than the machine's, and the versions of the committed go.sum.
        env={**os.environ, "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return [str(built)]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", _KINDS)
def test_client_in_go(kind: str, go_client: list[str], tmp_path: Path) -> None:
    """What docs/protocol.md says is enough for exactly-once calls from Go (DESIGN §3, §5)."""
    _play(go_client, kind, tmp_path)
