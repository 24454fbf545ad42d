"""A target tells of players that it does not let in (DESIGN-LOG §15)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from prometheus_client import CollectorRegistry

from rifl.metrics import PrometheusObserver
from tests.helpers.servers import KINDS
from tests.sharedlog.target.player import row
from tests.sharedlog.target.shop import ATOMIC, Shop, open_shop

TOKEN = "the player's token"  # noqa: S105 - of these tests


def _refused(call: Callable[[], Any]) -> None:
    with pytest.raises(grpc.RpcError):
        call()


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_tokens_of_players_are_counted_and_told(kind: str, tmp_path: Path) -> None:
    """With the address, in the metrics of the server's calls (DESIGN §9)."""
    registry = CollectorRegistry()
    shop = Shop(tmp_path / "store.db")
    observer = PrometheusObserver(registry)
    with (
        open_shop(
            kind, f"sqlite:///{shop.path}", shop, token=TOKEN, show=TOKEN, observer=observer
        ) as target,
        structlog.testing.capture_logs() as told,
    ):
        target.connect()
        target.metadata = (("authorization", "Bearer a guess"),)
        for _ in range(5):
            _refused(target.connect)
            _refused(lambda: target.batch(*row(1, 1, ATOMIC)))
        target.metadata = ()
        _refused(target.connect)
    found = [
        (each["kind"], each["reason"], each["address"], each["times"])
        for each in told
        if each["event"] == "caller_refused"
    ]
    assert found == [
        ("target_token", "wrong", "127.0.0.1", 1),
        ("target_token", "wrong", "127.0.0.1", 10),
        ("target_token", "missing", "127.0.0.1", 1),
    ]
    name = "rifl_server_callers_refused_total"
    wrong = {"kind": "target_token", "reason": "wrong"}
    assert registry.get_sample_value(name, wrong) == 10
