"""An installation without extras: it works, and says which one is missing."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What the extras bring, by the names that are imported.
BROUGHT = {
    "flask",
    "grpc_health",
    "grpc_reflection",
    "numpy",
    "opentelemetry",
    "pandas",
    "prometheus_client",
    "psycopg",
    "psycopg_pool",
    "pyarrow",
    "pymysql",
    "pyspark",
    "redis",
    "rich",
    "sqlalchemy",
}
_WITHOUT = f"""
import sys
for name in {sorted(BROUGHT)}:
    sys.modules[name] = None
"""


def without_extras(code: str) -> subprocess.CompletedProcess[str]:
    """Run Python in which nothing of the extras can be imported."""
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT + code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_every_package_is_imported_without_extras() -> None:
    """Servers, clients, groups, the commands and the test kit need no extra (pyproject.toml)."""
    names = [
        *("rifl", "rifl.aio", "rifl._cli", "rifl.spark", "rifl.testing", "lease_server"),
        *("curp", "curp._cli", "curp.client", "curp.log", "curp.witness.__main__"),
        *("sharedlog", "sharedlog.__main__"),
    ]
    code = f"""
import importlib
for name in {names}:
    importlib.import_module(name)
import rifl
with rifl.Deduplicator("memory:"):
    print("served")
"""
    ran = without_extras(code)
    assert (ran.returncode, ran.stdout) == (0, "served\n"), ran.stderr


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ('rifl.Deduplicator("redis://127.0.0.1:1")', "redis"),
        ('rifl.Deduplicator("postgresql://127.0.0.1:1/x")', "postgres"),
        ('rifl.Deduplicator("mysql://127.0.0.1:1/x")', "mysql"),
        ("import rifl.spark; rifl.spark.register(None)", "spark"),
        ("import rifl.spark; rifl.spark.call(None)", "spark"),
        ("import rifl.metrics", "metrics"),
        ("import curp.metrics", "metrics"),
        ("import rifl.tracing", "tracing"),
        ("import sharedlog.metrics", "metrics"),
        ("import sharedlog.tracing", "tracing"),
        ('rifl.Deduplicator("memory:").add_health(None)', "health"),
        ('rifl.Deduplicator("memory:").add_reflection(None)', "health"),
    ],
)
def test_what_needs_an_extra_names_it(code: str, extra: str) -> None:
    """The error's last line has the extra, by the name it has in pyproject.toml."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extra in extras["optional-dependencies"]
    ran = without_extras(f"import rifl\n{code}\n")
    assert ran.returncode == 1
    assert f"rifl-grpc[{extra}]" in ran.stderr.splitlines()[-1]
