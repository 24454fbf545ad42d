"""Replies as a column, the same however often the plan is evaluated (DESIGN §8)."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException

import rifl.spark
from rifl.spark import AlreadyDone, PlanError
from tests.spark.conftest import METHOD, BankProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def _frame(spark: Any) -> Any:
    return spark.range(60, numPartitions=2).selectExpr(
        "concat('r', id) as reference",
        "if(id = 7, 'bad-one', 'alice') as account",
        "id as cents",
        "id % 3 as kind",
    )


def test_a_plan_evaluated_twice_calls_once(spark: Any, bank: BankProcess) -> None:
    """Two actions, and the column used twice, see one answer; a UDF calls again (DESIGN §8)."""
    from pyspark.sql.functions import udf

    answered = rifl.spark.call(
        _frame(spark),
        target=bank.target,
        method=METHOD,
        key="reference",
        request=["reference", "account", "cents"],
        errors="failure",
    )
    plan = answered._jdf.queryExecution().toString()
    assert f"rifl.call({METHOD} at {bank.target})" in plan
    first = answered.selectExpr("reference", "reply.entry", "failure", "reply.entry e").collect()
    second = answered.repartition(3).selectExpr("reference", "reply.entry", "failure").collect()
    assert {row.reference: row.entry for row in first} == {
        row.reference: row.entry for row in second
    }
    assert bank.effects("r") == {f"r{n}": 1 for n in range(60) if n != 7}
    (failed,) = [row for row in first if row.failure is not None]
    assert failed.reference == "r7"
    assert failed.entry is None
    assert (failed.failure.code, failed.failure.outcome) == ("FAILED_PRECONDITION", "executed")
    target = bank.target

    @udf("bigint")
    def deposited(reference: str) -> int:
        import grpc

        from examples.bank.v1 import bank_pb2, bank_pb2_grpc

        with grpc.insecure_channel(target) as channel:
            request = bank_pb2.DepositRequest(reference=f"naive-{reference}", account="alice")
            return int(bank_pb2_grpc.BankStub(channel).Deposit(request, timeout=60).entry)

    naive = _frame(spark).limit(5).withColumn("entry", deposited("reference"))
    naive.collect()
    naive.collect()
    assert set(bank.effects("naive-").values()) == {2}


def test_the_session_says_whether_names_in_another_case_are_others(
    spark: Any, bank: BankProcess, restored: Any
) -> None:
    """``call`` and ``write`` ask it; by default they are the same (DESIGN §8)."""
    frame = _frame(spark).where("reference = 'r0'").selectExpr("reference", "account", "cents")
    given: dict[str, Any] = {"target": bank.target, "method": METHOD, "key": "REFERENCE"}
    asked = {**given, "request": ["Reference", "account", "cents"]}
    assert rifl.spark.call(frame, **asked, session="a").count() == 1
    assert rifl.spark.write(frame.withColumnRenamed("account", "Account"), **given).isEmpty()
    restored("spark.sql.caseSensitive", "true")
    with pytest.raises(PlanError, match="'Reference' is not a column"):
        rifl.spark.call(frame, **asked)
    with pytest.raises(PlanError, match="'REFERENCE' is not a column"):
        rifl.spark.write(frame, **given)
    assert bank.effects() == {"r0": 2}


def test_what_cannot_work_is_told_at_once(spark: Any, bank: BankProcess) -> None:
    """``call`` checks columns, keys and the method before anything runs (DESIGN §8)."""
    frame = _frame(spark)
    given: dict[str, Any] = {"target": bank.target, "method": METHOD, "key": ["reference"]}
    for more, says in (
        ({}, "'kind'"),
        ({"request": ["nope"]}, "'nope' is not a column"),
        ({"key": []}, "no key columns"),
        ({"key": "ref", "request": "reference"}, "'ref' is not a column"),
        ({"reply": "cents"}, "there already"),
        ({"dead_letter": "/x"}, "sinks"),
    ):
        with pytest.raises(PlanError, match=says):
            rifl.spark.call(frame, **{**given, **more})
    assert bank.effects().total() == 0


def test_a_session_of_the_users_is_closed_by_its_name(spark: Any, bank: BankProcess) -> None:
    """Within it a job may be repeated; afterwards its name is refused (DESIGN §8)."""
    given: dict[str, Any] = {
        "target": bank.target,
        "method": METHOD,
        "key": ["reference"],
        "session": "nightly",
        "request": ["reference", "account", "cents"],
    }
    frame = _frame(spark).where("reference <> 'r7'")
    with rifl.spark.session(bank.target, "nightly", retention=3600.0):
        for _ in range(2):
            assert rifl.spark.call(frame, **given).count() == 59
            rifl.spark.call(frame, **given).select("reply").collect()
    assert bank.effects("r") == {f"r{n}": 1 for n in range(60) if n != 7}
    with pytest.raises(AlreadyDone, match="'nightly'"):
        rifl.spark.call(frame, **given)
    again = frame.select(*given.pop("request"), "kind").write.format("rifl").mode("append")
    with pytest.raises(PySparkException) as done:
        again.options(**{**given, "key": "reference", "ignoreColumns": "kind"}).save()
    assert rifl.spark.already_done(done.value)
