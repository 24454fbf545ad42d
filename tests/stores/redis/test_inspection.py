"""Looking into a Redis store (DESIGN §6)."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from rifl._cli import ExitCode, main
from rifl._stores import StoreSchemaTooNew, open_store
from rifl._stores.opening import open_inspection
from rifl._stores.redis import opening
from rifl.core._shared.identity import RpcId
from tests.compat.make_store import make
from tests.stores.inspecting import SharedInspection
from tests.stores.redis.replica import call


class TestRedis(SharedInspection):
    """``redis://``."""

    def counted(self, replica, client_id):
        """Read them from the client's row."""
        backend = replica.store._redis
        row = backend.clients.blocking.hmget(backend.base(client_id) + "client", "keys", "bytes")
        return tuple(int(count or 0) for count in row)


def test_many_calls_come_page_by_page(replicas, url, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many a client has, each shows once, in the order of seqs (DESIGN §6)."""
    monkeypatch.setattr("rifl._stores.redis.inspection._PAGE", 10)
    one = replicas(window=512)
    client = one.client()
    for seq in range(1, 301):
        one.finish(one.begin(call(client, seq)))
    with closing(open_inspection(url)) as store:
        assert [found.rpc_id for found in store.calls()] == [
            RpcId(client, n) for n in range(1, 301)
        ]


def test_a_store_that_stopped_can_be_looked_into(shared_server, url: str, capsys: Any) -> None:
    """What replicas refuse to serve from is what one wants to look at (DESIGN §6)."""
    make(url)
    namespace = url.split("namespace=")[1].split("&")[0]
    with shared_server.client() as client:
        client.hset(f"{namespace}:{{store}}:meta", "stopped", "1")
    assert main(["inspect", url]) == ExitCode.DONE
    assert "it has lost what it acknowledged" in capsys.readouterr().out
    assert main(["release", url, "1/6", "--yes"]) == ExitCode.UNAVAILABLE


def test_a_newer_layout_is_refused(shared_server, url: str) -> None:
    """A newer release's keys are neither served from nor looked into (DESIGN §6)."""
    make(url)
    namespace = url.split("namespace=")[1].split("&")[0]
    with shared_server.client() as client:
        client.hset(f"{namespace}:{{store}}:meta", "layout", "99")
    for attempt in (open_store, open_inspection):
        with pytest.raises(StoreSchemaTooNew, match="layout 99"):
            attempt(url)


def test_a_next_layout_is_noted_when_its_release_opens_the_store(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a release with a higher layout, made up here, this one refuses the store (§6)."""
    make(url)
    with monkeypatch.context() as next_release:
        next_release.setattr(opening, "LAYOUT", opening.LAYOUT + 1)
        for _ in range(2):
            open_store(url).close()
    for attempt in (open_store, open_inspection):
        with pytest.raises(StoreSchemaTooNew, match=f"layout {opening.LAYOUT + 1}"):
            attempt(url)
