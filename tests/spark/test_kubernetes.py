"""spark.yaml: valid in several versions; its driver asks for what its Role has, and books once."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import kubernetes_validate
import pyspark
import pytest
import yaml

from tests.helpers.ports import free_port
from tests.helpers.waiting import until
from tests.spark.conftest import SLOW_S, BankProcess, spark_environment
from tests.spark.standing_in import StandIn, mounted

_ROOT = Path(__file__).parents[2]
_MANIFEST = _ROOT / "examples/deploying/spark.yaml"
_OBJECTS = list(yaml.safe_load_all(_MANIFEST.read_text()))
_BY_KIND = {each["kind"]: each for each in _OBJECTS}
_DRIVER = _BY_KIND["Job"]["spec"]["template"]
(_CONTAINER,) = _DRIVER["spec"]["containers"]
_TEMPLATE = yaml.safe_load(_BY_KIND["ConfigMap"]["data"]["executor.yaml"])
_SETTINGS = dict(
    each.removeprefix("--conf=").split("=", 1)
    for each in _CONTAINER["args"]
    if each.startswith("--conf=")
)
_KNOWN = "org/apache/spark/deploy/k8s/Config$.class"


@pytest.mark.parametrize("version", ["1.30", "1.32", "1.34"])
def test_the_manifest_and_the_executors_template_are_valid(version: str) -> None:
    """Kubernetes knows every object of it, field by field; nothing is misspelt."""
    assert [each["kind"] for each in _OBJECTS] == [
        *("Secret", "ServiceAccount", "Role", "RoleBinding", "Service", "ConfigMap", "Job")
    ]
    for each in (*_OBJECTS, _TEMPLATE):
        kubernetes_validate.validate(each, version, strict=True)


def test_what_it_names_is_there() -> None:
    """Secrets, accounts, labels, ports, files and Spark's settings: each leads to something."""
    secret, service = _BY_KIND["Secret"], _BY_KIND["Service"]
    assert _BY_KIND["RoleBinding"]["roleRef"]["name"] == _BY_KIND["Role"]["metadata"]["name"]
    account = _BY_KIND["ServiceAccount"]["metadata"]["name"]
    assert _BY_KIND["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    assert _DRIVER["spec"]["serviceAccountName"] == account
    assert service["spec"]["selector"].items() <= _DRIVER["metadata"]["labels"].items()
    assert _SETTINGS["spark.driver.host"] == service["metadata"]["name"]
    ports = {str(each["port"]) for each in service["spec"]["ports"]}
    assert {str(each["containerPort"]) for each in _CONTAINER["ports"]} == ports
    wanted = {_SETTINGS["spark.driver.port"], _SETTINGS["spark.driver.blockManager.port"]}
    assert wanted == ports
    assert _SETTINGS["spark.kubernetes.container.image"] == _CONTAINER["image"]
    for pod, container in ((_DRIVER, _CONTAINER), (_TEMPLATE, _TEMPLATE["spec"]["containers"][0])):
        told = {each["name"]: each.get("value") for each in container["env"]}
        (mount,) = (each for each in container["volumeMounts"] if each["name"] == "rifl")
        folder, _, key = told["RIFL_SESSION_SECRET_FILE"].rpartition("/")
        assert (folder, key in secret["stringData"]) == (mount["mountPath"], True)
        (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == "rifl")
        assert volume["secret"]["secretName"] == secret["metadata"]["name"]
    folder, _, file = _SETTINGS["spark.kubernetes.executor.podTemplateFile"].rpartition("/")
    assert folder in {each["mountPath"] for each in _CONTAINER["volumeMounts"]}
    assert file in _BY_KIND["ConfigMap"]["data"]
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("spark-kubernetes_*.jar")
    with zipfile.ZipFile(jar) as classes:
        known = classes.read(_KNOWN)
    for name in _SETTINGS:
        assert "kubernetes" not in name or name.encode() in known, name


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3000)
def test_the_job_runs_as_it_is_written(java: None, tmp_path: Path) -> None:
    """Its driver makes executors' pods, which are valid, and asks for nothing that its Role lacks;
    started again, as the Job does it, it books nothing twice. By a stand-in for Kubernetes."""
    secrets, rows, names = tmp_path / "secrets", tmp_path / "rows", [f"k{n}" for n in range(40)]
    (secrets / "deposits").mkdir(parents=True)
    (secrets / "deposits/session-secret").write_text("0123456789abcdef" * 4)
    (tmp_path / "executor.yaml").write_text(_BY_KIND["ConfigMap"]["data"]["executor.yaml"])
    rows.mkdir()
    for file in range(2):
        lines = [{"reference": name, "account": "alice", "cents": 1} for name in names[file::2]]
        (rows / f"{file}.json").write_text("\n".join(map(json.dumps, lines)))
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": _DRIVER["spec"]}
    pod["metadata"] = {"name": "deposits-x7k2p", "namespace": "default"}
    pod["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    image = {**spark_environment(), "PATH": "/usr/bin:/bin"}
    bank = BankProcess(tmp_path, "--store", f"sqlite:///{tmp_path}/rifl.db")
    try:
        for run in range(2):
            with StandIn(pod, secrets, image) as kubernetes:
                _run_driver(kubernetes, pod, tmp_path, bank.target, secrets)
            assert bank.effects() == dict.fromkeys(names, 1), run
            rules = _BY_KIND["Role"]["rules"]
            permitted = {
                (kind, verb)
                for rule in rules
                for kind in rule["resources"]
                for verb in rule["verbs"]
            }
            assert kubernetes.asked - permitted == set(), kubernetes.asked
            assert len(kubernetes.executors) == 2
            for each in kubernetes.executors:
                each["metadata"].pop("resourceVersion")
                kubernetes_validate.validate(each, "1.34", strict=True)
                owner = each["metadata"]["ownerReferences"][0]
                assert owner["name"] == pod["metadata"]["name"]
    finally:
        bank.close()


def _run_driver(
    kubernetes: StandIn, pod: dict[str, Any], directory: Path, target: str, secrets: Path
) -> None:
    """Run the driver's command as it is written, at places of this machine, to its end."""
    home = Path(pyspark.__file__).parent
    told = mounted(_CONTAINER, pod, secrets)
    places = {
        "k8s://https://kubernetes.default.svc": f"k8s://{kubernetes.url}",
        "/etc/deposits/executor.yaml": str(directory / "executor.yaml"),
        "spark.driver.host=deposits": "spark.driver.host=127.0.0.1",
        "spark.driver.bindAddress=0.0.0.0": "spark.driver.bindAddress=127.0.0.1",
        "/app": str(_ROOT),
        "s3a://lake/deposits/2026-11-20": str(directory / "rows"),
        "bank:50051": target,
        **{f"$({name})": value for name, value in told.items()},
        **{f"port={port}": f"port={free_port()}" for port in ("7078", "7079")},
    }
    arguments = []
    for each in _CONTAINER["args"]:
        for written, place in places.items():
            each = each.replace(written, place)
        arguments.append(each)
    assert _CONTAINER["command"] == ["/opt/spark/bin/spark-submit"]
    # Of a session, the manifest has its own.
    inherited = {name: each for name, each in os.environ.items() if "SECRET" not in name}
    with (directory / "driver.log").open("ab") as out:
        process = subprocess.Popen(
            ["/bin/bash", str(home / "bin/spark-submit"), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**inherited, **spark_environment(), **told, "SPARK_HOME": str(home)},
        )
    try:
        until(lambda: process.poll() is not None, "the end of the driver", 3 * SLOW_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, (directory / "driver.log").read_text()[-3000:]
