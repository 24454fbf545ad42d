"""Settling unknown outcomes in SQLite (DESIGN §4)."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest

from rifl._stores import Settled, settle_unknown, unknown_calls
from rifl._stores.inspection import VERDICTS_KEPT_S
from tests.stores.settling import KEY, LOST, PLAIN, SettlesUnknown, _arrive, _call, _serving


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A file of its own."""
    return f"sqlite:///{tmp_path / 's.db'}"


class TestSqlite(SettlesUnknown):
    """See there."""

    def test_verdicts_are_forgotten_after_a_week(self, made: str) -> None:
        """What is remembered is bounded in time and number (DESIGN §9)."""
        _arrive(made, KEY)
        with sqlite3.connect(made.removeprefix("sqlite:///")) as connection:
            connection.execute(
                "UPDATE rifl_unknown SET since_unix_s=?", (int(time.time()) - VERDICTS_KEPT_S - 1,)
            )
            connection.execute("DELETE FROM rifl_call WHERE client_id=1")
        connection.close()
        _arrive(made, KEY)
        assert [call.rpc_id for call in unknown_calls(made)] == [KEY]

    def test_a_server_serves_what_was_settled_beside_it(self, made: str) -> None:
        """Verdicts are settled as executed while the server runs (DESIGN §4)."""
        with _serving(made) as store:
            assert store.claim(_call(KEY), PLAIN).wait().record.reason == "OUTCOME_UNKNOWN"
            assert settle_unknown(made, [KEY], LOST) == {KEY: Settled.EXECUTED}
            assert store.fetch(_call(KEY)).reason == "ANSWER_LOST"
