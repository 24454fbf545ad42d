"""Clients of a group, with patience."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other work on the machine must not make a witness slow."""
    monkeypatch.setattr("curp.client._group_knowledge._LEAST_PATIENCE_S", 60.0)
    monkeypatch.setattr("curp.client._group_knowledge._MOST_PATIENCE_S", 60.0)
