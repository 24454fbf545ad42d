"""A client of a served log in other words than ours (issue 17)."""

from __future__ import annotations

import json
import secrets
import subprocess

import pytest

import sharedlog
from tests.sharedlog.served import served


@pytest.mark.slow
def test_log_client_in_go(go_client: list[str]) -> None:
    """What log-protocol.md says is enough to append once and to follow (DESIGN-LOG §12)."""
    with sharedlog.create(f"memory:{secrets.token_hex(8)}") as log:
        with served(log) as server:
            finished = subprocess.run(
                [*go_client, "log", server.address], capture_output=True, text=True, timeout=60
            )
        assert finished.returncode == 0, finished.stdout + finished.stderr
        told = [json.loads(line) for line in finished.stdout.splitlines()]
        messages = [each for number in range(4) for each in log.read("orders", number)]
    messages.sort(key=lambda each: (each.position.lsn, each.substream, each.position.ordinal))
    steps = {each["step"]: each for each in told}
    published = [each for each in told if each["step"] == "published"]
    assert [each["lsn"] for each in published] == [1, 2, 3, 4, 5, 6]
    assert all(each["again"] == each["lsn"] and each["kept"] for each in published)
    assert (steps["reused"]["reason"], steps["reused"]["appended"]) == ("SEQ_REUSED", "false")
    assert (steps["ahead"]["reason"], steps["ahead"]["expected"]) == ("OUT_OF_ORDER", "7")
    assert (steps["fenced"]["reason"], steps["fenced"]["number"]) == ("FENCED", "2")
    # Six messages, five pending ones, their marker, and one under a fence.
    assert [each.position.lsn for each in messages] == [*range(1, 7), *[12] * 5, 13]
    delivered = [each for each in told if each["step"] == "delivered"]
    assert [
        (each["lsn"], each["substream"], each["ordinal"], each["checksum"], each["body"])
        for each in delivered
    ] == [
        (
            each.position.lsn,
            each.substream,
            each.position.ordinal,
            each.position.checksum,
            each.text,
        )
        for each in messages
    ]
    assert [each.key.decode() for each in messages[:6]] == [f"customer {n}" for n in range(6)]
