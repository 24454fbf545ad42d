"""``rifl-records``: what a store that replicas share keeps, as tables (DESIGN §8)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from tests.spark.conftest import METHOD, BankProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(params=["redis", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a store of the kind."""
    if request.param == "redis":
        return str(request.getfixturevalue("shared_redis").url(namespace="records"))
    return str(request.getfixturevalue("shared_postgres").url(schema="records"))


def test_a_shared_stores_calls_and_sessions_are_tables(
    spark: Any, url: str, tmp_path: Path
) -> None:
    """Calls with outcome, code and size, and sessions, beside the server (DESIGN §8)."""
    bank = BankProcess(tmp_path, "--store", url)
    secret = tmp_path / "store.url"
    secret.write_text(f"{url}\n")
    try:
        rows = spark.range(30, numPartitions=2).selectExpr(
            "concat('r', id) as reference",
            "if(id < 3, 'bad-one', 'alice') as account",
            "id as cents",
        )
        (
            rows.write.format("rifl")
            .option("target", bank.target)
            .option("method", METHOD)
            .option("key", "reference")
            .option("session", "daily")
            .option("deadLetter", str(tmp_path / "dead"))
            .mode("append")
            .save()
        )
        calls = spark.read.format("rifl-records").option("storeFile", str(secret)).load()
        kept = calls.groupBy("session", "method", "state", "outcome", "code").count().collect()
        assert sorted(tuple(row) for row in kept) == [
            ("daily", METHOD, "recorded", "executed", "FAILED_PRECONDITION", 3),
            ("daily", METHOD, "recorded", "executed", "OK", 27),
        ]
        assert calls.where("response_bytes > 0 and length(key) > 0").count() == 27
        clients = (
            spark.read.format("rifl-records")
            .option("storeFile", str(secret))
            .option("table", "clients")
            .load()
            .where("session = 'daily'")
            .collect()
        )
        assert [(row.session_state, row.records, row.intents) for row in clients] == [
            ("open", 30, 0)
        ]
        with pytest.raises(PySparkException, match="none of: calls, clients"):
            spark.read.format("rifl-records").option("table", "leases").load(url)
    finally:
        bank.close()
