"""In which session Spark looks for a format, as ``register`` explains it (DESIGN §8, §16)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql.datasource import DataSourceRegistration

import rifl.spark
import sharedlog.spark
from sharedlog.spark._format import LogDataSource
from tests.spark.conftest import SLOW_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class _Another(LogDataSource):
    """The format of the log by a name that no other session of the tests has."""

    @classmethod
    def name(cls) -> str:
        return "another"


def _in_thread(made: Callable[..., threading.Thread], does: Callable[[], Any]) -> str:
    """Do it in a thread; return why it failed, "" if it did not."""
    told = []

    def body() -> None:
        try:
            does()
        except Exception as error:  # noqa: BLE001 - whatever Spark raises, of several kinds
            told.append(str(error))

    thread = made(target=body)
    thread.start()
    thread.join(SLOW_S)
    assert not thread.is_alive()
    return "".join(told)


def test_each_session_can_have_the_formats(spark: Any) -> None:
    """Also while another one that has them is active in the thread, and stays so (§8, §16)."""
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession

    def register(*which: Any) -> None:
        for session in which:
            sharedlog.spark.register(session)
            rifl.spark.register(session)

    def first() -> None:
        spark.createDataFrame([(1,)], "one int")
        register(spark, spark.newSession(), spark)
        assert sessions.getActiveSession().get().equals(spark._jsparkSession)

    def inactive() -> None:
        sessions.clearActiveSession()
        register(spark.newSession())
        assert not sessions.getActiveSession().isDefined()

    for made in (threading.Thread, pyspark.InheritableThread):
        assert _in_thread(made, first) == ""
        assert _in_thread(made, inactive) == ""


@pytest.mark.parametrize("done", range(3))
def test_an_interrupted_registration_is_made_again(
    spark: Any, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    """After none, one or both of its formats; the thread's active session is as before (§8)."""
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession
    session, register = spark.newSession(), DataSourceRegistration.register
    made: list[Any] = []

    def interrupted(self: Any, format_: Any) -> None:
        if len(made) == done:
            raise KeyboardInterrupt
        register(self, format_)
        made.append(format_)
        if len(made) == done == 2:
            raise KeyboardInterrupt

    def active() -> Any:
        found = sessions.getActiveSession()
        return found.get() if found.isDefined() else None

    spark.createDataFrame([(1,)], "one int")
    with monkeypatch.context() as patched:
        patched.setattr(DataSourceRegistration, "register", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rifl.spark.register(session)
    assert len(made) == done
    assert active().equals(spark._jsparkSession)
    rifl.spark.register(session)
    assert active().equals(spark._jsparkSession)
    known = session._jsparkSession.sessionState().dataSourceManager()
    assert known.dataSourceExists("rifl")
    assert known.dataSourceExists("rifl-records")


def test_a_thread_finds_the_formats_of_its_active_session(
    spark: Any, log: sharedlog.Log, tmp_path: Path
) -> None:
    """Registered with another than the program's first one it is not found before (§8, §16)."""
    session = spark.newSession()
    frames: list[Any] = []
    given = {"log": f"sqlite:///{tmp_path / 'log.db'}", "stream": "orders"}

    def activate() -> None:
        frames.append(session.createDataFrame([("one",)], "value string"))

    def write() -> None:
        frames[0].write.format("another").options(**given).mode("append").save()

    def active_write() -> None:
        activate()
        write()

    assert _in_thread(threading.Thread, lambda: session.dataSource.register(_Another)) == ""
    assert _in_thread(threading.Thread, activate) == ""
    for made in (threading.Thread, pyspark.InheritableThread):
        assert "DATA_SOURCE_NOT_FOUND" in _in_thread(made, write)
    assert _in_thread(threading.Thread, active_write) == ""
    assert [each.text for at in range(2) for each in log.read("orders", at)] == ["one"]
