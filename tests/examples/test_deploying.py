"""Alerts and the dashboard of docs/how-to/deploying.md: PromQL over metrics that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import rifl
from rifl.core._shared.observer import EndedCall, ServedCall
from rifl.metrics import PrometheusObserver

DEPLOYING = Path(__file__).parents[2] / "examples/deploying"
DASHBOARD = json.loads((DEPLOYING / "grafana.json").read_text())
ALERTS = yaml.safe_load((DEPLOYING / "alerts.yaml").read_text())
# What Prometheus adds when it scrapes, and what a histogram has.
_SCRAPED = {"job", "instance", "le"}


def _expressions() -> list[str]:
    alerts = [rule["expr"] for group in ALERTS["groups"] for rule in group["rules"]]
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [*alerts, *panels]


def _metrics() -> set[str]:
    registry = CollectorRegistry()
    with rifl.Deduplicator("memory:", observer=PrometheusObserver(registry)):
        text = generate_latest(registry).decode()
    names = set()
    for family in text_string_to_metric_families(text):
        endings = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
        names |= {family.name + ending for ending in endings.get(family.type, [""])}
    return names


@pytest.mark.parametrize("expression", _expressions())
def test_every_expression_is_promql_over_metrics_that_there_are(expression: str) -> None:
    """A misspelt metric would be an alert that never fires."""
    filled = expression.replace("$__rate_interval", "5m").replace("$job", "bank")
    promql_parser.parse(filled)
    named = set(re.findall(r"\brifl_[a-z_]+", filled))
    assert named
    assert named <= _metrics()


def test_labels_are_those_of_the_metrics() -> None:
    """What is grouped by, or selected, is a label that calls are counted by."""
    text = " ".join(_expressions())
    used = {name for by in re.findall(r"by \(([^)]*)\)", text) for name in by.split(", ")}
    used |= set(re.findall(r"[{,]([a-z]+)(?:=~|!=|=)", text))
    calls = {"method", "outcome", "reason"}
    assert calls <= {*ServedCall._fields} & {*EndedCall._fields}
    assert used <= calls | _SCRAPED


def test_the_dashboard_has_no_panel_over_another() -> None:
    """Grafana takes it as it is: ids are unique, and each panel has its place."""
    places: dict[tuple[int, int], int] = {}
    for panel in DASHBOARD["panels"]:
        at: dict[str, Any] = panel["gridPos"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert places.setdefault((x, y), panel["id"]) == panel["id"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert max(x for x, _ in places) < 24
