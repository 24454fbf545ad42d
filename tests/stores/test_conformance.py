"""The stores in a server's process, through the conformance suite (DESIGN §6).

Those that servers share have theirs in ``tests/stores/redis`` and ``tests/stores/postgres``.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.stores.conformance import StoreConformance


@dataclass(frozen=True)
class Somewhere:
    """Where a store's records live."""

    url: str
    durable: bool


class TestMemory(StoreConformance):
    """``memory:``, which keeps nothing."""

    @pytest.fixture
    def place(self):
        """A store in memory."""
        return Somewhere("memory:", durable=False)


class TestSqlite(StoreConformance):
    """``sqlite:///file``, which keeps all it says it keeps."""

    @pytest.fixture
    def place(self, tmp_path):
        """A store in a file of its own."""
        return Somewhere(f"sqlite:///{tmp_path}/store.db", durable=True)
