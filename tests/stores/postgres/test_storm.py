"""The client SDK over replicas that are suspended, killed and replaced (DESIGN §1, §5, §6)."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.helpers.storm import judge
from tests.stores.redis import test_processes as shared
from tests.stores.redis.test_storm import CASES, disturbed


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "kind", "rounds"), CASES)
def test_a_storm_over_three_replicas(shared_server, monkeypatch, seed, kind, rounds):
    """Answered calls have one effect, those of unknown outcome one at most; few of them (§1)."""
    monkeypatch.setattr(shared, "SERVER", "tests.stores.postgres.server_process")
    with shared_server.connect(autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS effects (name text)")
    options = {"schema": f"storm{seed}{kind}", "beat_s": 0.1, "dead_after_s": 0.8}
    url = shared_server.url(max_connections=8, **options)
    name = f"storm-{seed}-{kind}"
    results = disturbed(url, shared_server.url(), seed, kind, rounds, name)
    with shared_server.connect() as connection:
        found = connection.execute("SELECT name FROM effects WHERE name LIKE %s", (f"{name}-%",))
        counts = Counter(row[0].encode() for row in found)
    judge(results, counts, rounds)
