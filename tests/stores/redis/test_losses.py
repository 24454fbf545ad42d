"""A Redis that has lost what it acknowledged, and an operator who accepts that (DESIGN §6)."""

from __future__ import annotations

import json

import pytest

from rifl._cli import ExitCode, main
from rifl._stores import StoreCorrupt, open_store
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import LeaseExpired, StoreUnavailable
from tests.stores.redis.replica import FIRST, IDEMPOTENT, Replica, call, keyed

NAMESPACE = -7


def _accept(url, *more):
    return main(["accept-loss", url, "--who", "ann", "--why", "none mattered", *more])


def _namespace(url):
    return url.partition("namespace=")[2].partition("&")[0]


def test_a_loss_is_accepted_by_name_and_for_good(url, shared_server, capsys):
    """Served from what is there: records stand, clients are over, no id comes twice (DESIGN §6)."""
    one = Replica(url)
    client, session = one.client(), one.authority.open_session("s").client_id
    one.finish(one.begin(call(client, 1), IDEMPOTENT))
    one.finish(one.begin(keyed(NAMESPACE, b"k"), IDEMPOTENT))
    one.finish(one.begin(keyed(session, b"k"), IDEMPOTENT))
    name = _namespace(url)
    with shared_server.client() as direct:
        # As after a failover to a replica that lacks some of it.
        direct.hset(f"{name}:{{store}}:meta", "position", 1)
    with pytest.raises(StoreUnavailable):
        one.claim(call(client, 2), IDEMPOTENT)
    with pytest.raises(StoreCorrupt, match="rifl accept-loss"):
        open_store(url)
    assert _accept(url) == ExitCode.USAGE
    with pytest.raises(StoreCorrupt):
        open_store(url)
    assert _accept(url, "--yes") == ExitCode.DONE
    assert "RUNS AGAIN" in capsys.readouterr().err

    two = Replica(url)
    assert two.claim(call(client, 1), IDEMPOTENT).record == FIRST
    with pytest.raises(LeaseExpired):
        two.claim(call(client, 2), IDEMPOTENT)
    assert two.claim(keyed(NAMESPACE, b"k"), IDEMPOTENT).record == FIRST
    assert two.claim(keyed(session, b"k"), IDEMPOTENT).record == FIRST
    assert two.claim(keyed(session, b"l"), IDEMPOTENT).verdict is Verdict.NEW
    assert two.client() > client + 2**31
    # Who knew more stays away, and stops nobody else.
    with pytest.raises(StoreUnavailable):
        one.claim(call(client, 1), IDEMPOTENT)
    one.close()
    assert two.claim(call(client, 1), IDEMPOTENT).record == FIRST
    two.close()
    with shared_server.client() as direct:
        (kept,) = direct.lrange(f"{name}:{{store}}:losses", 0, -1)
    told = json.loads(kept)
    assert (told["who"], told["why"], told["stopped"]) == ("ann", "none mattered", True)
