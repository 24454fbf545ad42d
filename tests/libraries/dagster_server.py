"""A code location of Dagster's own command, whose servers are wrapped, and lose an answer."""

from __future__ import annotations

import sys

import pytest

from tests.libraries.conftest import Wrapped


def main() -> None:
    """Serve what the arguments say, as ``dagster api grpc`` does."""
    wrapped = Wrapped(pytest.MonkeyPatch())
    wrapped.faults.arm("drop-answer", 2, method="/api.DagsterApi/Ping")
    wrapped.faults.arm("drop-answer", 1, method="/api.DagsterApi/ListRepositories")
    from dagster._cli import main as dagster

    sys.argv = ["dagster", "api", "grpc", *sys.argv[1:]]
    dagster()


if __name__ == "__main__":
    main()
