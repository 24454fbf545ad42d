"""The docs name what there is (issue 3, docs)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from rifl.cli import ExitCode
from rifl.core import errors
from rifl.metrics import PrometheusObserver

DOCS = Path(__file__).parents[1] / "docs"
_ERRORS = [
    cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, errors.RiflError) and cls is not errors.RiflError
]


@pytest.mark.parametrize("cls", _ERRORS, ids=lambda cls: cls.reason)
def test_every_error_is_explained(cls: type[errors.RiflError]) -> None:
    """errors.md has each reason with its status and outcome (DESIGN §3)."""
    row = f"| {cls.reason} | {cls.code} | {cls.outcome.value} |"
    assert row in (DOCS / "errors.md").read_text()


def test_no_error_is_made_up() -> None:
    """errors.md explains no reason that there is not (DESIGN §3)."""
    rows = re.findall(r"^\| ([A-Z_]+) \|", (DOCS / "errors.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(cls.reason for cls in _ERRORS)


def test_every_metric_is_listed() -> None:
    """operations.md lists each metric by the name it is exported under (issue 3)."""
    registry = CollectorRegistry()
    PrometheusObserver(registry)
    text = (DOCS / "operations.md").read_text()
    names = {
        f"{metric.name}_total" if metric.type == "counter" else metric.name
        for metric in registry.collect()
    }
    assert names
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


def test_every_exit_code_is_listed() -> None:
    """operations.md lists the exit codes of the command (issue 3)."""
    rows = re.findall(r"^\| (\d) \|", (DOCS / "operations.md").read_text(), re.MULTILINE)
    assert [int(row) for row in rows] == list(ExitCode)


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Each relative link names a file that is there (issue 3)."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).is_file(), target
