"""Dagster's code server and its client, as they are, over our channel (libraries.md)."""

from __future__ import annotations

from pathlib import Path

import grpc
from dagster._grpc.client import DagsterGrpcClient

import rifl
from tests.helpers.ports import free_port
from tests.helpers.processes import Process
from tests.helpers.waiting import until

_LOCATION = """
import dagster

@dagster.op
def one():
    return 1

@dagster.job
def works():
    one()
"""


def test_a_code_location_answers_though_answers_are_lost(tmp_path: Path) -> None:
    """Ping and ListRepositories are retried by us; Dagster's own client sees no failure."""
    location, port = tmp_path / "location.py", free_port()
    location.write_text(_LOCATION)
    process = Process(
        "tests.libraries.dagster_server",
        *("--python-file", str(location), "--host", "127.0.0.1", "--port", str(port)),
        log=tmp_path / "log",
        env={"DAGSTER_HOME": str(tmp_path), "DAGSTER_DISABLE_TELEMETRY": "1"},
    )
    try:

        def listens() -> bool:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                try:
                    grpc.channel_ready_future(channel).result(timeout=1.0)
                except grpc.FutureTimeoutError:
                    return False
                return True

        until(listens, "it listens", 90.0)
        with rifl.instrument(f"127.0.0.1:{port}"):
            client = DagsterGrpcClient(host="127.0.0.1", port=port)
            assert client.ping("hello")["echo"] == "hello"
            assert "works" in client.list_repositories()
    finally:
        process.close()
