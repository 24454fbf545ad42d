"""Settling unknown outcomes in SQLite (DESIGN §4)."""

from __future__ import annotations

import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import rifl
from lease_server._storage import Acknowledgements
from rifl._stores import Settled, settle_unknown, unknown_calls
from rifl._stores.inspection import VERDICTS_KEPT_S
from rifl._stores.opening import open_inspection
from rifl.core._serving.answer import refusal_record
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import OutcomeUnknown
from rifl.core._shared.identity import RpcId
from rifl.core._shared.observer import Observer
from rifl.core._shared.record import CompletionRecord
from rifl.metrics import PrometheusObserver
from tests.compat.make_store import make
from tests.helpers.waiting import until
from tests.stores.settling import (
    BEGUN,
    GIVEN_UP,
    KEY,
    LOST,
    PLAIN,
    SettlesUnknown,
    _arrive,
    _call,
    _counted,
    _serving,
    make_lost,
)


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


@pytest.mark.parametrize("ends", [*GIVEN_UP, "recording"])
def test_what_a_caller_gave_up_is_unknown_if_its_server_dies(url: str, ends: str) -> None:
    """Not once it has ended; its row goes with that, or by the next start (DESIGN §4, §9)."""
    make(url)
    rpc_id, gives_up = RpcId(1, 9), Acknowledgements(10, ())
    with _serving(url) as store, closing(open_inspection(url)) as inspection:
        attempt = store.claim(_call(rpc_id), PLAIN).attempt
        store.start(attempt).wait()
        if ends == "recording":
            with store._main.journal.turn(30.0):
                ending = store.finish(attempt, CompletionRecord())
                store.acknowledge(1, gives_up)
                with store._lock:
                    store._note_acknowledgements()
            ending.wait()
        else:
            store.acknowledge(1, gives_up)
        until(lambda: store.expire_keys() or inspection.client(1).first_incomplete == 10, "told")
        if ends == "abandoned":
            store.abandon(attempt).wait()
        elif ends in ("ended", "unknown"):
            lost = refusal_record(OutcomeUnknown("the answer cannot be recorded"))
            store.finish(attempt, CompletionRecord() if ends == "ended" else lost).wait()
        if ends != "killed":
            until(lambda: store.expire_keys() or inspection.call(rpc_id) is None, "it goes")
    for _ in range(2):
        with _serving(url, Observer()) as store, closing(open_inspection(url)) as inspection:
            # Beside the call that was made for it.
            until(lambda: _counted(store).calls == 1 + GIVEN_UP.get(ends, 0), "it is counted")
            until(lambda: store.expire_keys() or inspection.call(rpc_id) is None, "it goes")
            assert store.claim(_call(rpc_id), PLAIN).verdict is Verdict.STALE


def test_in_memory_those_are_counted_whose_records_are_kept() -> None:
    """No operator can settle them there (DESIGN §9)."""
    lost = refusal_record(OutcomeUnknown("the handler was cancelled"))
    for observer in (None, Observer()):
        with _serving("memory:", observer) as store:
            keys = [_call(RpcId(-7, None, key)) for key in (b"one", b"two", b"answered")]
            one, *two = [store.claim(each, PLAIN).attempt for each in keys]
            store.finish(one, lost)
            store.finish_all(two, [lost, CompletionRecord()])
            store.expire_keys()
            if observer is None:
                assert store.unresolved is None
                continue
            assert store.unresolved.calls == 2
            assert 0 <= store.unresolved.oldest_s < 3600
            store.clients_ended([-7])
            store.expire_keys()
            assert store.unresolved == (0, 0.0)


def test_a_restored_file_has_the_gauges_of_its_backup(tmp_path: Path) -> None:
    """What was settled since is unknown again, and counts again (DESIGN §6, §9)."""
    folder, backup = tmp_path / "store", tmp_path / "backup"
    folder.mkdir()
    url = make_lost(f"sqlite:///{folder / 's.db'}")
    with _serving(url):
        # It gives what its predecessor left a verdict.
        pass
    shutil.copytree(folder, backup)
    settle_unknown(url, [BEGUN, KEY], LOST)

    def calls() -> float | None:
        registry = CollectorRegistry()
        with rifl.Deduplicator(url, observer=PrometheusObserver(registry), term_s=0.5):
            value = registry.get_sample_value
            until(lambda: value("rifl_store_unknown_calls") is not None, "it has counted")
            assert value("rifl_server_serving") == 1
            return value("rifl_store_unknown_calls")

    assert calls() == 0
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)
    with closing(open_inspection(url)) as inspection:
        inspection.restored()
    assert calls() == 2
