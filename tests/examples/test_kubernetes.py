"""kubernetes.yaml: valid in several versions, and used: its command, probes, SIGTERM and drain."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import kubernetes_validate
import psycopg
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

import rifl
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from tests.helpers.ports import free_port
from tests.helpers.processes import Process
from tests.helpers.waiting import until

_MANIFEST = Path(__file__).parents[2] / "examples/deploying/kubernetes.yaml"
_OBJECTS = list(yaml.safe_load_all(_MANIFEST.read_text()))
_BY_KIND = {each["kind"]: each for each in _OBJECTS}
_POD = _BY_KIND["Deployment"]["spec"]["template"]
(_CONTAINER,) = _POD["spec"]["containers"]
_PORTS = {each["name"]: each["containerPort"] for each in _CONTAINER["ports"]}
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


# The oldest that has all its fields, and two later ones.
@pytest.mark.parametrize("version", ["1.30", "1.32", "1.34"])
def test_the_manifest_is_valid(version: str) -> None:
    """Kubernetes knows every object of it, field by field; nothing is misspelt."""
    assert [each["kind"] for each in _OBJECTS] == [
        *("Secret", "Service", "Deployment", "PodDisruptionBudget")
    ]
    for each in _OBJECTS:
        kubernetes_validate.validate(each, version, strict=True)


def test_an_older_kubernetes_lacks_a_field() -> None:
    """The comment at ``preStop`` says since when it is there."""
    with pytest.raises(kubernetes_validate.ValidationError, match="sleep"):
        kubernetes_validate.validate(_BY_KIND["Deployment"], "1.28", strict=True)


def test_what_it_names_is_there() -> None:
    """Secrets and their keys, labels, ports: each reference leads to something."""
    secret = _BY_KIND["Secret"]
    for each in _CONTAINER["env"]:
        named = each["valueFrom"]["secretKeyRef"]
        assert named["name"] == secret["metadata"]["name"]
        assert named["key"] in secret["stringData"]
    labels = _POD["metadata"]["labels"]
    for kind in ("Service", "Deployment", "PodDisruptionBudget"):
        selector = _BY_KIND[kind]["spec"]["selector"]
        assert selector.get("matchLabels", selector) == labels
    (port,) = _BY_KIND["Service"]["spec"]["ports"]
    assert port["targetPort"] in _PORTS
    assert _CONTAINER["readinessProbe"]["grpc"]["port"] == _PORTS["grpc"]
    assert _CONTAINER["livenessProbe"]["tcpSocket"]["port"] in _PORTS
    annotations = _POD["metadata"]["annotations"]
    assert int(annotations["prometheus.io/port"]) == _PORTS["metrics"]


def test_its_grace_is_longer_than_its_drain() -> None:
    """Kubernetes sends SIGKILL after all that a replica may take to end in order."""
    arguments = _CONTAINER["args"]
    drain_s = float(arguments[arguments.index("--drain-s") + 1])
    before_s = _CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]
    # The server stops, and the store is closed.
    assert before_s + drain_s + 5 < _POD["spec"]["terminationGracePeriodSeconds"]
    # A store that is away takes a replica out, and restarts none.
    assert "grpc" in _CONTAINER["readinessProbe"]
    assert "grpc" not in _CONTAINER["livenessProbe"]


@pytest.fixture
def database(shared_postgres: Any) -> Iterator[str]:
    """An empty database's URL."""
    with shared_postgres.connect(autocommit=True) as connection:
        connection.execute("CREATE DATABASE kubernetes")
        yield shared_postgres.url().replace("/postgres", "/kubernetes")
        connection.execute("DROP DATABASE kubernetes WITH (FORCE)")


class _Container:
    """The container's command as it is written, at free ports of 127.0.0.1, and its probes."""

    def __init__(self, database: str, log: Path) -> None:
        self.ports = {name: free_port() for name in _PORTS}
        places = {
            f"0.0.0.0:{port}": f"127.0.0.1:{self.ports[name]}" for name, port in _PORTS.items()
        }
        python, module_flag, module, *more = [*_CONTAINER["command"], *_CONTAINER["args"]]
        assert (python, module_flag) == ("python", "-m")
        assert set(places) <= set(more)
        (variable,) = (each["name"] for each in _CONTAINER["env"])
        arguments = [places.get(each, each) for each in more]
        self.process = Process(module, *arguments, log=log, env={variable: database})
        self.channel = grpc.insecure_channel(self.target)

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.ports['grpc']}"

    def close(self) -> None:
        self.channel.close()
        self.process.close()

    def is_ready(self) -> bool:
        assert self.process.alive, self.process.errors()
        service = _CONTAINER["readinessProbe"]["grpc"].get("service", "")
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            told = health_pb2_grpc.HealthStub(self.channel).Check(request, timeout=5)
        except grpc.RpcError:
            return False
        assert told.status in (_SERVING, _NOT_SERVING)
        return bool(told.status == _SERVING)

    def is_alive(self) -> bool:
        port = self.ports[_CONTAINER["livenessProbe"]["tcpSocket"]["port"]]
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            return False
        return True

    def metrics(self) -> str:
        url = f"http://127.0.0.1:{self.ports['metrics']}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            text: str = answer.read().decode()
        return text


def test_the_container_is_used(database: str, tmp_path: Path) -> None:
    """Its command serves; its probes pass; SIGTERM lets a call end, and new ones are refused."""
    container = _Container(database, tmp_path / "bank.err")
    try:
        until(container.is_ready, "it is ready")
        assert container.is_alive()
        assert "rifl_server_serving 1.0" in container.metrics()
        with rifl.connect(container.target) as channel, psycopg.connect(database) as other:
            stub = bank_pb2_grpc.BankStub(channel)
            request = bank_pb2.DepositRequest(reference="rent", account="alice", cents=500)
            assert stub.Deposit(request, timeout=30).entry == 1
            other.execute("LOCK TABLE deposit IN ACCESS EXCLUSIVE MODE")
            slow = stub.Deposit.future(request, timeout=60)
            until(lambda: "rifl_server_running 1.0" in container.metrics(), "it runs")
            stopping = threading.Thread(target=container.process.terminate)
            stopping.start()
            until(lambda: not container.is_ready(), "it drains")
            assert container.is_alive()
            assert "rifl_server_serving 0.0" in container.metrics()
            assert not slow.done()
            other.rollback()
            assert slow.result().entry == 2
            stopping.join()
        assert container.process.wait() == 0
        with psycopg.connect(database) as books:
            assert books.execute("SELECT count(*) FROM deposit").fetchone() == (2,)
    finally:
        container.close()
