"""The client in Go, built once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

HERE = Path(__file__).parent
# As go.mod says.
_OLDEST_GO = (1, 24)


def _without(why: str) -> NoReturn:
    said = f"{why}: the client in Go was NOT tested"
    if os.environ.get("CI") == "true":
        pytest.fail(said)
    pytest.skip(said)


@pytest.fixture(scope="session")
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
