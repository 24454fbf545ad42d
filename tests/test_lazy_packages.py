"""Packages import their parts when these are asked for: Spark's workers need few of them."""

from __future__ import annotations

import ast
import importlib
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAZY = ("curp", "lease_server", "rifl", "rifl.spark", "sharedlog")
# What takes most of a second to import, and what extras bring.
_HEAVY = {"asyncio", "grpc", "psycopg", "pyarrow", "pyspark", "redis", "structlog"}


def _imported(code: str) -> set[str]:
    """Return which modules a process has that runs this."""
    found = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    return set(found.stdout.split())


@pytest.mark.parametrize("package", ["lease_server", "rifl", "sharedlog", "sharedlog.spark"])
def test_a_package_imports_nothing_heavy_by_itself(package: str) -> None:
    """Who imports a part of it pays for that part (DESIGN-LOG §16: each task slot does)."""
    assert _imported(f"import {package}") & _HEAVY == set()


def test_a_task_of_the_logs_sink_has_no_client_of_calls() -> None:
    """What appends to a log, and reads it, needs no gRPC and no logger (DESIGN-LOG §16)."""
    pytest.importorskip("pyspark")
    found = _imported("import sharedlog.spark._sink, sharedlog.spark._source")
    assert found & {"grpc", "psycopg", "redis", "structlog", "rifl._client"} == set()


def test_a_task_that_calls_a_service_has_no_store() -> None:
    """Each process that Spark starts for a plan, a task or a commit would load it (DESIGN §8)."""
    pytest.importorskip("pyspark")
    assert "rifl._stores" not in _imported("import rifl.spark._sink, rifl.spark._call")


@pytest.mark.parametrize(
    "program",
    [
        "import rifl; rifl.Deduplicator('memory:').close()",
        "import rifl; rifl.connect('127.0.0.1:1').close()",
        "import curp; curp.Replica",
        "import curp._cli.command",
        "import sharedlog._cli.command",
        "from _rifl_ground.log import get_logger; get_logger('rifl').error('lost', at=7)",
    ],
)
def test_servers_clients_and_commands_import_no_more_than_they_use(program: str) -> None:
    """Each process of a service starts with this: structlog comes with the application alone."""
    assert _imported(program) & {"structlog", "rich", "importlib.metadata"} == set()


@pytest.mark.parametrize("package", LAZY)
def test_all_names_are_there_and_where_types_are_checked(package: str) -> None:
    """``dir`` has them, ``import *`` gives them, and type checkers see the same objects."""
    module = importlib.import_module(package)
    assert set(module.__all__) <= set(dir(module))
    starred: dict[str, object] = {}
    exec(f"from {package} import *", starred)  # noqa: S102 - its own names
    assert set(module.__all__) <= set(starred)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018 - it raises
    source = Path(str(module.__file__)).read_text()
    checked = next(node for node in ast.parse(source).body if isinstance(node, ast.If))
    found = set()
    for node in checked.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            there = importlib.import_module(str(node.module))
            name = alias.asname or alias.name
            assert getattr(module, name) is getattr(there, alias.name), name
            found.add(name)
    # Of some, some are no more than written down here.
    assert found == set(module.__all__) or not checked.orelse


def test_what_is_pickled_is_found_again() -> None:
    """Errors and values travel between processes as before."""
    code = "import pickle, sys; print(repr(pickle.loads(bytes.fromhex(sys.argv[1]))))"
    import sharedlog

    data = pickle.dumps(sharedlog.Fenced("another run took over", 7))
    found = subprocess.run(
        [sys.executable, "-c", code, data.hex()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "Fenced('another run took over', 7)\n"
