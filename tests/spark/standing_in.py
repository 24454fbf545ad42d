"""A stand-in for Kubernetes: its API as far as Spark's driver asks it, and a node for executors.

It keeps pods and configuration, and starts an executor's pod as a process with the environment that
the pod names, as the entry point of Spark's image does. What a pod mounts of a Secret is a folder.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import threading
import uuid
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyspark

__all__ = ["StandIn", "mounted"]

_EXECUTOR = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update"}
_KINDS = {"pods": "Pod", "configmaps": "ConfigMap"}


def mounted(container: Mapping[str, Any], pod: Mapping[str, Any], secrets: Path) -> dict[str, str]:
    """Return the environment of a pod's container; what it mounts of a Secret is in ``secrets``."""
    paths = {
        each["mountPath"]: secrets / volume["secret"]["secretName"]
        for each in container.get("volumeMounts", ())
        for volume in pod["spec"]["volumes"]
        if volume["name"] == each["name"] and "secret" in volume
    }
    fields = {
        "metadata.name": pod["metadata"].get("name", ""),
        "metadata.namespace": pod["metadata"].get("namespace", ""),
        "status.podIP": "127.0.0.1",
    }
    found = {}
    for each in container["env"]:
        value = each.get("value", "")
        if "valueFrom" in each:
            value = fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for path, folder in paths.items():
            value = value.replace(path, str(folder))
        found[each["name"]] = value
    return found


class StandIn:
    """Serves until it is closed, and ends the executors that it started. A context manager."""

    def __init__(self, pod: Mapping[str, Any], secrets: Path, image: Mapping[str, str]) -> None:
        """``pod``: the driver's; ``image``: what executors have in their environment anyway."""
        self.asked: set[tuple[str, str]] = set()
        self.executors: list[dict[str, Any]] = []
        self._secrets, self._image = secrets, image
        self._things: dict[str, dict[str, dict[str, Any]]] = {}
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        self._keep("pods", copy.deepcopy(dict(pod)))
        stand_in = self

        class _Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                status, told = stand_in._answer(self.command, self.path, body)
                content = json.dumps(told).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _answer  # noqa: N815 - its names

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        for name in list(self._started):
            self._end(name)

    def _answer(self, method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        parts = urlsplit(path)
        query = parse_qs(parts.query)
        names = parts.path.split("/namespaces/")[-1].split("/")[1:]
        kind, name = names[0], names[1] if len(names) > 1 else ""
        verb = _VERBS.get(method)
        if method == "GET":
            verb = "watch" if "watch" in query else "get" if name else "list"
        elif method == "DELETE":
            verb = "delete" if name else "deletecollection"
        assert verb is not None
        with self._lock:
            self.asked.add((kind, verb))
            kept = self._things.setdefault(kind, {})
            if verb == "create":
                return 201, self._keep(kind, body)
            if name and name not in kept:
                return 404, {"kind": "Status", "status": "Failure", "code": 404}
            if verb == "get":
                return 200, kept[name]
            if verb == "patch":
                return 200, kept[name]
            if verb in ("delete", "deletecollection"):
                for each in [name] if name else list(kept):
                    self._end(each)
                return 200, {"kind": "Status", "status": "Success"}
        items = [] if verb == "watch" else list(kept.values())
        told = {"kind": f"{_KINDS.get(kind, '')}List", "apiVersion": "v1", "items": items}
        return 200, {**told, "metadata": {"resourceVersion": "1"}}

    def _keep(self, kind: str, made: dict[str, Any]) -> dict[str, Any]:
        name = made["metadata"]["name"]
        made["metadata"] |= {"uid": str(uuid.uuid4()), "resourceVersion": "1"}
        self._things.setdefault(kind, {})[name] = made
        if kind == "pods" and made["metadata"].get("labels", {}).get("spark-role") == "executor":
            self.executors.append(copy.deepcopy(made))
            made["status"] = {"phase": "Running", "podIP": "127.0.0.1"}
            self._start(made)
        return made

    def _start(self, pod: dict[str, Any]) -> None:
        (container,) = pod["spec"]["containers"]
        told = mounted(container, pod, self._secrets)
        options = [told[each] for each in sorted(told) if each.startswith("SPARK_JAVA_OPT_")]
        home = Path(pyspark.__file__).parent
        given = {
            "driver-url": told["SPARK_DRIVER_URL"],
            "executor-id": told["SPARK_EXECUTOR_ID"],
            "cores": told["SPARK_EXECUTOR_CORES"],
            "app-id": told["SPARK_APPLICATION_ID"],
            "hostname": told["SPARK_EXECUTOR_POD_IP"],
            "resourceProfileId": told["SPARK_RESOURCE_PROFILE_ID"],
            "podName": told["SPARK_EXECUTOR_POD_NAME"],
        }
        java = Path(os.environ["JAVA_HOME"], "bin/java") if "JAVA_HOME" in os.environ else "java"
        folder = self._secrets.parent / pod["metadata"]["name"]
        folder.mkdir()
        with (folder / "log").open("wb") as out:
            self._started[pod["metadata"]["name"]] = subprocess.Popen(
                [
                    *(str(java), *options, "-Xmx512m", "-cp", f"{home}/jars/*", _EXECUTOR),
                    *(text for name, value in given.items() for text in (f"--{name}", value)),
                ],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**self._image, **told, "SPARK_HOME": str(home)},
            )

    def _end(self, name: str) -> None:
        process = self._started.pop(name, None)
        if process is not None:
            process.kill()
            process.wait()
