"""Alerts and the dashboard of docs/how-to/deploying.md, before a real Prometheus."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from prometheus_client import CollectorRegistry, start_http_server

import rifl
from benchmarks.house.operating import metrics
from chaos.programs import program
from curp.metrics import PrometheusGroupObserver
from rifl.metrics import PrometheusObserver
from tests.echo import METHOD
from tests.helpers.ports import free_port
from tests.helpers.processes import Process, started
from tests.helpers.waiting import until

DEPLOYING = Path(__file__).parents[2] / "examples/deploying"
DASHBOARD = json.loads((DEPLOYING / "grafana.json").read_text())
ALERTS = yaml.safe_load((DEPLOYING / "alerts.yaml").read_text())
_RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
_PANELS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
_UNKNOWN = 3
_CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - {{job_name: bank, static_configs: [{{targets: ["{bank}"]}}]}}
  - {{job_name: shop, static_configs: [{{targets: ["{shop}"]}}]}}
"""


def _promtool(*arguments: object) -> None:
    tool = program("promtool", target="prometheus")
    done = subprocess.run(
        [tool, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_and_does_not() -> None:
    """promtool says when each fires; for each, one evaluation finds it and one does not."""
    file = DEPLOYING / "alerts.test.yaml"
    tried: dict[str, set[bool]] = {rule["alert"]: set() for rule in _RULES}
    for each in yaml.safe_load(file.read_text())["tests"]:
        for expected in each["alert_rule_test"]:
            tried[expected["alertname"]].add(bool(expected["exp_alerts"]))
    assert tried == {name: {False, True} for name in tried}
    _promtool("check", "rules", DEPLOYING / "alerts.yaml")
    _promtool("test", "rules", file)


def test_alerts_are_over_metrics_that_there_are() -> None:
    """A misspelt metric or label would be an alert that never fires."""
    labels = {name: set(its) for name, _, its, _ in metrics(PrometheusGroupObserver)}
    for rule in _RULES:
        named = set(re.findall(r"\b(?:rifl|curp)_[a-z_]+", rule["expr"]))
        known = {re.sub("_(bucket|sum|count)$", "", name) for name in named}
        assert known <= set(labels)
        # What Prometheus adds when it scrapes, and what a histogram has.
        allowed = {"job", "instance", "le"}.union(*(labels[name] for name in known))
        used = {
            name
            for found in re.findall(r"(?:by|on) \(([^)]*)\)", rule["expr"])
            for name in found.split(", ")
        }
        used |= set(re.findall(r"[{,]([a-z]+)(?:=~|!=|=)", rule["expr"]))
        used |= set(re.findall(r"\$labels\.([a-z]+)", rule["annotations"]["summary"]))
        assert used <= allowed, rule["alert"]


def test_the_dashboard_has_no_panel_over_another() -> None:
    """Grafana takes it unchanged: ids are unique, and each panel has its place."""
    places: dict[tuple[int, int], int] = {}
    for panel in DASHBOARD["panels"]:
        at: dict[str, Any] = panel["gridPos"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert places.setdefault((x, y), panel["id"]) == panel["id"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert max(x for x, _ in places) < 24


class _Prometheus:
    """A real one that scrapes a server (job bank) and a process of clients alone (shop)."""

    def __init__(self, folder: Path, bank: str, shop: str) -> None:
        config = folder / "prometheus.yml"
        config.write_text(_CONFIG.format(rules=DEPLOYING / "alerts.yaml", bank=bank, shop=shop))
        self._url = f"http://127.0.0.1:{free_port()}"
        self._log = folder / "prometheus.err"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    program("prometheus", target="prometheus"),
                    f"--config.file={config}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address={self._url.removeprefix('http://')}",
                ],
                stdout=log,
                stderr=log,
            )

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _get(self, path: str, **query: str) -> Any:
        assert self._process.poll() is None, self._log.read_text()[-4000:]
        try:
            url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
            with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - our own
                return json.load(answer)["data"]
        except (ConnectionError, urllib.error.URLError) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code != 503:
                raise AssertionError(error.read()) from error
            # Not yet.
            return {"result": [], "alerts": []}

    def values(self, expression: str) -> list[float]:
        found = self._get("query", query=expression)["result"]
        values = [float(each["value"][1]) for each in found]
        return [value for value in values if value == value]

    def firing(self) -> set[tuple[str, str]]:
        return {
            (each["labels"]["alertname"], each["labels"]["job"])
            for each in self._get("alerts")["alerts"]
            if each["state"] == "firing"
        }


@pytest.fixture
def server(tmp_path: Path) -> Iterator[list[Any]]:
    """A server's process, as a list that another may be put in, and its arguments."""
    arguments = [f"sqlite:///{tmp_path}/bank.db", *(f"127.0.0.1:{free_port()}" for _ in range(2))]
    with started("tests.examples.watched", *arguments, log=tmp_path / "first.err") as first:
        assert first.line() == "listening"
        yield [first, *arguments]


def test_a_real_prometheus(server: list[Any], tmp_path: Path) -> None:
    """Every panel has data; three unknown outcomes fire, also by a process that begins with them.

    A process of clients alone is no server that refuses calls.
    """
    first, store, address, metrics_at = server
    registry = CollectorRegistry()
    scraped, thread = start_http_server(0, "127.0.0.1", registry)
    shop = f"127.0.0.1:{scraped.server_port}"
    prometheus = _Prometheus(tmp_path, metrics_at, shop)
    second: Process | None = None
    try:
        with (
            rifl.connect(address, observer=PrometheusObserver(registry)) as channel,
            grpc.insecure_channel(address) as plain,
        ):
            call = channel.unary_unary(METHOD)
            bad: Any = plain.unary_unary(METHOD)
            missing = [
                each.replace("$__rate_interval", "1m").replace("$job", "bank|shop")
                for each in _PANELS
            ]
            calls = iter(range(10**6))

            def nothing_is_missing() -> bool:
                for _ in range(4):
                    assert call(b"lost %d" % next(calls), timeout=60)
                with pytest.raises(grpc.RpcError):
                    bad(b"x", metadata=[("rifl-bin", b"\xff")], timeout=60)
                missing[:] = [each for each in missing if not prometheus.values(each)]
                return not missing

            until(nothing_is_missing, "data for every panel")
            assert prometheus.values('rifl_client_attempts_total{job="shop"}')
            assert prometheus.values('rifl_server_serving{job="bank"}') == [1]
            assert not prometheus.values('{job="shop",__name__=~"rifl_server_(serving|clients)"}')
            until(lambda: ("RiflCallersMistakes", "bank") in prometheus.firing(), "a mistake")
            assert ("RiflOutcomesUnknown", "bank") not in prometheus.firing()

            hanging = [call.future(b"hang %d" % each, timeout=300) for each in range(_UNKNOWN)]
            running = 'rifl_server_running{job="bank"}'
            until(lambda: prometheus.values(running) == [_UNKNOWN], "they run")
            first.kill()
            second = Process(
                *("tests.examples.watched", store, address, metrics_at),
                log=tmp_path / "second.err",
            )
            for each in hanging:
                assert each.exception().reason == "OUTCOME_UNKNOWN"
            until(lambda: ("RiflOutcomesUnknown", "bank") in prometheus.firing(), "unknown")
            assert {job for _, job in prometheus.firing()} == {"bank"}
    finally:
        if second is not None:
            second.close()
        prometheus.close()
        scraped.shutdown()
        scraped.server_close()
        thread.join()
