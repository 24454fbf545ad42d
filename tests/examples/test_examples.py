"""Each example runs as a reader would run it, and verifies itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "name",
    [
        "wrap_server",
        "wrap_aio_server",
        "tokens",
        "mutual_tls",
        "retries_and_hedging",
        "batched_rows",
        "atomic_record",
        "header_only_client",
        "http_front",
        "replicas_over_redis",
        "sqlalchemy_service",
        "read_model",
        "redis_cache",
        "mailed_orders",
        "changed_code",
        "recipes.gunicorn_front",
        "recipes.fastapi_front",
        "recipes.django_front",
        "recipes.celery_task",
    ],
)
def test_example_shows_what_it_says(name: str) -> None:
    """The example exits with 0 after at least two checks of its own."""
    finished = subprocess.run(
        [sys.executable, "-m", f"examples.{name}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    checks = [line for line in finished.stdout.splitlines() if line.startswith("ok  ")]
    assert len(checks) >= 2
