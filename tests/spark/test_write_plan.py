"""A write without Spark: planned, sent by tasks, committed, against a real server."""

from __future__ import annotations

import collections
import contextlib
import logging
import pickle
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pyarrow
import pyarrow.parquet
import pytest
from pyspark.sql.types import StructType

import rifl
from _rifl_ground.refusals import Outcome
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from rifl._client import BatchResult
from rifl.spark._connections import _channels, drop_channel
from rifl.spark._delivery import _refused_unread, portion_end
from rifl.spark._errors import (
    AlreadyDone,
    DeliveryError,
    IdentityError,
    PlanError,
    SparkError,
    already_done,
)
from rifl.spark._options import WriteOptions
from rifl.spark._session_names import MicroBatch
from rifl.spark._sessions import session
from rifl.spark._sink import (
    RiflDataSource,
    ServiceCommitMessage,
    ServiceTaskResult,
    check_messages,
    commit_batch,
    commit_stream,
    discard,
    write_task,
)
from rifl.spark._write_plan import WritePlan
from tests.helpers.servers import serve
from tests.helpers.waiting import until

_METHOD = "/bank.v1.Bank/Deposit"
_MODULE = "examples.bank.v1.bank_pb2"


class Bank(bank_pb2_grpc.BankServicer):
    """Counts the effects of each deposit."""

    def __init__(self) -> None:
        self.effects: collections.Counter[str] = collections.Counter()
        self.seen_metadata: list[Any] = []
        self.pause_s = 0.0
        self.never = threading.Event()
        self.dedup: Any = None
        # Handlers that run, and the most that ever did.
        self.running = self.most = 0
        self.lock = threading.Lock()

    def Deposit(self, request: Any, context: Any) -> Any:  # noqa: N802 - the proto names it
        """Count it; accounts named ``bad-…`` do not exist."""
        self.seen_metadata.append(dict(context.invocation_metadata()))
        if request.account.startswith("bad-"):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"no account {request.account}")
        if request.account in grpc.StatusCode.__members__:
            context.abort(grpc.StatusCode[request.account], "the handler says so")
        if self.pause_s:
            with self.lock:
                self.running += 1
                self.most = max(self.most, self.running)
            self.never.wait(self.pause_s)  # a handler that takes its time
            with self.lock:
                self.running -= 1
        self.effects[request.reference] += 1
        return bank_pb2.Receipt(entry=self.effects.total(), balance_cents=request.cents)


@contextlib.contextmanager
def _bank(url: str = "memory:", **options: Any) -> Iterator[tuple[Bank, str]]:
    bank = Bank()
    options.setdefault("methods", {"/bank.v1.Bank/Balance": None})
    with rifl.Deduplicator(url, **options) as dedup:

        def add(server: Any) -> None:
            bank_pb2_grpc.add_BankServicer_to_server(bank, server)
            dedup.add_reflection(server, "bank.v1.Bank")

        with serve("sync", dedup=dedup, add=add) as served:
            bank.dedup = dedup
            # An earlier server may have had this port, and was another store.
            for key in [key for key in _channels if key[1].target == served.address]:
                _channels.pop(key).channel.close()
            yield bank, served.address


def _options(target: str, **more: str) -> WriteOptions:
    return WriteOptions.read({"target": target, "method": _METHOD, "key": "reference", **more})


def _rows(numbers: range, *, cents: int = 1, account: str = "alice") -> pyarrow.Table:
    return pyarrow.table(
        {
            "reference": [f"r{number}" for number in numbers],
            "account": [account] * len(numbers),
            "cents": [cents] * len(numbers),
        }
    )


def _planned(options: WriteOptions, table: pyarrow.Table, **more: Any) -> WritePlan:
    plan = WritePlan.make(options, table.schema, **{"stream": False, **more})
    # As Spark does with it.
    return pickle.loads(pickle.dumps(plan))  # type: ignore[no-any-return] # noqa: S301


def _send(
    plan: WritePlan, table: pyarrow.Table, batch: MicroBatch | None = None, attempt: str = "0"
) -> ServiceTaskResult:
    return write_task(plan, table.to_batches(), batch, attempt)


def test_rows_sent_again_have_their_effect_once() -> None:
    """Task attempts, in any partition and order, repeat no effect (DESIGN §8)."""
    rows = _rows(range(1200))
    with _bank() as (bank, target):
        plan = _planned(_options(target, batchRows="100"), rows)
        first = _send(plan, rows.slice(0, 700)).counts
        second = _send(plan, rows.slice(300)).counts
        assert (first.executed, first.replayed) == (700, 0)
        assert (second.executed, second.replayed, second.sent) == (500, 400, 900)
        assert set(bank.effects.values()) == {1}
        assert len(bank.effects) == 1200


def test_a_key_with_other_content_is_an_error_that_names_it() -> None:
    """Never a silent drop: the row's key and the typed reason are told (DESIGN §8)."""
    with _bank() as (bank, target):
        plan = _planned(_options(target), _rows(range(5)))
        _send(plan, _rows(range(5)))
        with pytest.raises(DeliveryError) as caught:
            _send(plan, _rows(range(4, 9), cents=2))
        error = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes
        assert (error.reason, error.key, error.outcome) == (
            "PAYLOAD_MISMATCH",
            b"s\x02r4",
            "not-executed",
        )
        assert "other content" in str(error)
        twins = pyarrow.concat_tables([_rows(range(90, 92)), _rows(range(90, 92))])
        assert _send(plan, twins).counts.replayed == 2
        assert bank.effects["r90"] == 1


def test_a_whole_row_can_be_the_key_and_columns_can_be_keys_only() -> None:
    """ "*" is what the row says; a key column needs no field (DESIGN §8)."""
    rows = _rows(range(3)).append_column("offset", pyarrow.array([7, 7, 8], pyarrow.int64()))
    with _bank() as (bank, target):
        options = _options(target, key="*", ignoreColumns="offset")
        _send(_planned(options, rows), pyarrow.concat_tables([rows, rows]))
        assert bank.effects.total() == 3
        plan = _planned(_options(target, key="offset,reference"), rows)
        assert _send(plan, rows).counts.executed == 3


def test_a_run_closes_its_own_session_and_a_named_one_stays() -> None:
    """A name makes the job itself repeatable; a leftover of a run is refused (DESIGN §8)."""
    rows = _rows(range(10))
    with _bank() as (bank, target):
        for _ in range(2):
            plan = _planned(_options(target, session="daily"), rows)
            result = _send(plan, rows)
            commit_batch(plan, [result])
        assert result.counts.replayed == 10
        assert bank.effects.total() == 10
        own = _planned(_options(target), rows)
        commit_batch(own, [_send(own, rows)])
        assert bank.effects.total() == 20
        with pytest.raises((IdentityError, DeliveryError), match="closed"):
            _send(own, _rows(range(20, 30)))
        last = _planned(_options(target, session="daily", closeSession="true"), rows)
        commit_batch(last, [_send(last, rows)])
        with pytest.raises(AlreadyDone, match="'daily'") as done:
            _planned(_options(target, session="daily"), rows)
        again = pickle.loads(pickle.dumps(done.value))  # noqa: S301 - our own bytes
        assert again.session == "daily"
        # What Spark makes of an error of its own processes is a text.
        assert already_done(again)
        assert already_done(RuntimeError(f"Traceback ...\n{again}"))
        assert not already_done(PlanError("the session 'daily' is past its retention"))
        assert bank.effects.total() == 20


def test_a_session_closed_under_a_task_is_named_as_the_reason() -> None:
    """Calls under way tell why the rows after them cannot be sent (DESIGN §8)."""
    with _bank() as (bank, target):
        plan = _planned(_options(target, session="daily", batchRows="1"), _rows(range(1)))

        def batches() -> Iterator[pyarrow.RecordBatch]:
            yield from _rows(range(3)).to_batches()
            until(lambda: bank.effects.total() == 3, "the first rows")
            session(target, "daily").close()
            for number in range(3, 40):
                yield from _rows(range(number, number + 1)).to_batches()

        with pytest.raises(DeliveryError) as caught:
            write_task(plan, batches(), None, "0")
        assert caught.value.reason == "SESSION_CLOSED"
        assert bank.effects.total() == 3


def test_micro_batches_close_late() -> None:
    """A batch may be run and committed again until the next one is committed (DESIGN §8)."""
    rows = _rows(range(10))
    with _bank() as (bank, target):
        options = _options(target)
        batches = [MicroBatch("spark/q", number) for number in range(3)]
        for batch in batches:
            for _ in range(2):  # a restart between the sink's commit and Spark's own
                plan = _planned(options, rows, stream=True)
                result = _send(plan, rows, batch)
                commit_stream(options, [result], batch.batch)
            assert bank.effects["r1"] == batch.batch + 1
        for closed in batches[:2]:
            with pytest.raises(IdentityError, match="leftover"):
                _send(plan, rows, closed)
        assert set(bank.effects.values()) == {3}


def test_a_series_with_gaps_begins_when_it_first_has_rows() -> None:
    """What was never opened is not forgotten; a leftover of an earlier micro-batch is
    refused all the same (DESIGN §8)."""
    rows = _rows(range(3))
    with _bank() as (bank, target):
        plan = _planned(_options(target, name="risk"), rows)
        batches = [MicroBatch("spark/call/q", number, gaps=True) for number in (3, 4, 9)]
        for times, batch in enumerate(batches, 1):
            assert _send(plan, rows, batch).counts.executed == 3
            assert _send(plan, rows, batch).counts.replayed == 3
            assert bank.effects["r1"] == times
        with pytest.raises(IdentityError, match="leftover"):
            _send(plan, rows, batches[0])
        assert set(bank.effects.values()) == {3}


def test_a_streams_session_of_the_users_keeps_keys_across_micro_batches() -> None:
    """A key that comes again in a later micro-batch is replayed; a server that forgot the
    query is found all the same (DESIGN §8)."""
    rows = _rows(range(10))
    with _bank() as (bank, target):
        options = _options(target, session="payments")
        for number in range(4):
            plan = _planned(options, rows, stream=True)
            batch = MicroBatch("spark/q", number)
            result = _send(plan, rows, batch)
            assert result.session == "payments"
            commit_stream(options, [result], batch.batch)
        assert set(bank.effects.values()) == {1}
        with pytest.raises(IdentityError, match="does not remember"):
            _send(plan, rows, MicroBatch("spark/other", 7))
        with pytest.raises(PlanError, match="close its session"):
            _planned(_options(target, session="payments", closeSession="true"), rows, stream=True)


def test_a_long_write_says_how_far_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """A task's own log has a line every few seconds (DESIGN §8)."""
    rows = _rows(range(200)).rename_columns(["txn", "account", "cents"])
    with _bank() as (bank, target):
        given = {"key": "txn", "fields": "txn=reference", "progress": "1ms"}
        plan = _planned(_options(target, **given), rows)
        _send(plan, rows, attempt="3-17")
        assert bank.effects["r7"] == 1
    told = [record.getMessage() for record in caplog.records if "writes to" in record.msg]
    assert all("task 3-17 has sent" in line for line in told)
    assert told


def test_a_plan_says_on_the_drivers_log_what_a_write_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A Python sink adds no text to ``explain``; of a stream it is said once (DESIGN §8)."""
    schema = StructType().add("reference", "string").add("cents", "long")
    with _bank() as (_, target), caplog.at_level(logging.INFO, "rifl.spark"):
        given = {"target": target, "method": _METHOD, "key": "reference", "module": _MODULE}
        source = RiflDataSource({**given, "session": "of monday"})
        source.writer(schema, overwrite=False)
        source.writer(schema, overwrite=False)
        for _ in range(2):
            RiflDataSource(given).streamWriter(schema, overwrite=False)
    planned = [each for each in caplog.messages if "calls_planned" in each]
    assert len(planned) == 3
    for told in (f"target={target!r}", f"method={_METHOD!r}", "key='reference'", "'of monday'"):
        assert told in planned[0]
    assert "session=None" in planned[2]


def test_a_slow_handler_has_more_calls_in_flight_unless_their_number_is_given() -> None:
    """Those of one call still run one after another, and each row once (DESIGN §8)."""
    rows = _rows(range(240))
    with _bank() as (bank, target):
        bank.pause_s = 0.02
        for fixed, session_name in (({"inFlight": "2"}, "few"), ({}, "many")):
            bank.most = 0
            given = {"batchTime": "100ms", "session": session_name, **fixed}
            counts = _send(_planned(_options(target, **given), rows), rows).counts
            assert counts.executed == 240
            assert (bank.most > 4) is (not fixed), bank.most
        assert set(bank.effects.values()) == {2}


def test_sessions_that_servers_forget_unused_break_no_write() -> None:
    """A slow first batch, one without rows, and a write whose rows come late go on, though
    a session that was opened and not used is forgotten after a term (DESIGN §5, §8)."""
    rows = _rows(range(3))
    none = rows.slice(0, 0)

    def forgotten(bank: Bank) -> None:
        def unused() -> list[str]:
            kept = bank.dedup._store.leases.load_sessions()
            return [row.name for row in kept if row.state.value == "open" and row.name not in used]

        # No channel of this process may renew one.
        for row in bank.dedup._store.leases.load_sessions():
            drop_channel(options.connection, row.name)
        until(lambda: not unused(), "a term of unused sessions")

    with _bank(term_s=0.3) as (bank, target):
        options, used = _options(target), {"daily"}
        for number, table in enumerate((rows, none, none, rows)):
            batch = MicroBatch("spark/q", number)
            plan = _planned(options, table, stream=True)
            result = _send(plan, table, batch)
            if table is rows:
                used.add(batch.session)
            forgotten(bank)
            commit_stream(options, [result], number)
            forgotten(bank)
        assert set(bank.effects.values()) == {2}
        late = _planned(_options(target, session="daily", closeSession="true"), rows)
        used.discard("daily")
        forgotten(bank)
        commit_batch(late, [_send(late, rows)])
        assert set(bank.effects.values()) == {3}
        with pytest.raises(AlreadyDone):
            _planned(_options(target, session="daily"), rows)


def test_a_commit_without_what_a_task_told_is_refused() -> None:
    """Spark that never called ``write`` commits nothing: no row is lost silently (DESIGN §8)."""
    with pytest.raises(IdentityError, match="missing"):
        check_messages([None, None])
    with _bank() as (_, target):
        rows = _rows(range(1))
        first, second = (
            ServiceCommitMessage(_send(_planned(_options(target, session=name), rows), rows))
            for name in ("monday", "tuesday")
        )
        assert check_messages([first, first]) == [first.result] * 2
        with pytest.raises(IdentityError, match="different sessions"):
            check_messages([first, second])


def test_a_checkpoint_that_the_server_does_not_remember_is_refused() -> None:
    """An old checkpoint, or another server, is an error before any row (DESIGN §8)."""
    rows = _rows(range(3))
    with _bank() as (bank, target):
        plan = _planned(_options(target), rows, stream=True)
        with pytest.raises(IdentityError, match="does not remember"):
            _send(plan, rows, MicroBatch("spark/old", 7))
        assert bank.effects.total() == 0
        adopted = _planned(_options(target, adopt="true"), rows, stream=True)
        _send(adopted, rows, MicroBatch("spark/old", 7))
        assert bank.effects.total() == 3


@pytest.mark.parametrize("store", ["memory:", "sqlite"])
@pytest.mark.parametrize("first", [0, 1, 2])
def test_of_two_copies_of_a_checkpoint_the_one_that_sent_goes_on(
    store: str, first: int, tmp_path: Path
) -> None:
    """The other one has other rows in its micro-batches: they would be sent twice (DESIGN §8)."""
    url = store if store == "memory:" else f"sqlite:///{tmp_path / 'bank.db'}"
    with _bank(url) as (bank, target):
        rows = _rows(range(40))

        def run(place: str, batch: int, first: int, end: int, adopt: str = "false") -> None:
            options = _options(target, adopt=adopt)
            plan = _planned(options, rows, stream=True)
            part = rows.slice(first, end - first)
            # Two tasks, of which each joins.
            joined = MicroBatch("spark/q", batch, place=place)
            done = [_send(plan, each, joined) for each in (part.slice(0, 1), part.slice(1))]
            commit_stream(options, done, batch)

        for batch in range(first):
            run("/kept", batch, batch, batch + 1)
        # A copy that was made here; then both take turns.
        run("/kept", first, 10, 20)
        for _ in range(2):
            with pytest.raises(IdentityError, match=r"another checkpoint than /copy.*nothing was"):
                run("/copy", first, 10, 25)
        run("/kept", first, 10, 20)
        run("/kept", first + 1, 20, 30)
        assert bank.effects.total() == first + 20
        # Moved there, it goes on there, and there alone.
        run("/copy", first + 2, 30, 35, adopt="true")
        run("/copy", first + 2, 30, 35)
        run("/copy", first + 3, 35, 40)
        for batch in (first + 2, first + 3):
            with pytest.raises(IdentityError, match="another checkpoint than /kept"):
                run("/kept", batch, 30, 40)
        assert bank.effects == {f"r{each}": 1 for each in [*range(first), *range(10, 40)]}


def test_of_two_copies_that_begin_one_sends() -> None:
    """Also while its first micro-batch is not committed, and is run again (DESIGN §8)."""
    rows = _rows(range(3))
    with _bank() as (bank, target):
        plan = _planned(_options(target), rows, stream=True)
        for _ in range(2):
            _send(plan, rows, MicroBatch("spark/q", 0, place="/kept"))
            with pytest.raises(IdentityError, match="another checkpoint than /copy"):
                _send(plan, _rows(range(9)), MicroBatch("spark/q", 0, place="/copy"))
        assert bank.effects.total() == 3


def test_a_memory_server_that_restarted_is_noticed() -> None:
    """What a lost store was told is not sent again silently (DESIGN §1, §8)."""
    rows = _rows(range(3))
    with _bank() as (_, target):
        plan = _planned(_options(target), rows, stream=True)
        named = _planned(_options(target, session="daily"), rows)
    with _bank() as (bank, other):
        for lost, batch in ((plan, MicroBatch("spark/q", 0)), (named, None)):
            moved = _moved(lost, other)
            with pytest.raises(IdentityError, match="another store"):
                _send(moved, rows, batch)
        assert bank.effects.total() == 0


@pytest.mark.parametrize("store", ["memory:", "sqlite"])
def test_a_query_goes_on_however_many_clients_there_are(store: str, tmp_path: Path) -> None:
    """Grants of others between its micro-batches say nothing about its store (DESIGN §5, §8)."""
    url = store if store == "memory:" else f"sqlite:///{tmp_path / 'bank.db'}"
    with _bank(url) as (bank, target):
        options = _options(target)
        rows = _rows(range(4))
        plan = _planned(options, rows, stream=True)
        for batch in range(4):
            for _ in range(70):
                bank.dedup._authority.grant()
            # Every second micro-batch has no rows.
            some = rows.slice(batch, 1 - batch % 2)
            commit_stream(options, [_send(plan, some, MicroBatch("spark/q", batch))], batch)
        assert bank.effects == {"r0": 1, "r2": 1}


@pytest.mark.parametrize("store", ["memory:", "sqlite"])
def test_a_query_that_was_stopped_by_a_wrong_rule_goes_on(store: str, tmp_path: Path) -> None:
    """One task had sent its rows, and others opened the session: the next start sends what is
    missing, over the same checkpoint and store (DESIGN §8)."""
    rows = _rows(range(3))
    with _bank(store if store == "memory:" else f"sqlite:///{tmp_path / 'bank.db'}") as served:
        bank, target = served
        options = _options(target)
        plan = _planned(options, rows, stream=True)
        commit_stream(options, [_send(plan, rows, MicroBatch("spark/q", 0))], 0)
        stopped = replace(plan, store=plan.store + 1)
        more = _rows(range(3, 6))
        _send(plan, more.slice(0, 1), MicroBatch("spark/q", 1))
        for _ in range(2):
            with pytest.raises(IdentityError, match="another store"):
                _send(stopped, more, MicroBatch("spark/q", 1))
        again = _planned(options, rows, stream=True)
        sent = _send(again, more, MicroBatch("spark/q", 1))
        assert (sent.counts.executed, sent.counts.replayed) == (2, 1)
        commit_stream(options, [sent], 1)
        assert bank.effects == {f"r{number}": 1 for number in range(6)}


def _moved(plan: WritePlan, target: str) -> WritePlan:
    """The same plan where the server came back on another port."""
    state = {name: getattr(plan, name) for name in WritePlan.__dataclass_fields__}
    given = {"target": target, "method": _METHOD, "key": "reference"}
    if plan.session is not None:
        given["session"] = plan.session
    return WritePlan(**{**state, "options": WriteOptions.read(given)})


def test_dead_letters_hold_the_row_its_key_and_the_reason(tmp_path: Path) -> None:
    """Rows that fail for good are put aside once, and only when committed (DESIGN §8)."""
    good, bad = _rows(range(4)), _rows(range(4, 6), account="bad-bank")
    rows = pyarrow.concat_tables([good, bad])
    aside = tmp_path / "dead"
    with _bank() as (bank, target):
        plan = _planned(_options(target, deadLetter=str(aside)), rows)
        thrown_away = _send(plan, rows, attempt="0-1")
        result = _send(plan, rows, attempt="0-2")
        assert not list(aside.glob("*.parquet"))
        commit_batch(plan, [result])
        commit_batch(plan, [result])  # again is the same as once
        assert bank.effects.total() == 4
        (file,) = aside.glob("*.parquet")
        table = pyarrow.parquet.read_table(file)
        assert table.column("reference").to_pylist() == ["r4", "r5"]
        assert table.column("rifl_key").to_pylist() == [b"s\x02r4", b"s\x02r5"]
        assert set(table.column("rifl_code").to_pylist()) == {"FAILED_PRECONDITION"}
        assert set(table.column("rifl_reason").to_pylist()) == {"HANDLER"}
        assert result.counts.dead_lettered == result.counts.failed == 2
        discard(plan.options, [_Told(thrown_away)])
        assert not list((aside / "_rifl").glob("*.parquet"))
        # A dead row can be sent as it is: the service answers what it answered.
        again = _planned(_options(target, session="again"), table)
        _send(again, table.slice(0, 0))
        with pytest.raises(DeliveryError, match="no account bad-bank"):
            _send(again, table)
        assert bank.effects.total() == 4


def test_dead_letters_of_another_run_stay(tmp_path: Path) -> None:
    """Runs of one session put their rows aside beside each other's: none is lost (DESIGN §8)."""
    aside = tmp_path / "dead"
    with _bank() as (_, target):
        options = _options(target, session="daily", deadLetter=f"file://{aside}")
        for numbers in (range(2), range(1, 4)):
            rows = _rows(numbers, account="bad-bank")
            plan = _planned(options, rows)
            commit_batch(plan, [_send(plan, rows)])
    tables = [pyarrow.parquet.read_table(file) for file in aside.glob("*.parquet")]
    found = sorted(sorted(table.column("reference").to_pylist()) for table in tables)
    assert found == [["r0", "r1"], ["r1", "r2", "r3"]]
    assert len({run for table in tables for run in table.column("rifl_run").to_pylist()}) == 2


@pytest.mark.parametrize(
    "path", ["dead", "./dead", "dbfs:/dead", "hdfs://host/dead", "s3a://bucket/dead", "file://a/b"]
)
def test_a_dead_letter_path_that_executors_may_not_share_is_refused(path: str) -> None:
    """Where no executor could hand rows over, no row is sent (DESIGN §8)."""
    with _bank() as (bank, target):
        with pytest.raises(PlanError, match=r"rifl\.spark\.write"):
            _planned(_options(target, deadLetter=path), _rows(range(2)))
        assert bank.effects.total() == 0


def test_dead_letters_that_do_not_arrive_are_an_error(tmp_path: Path) -> None:
    """An executor with a directory of its own sends nothing; a lost file fails the
    commit (DESIGN §8)."""
    rows = _rows(range(2), account="bad-bank")
    aside = tmp_path / "dead"
    with _bank() as (bank, target):
        plan = _planned(_options(target, deadLetter=str(aside)), rows)
        aside.rename(tmp_path / "elsewhere")
        with pytest.raises(SparkError, match="nothing was sent"):
            _send(plan, rows)
        assert bank.seen_metadata == []
        (tmp_path / "elsewhere").rename(aside)
        result = _send(plan, rows)
        (file,) = (aside / "_rifl").glob("*.parquet")
        file.unlink()
        with pytest.raises(SparkError, match="neither executed nor put aside"):
            commit_batch(plan, [result])


class _Told:
    def __init__(self, result: ServiceTaskResult) -> None:
        self.result = result


def test_a_row_that_fails_fails_the_task_with_its_key() -> None:
    """Without a dead-letter path the first such row is the task's error (DESIGN §8)."""
    with _bank() as (bank, target):
        plan = _planned(_options(target), _rows(range(2)))
        with pytest.raises(DeliveryError, match="FAILED_PRECONDITION HANDLER: no account") as one:
            _send(plan, _rows(range(2), account="bad-bank"))
        assert one.value.key == b"s\x02r0"
        assert bank.effects.total() == 0


@pytest.mark.parametrize("code", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "UNAUTHENTICATED"])
def test_what_the_service_answered_is_one_rows_trouble(code: str, tmp_path: Path) -> None:
    """A handler's own UNAVAILABLE is final: its row is put aside, and the others go on (§8)."""
    rows = pyarrow.concat_tables([_rows(range(3)), _rows(range(3, 4), account=code)])
    with _bank() as (bank, target):
        options = _options(target, session="daily", deadLetter=str(tmp_path / "dead"))
        for replayed in (0, 3):
            plan = _planned(options, rows)
            result = _send(plan, rows)
            commit_batch(plan, [result])
            assert (result.counts.dead_lettered, result.counts.replayed) == (1, replayed)
        assert bank.effects.total() == 3
        with pytest.raises(DeliveryError, match=f"{code} HANDLER: the handler says so"):
            _send(_planned(_options(target), rows), rows)


def test_poison_values_are_put_aside_like_any_other(tmp_path: Path) -> None:
    """A row with text that is not UTF-8 has its key, is put aside as it is, and fails nobody
    beside it (DESIGN §8)."""
    raw = pyarrow.array([b"r0", b"\xff", b"r2"])
    text = pyarrow.Array.from_buffers(pyarrow.string(), 3, raw.buffers())
    rows = _rows(range(3)).set_column(0, "reference", text)
    with _bank() as (bank, target):
        plan = _planned(_options(target, deadLetter=str(tmp_path / "dead")), rows)
        commit_batch(plan, [_send(plan, rows)])
        assert set(bank.effects) == {"r0", "r2"}
    (file,) = (tmp_path / "dead").glob("*.parquet")
    dead = pyarrow.parquet.read_table(file)
    assert dead.column("reference").cast(pyarrow.binary()).to_pylist() == [b"\xff"]
    assert dead.column("rifl_key").to_pylist() == [b"s\x01\xff"]
    assert dead.column("rifl_reason").to_pylist() == ["BAD_VALUE"]


def test_a_null_struct_is_put_aside_though_its_fields_are_not_nullable(tmp_path: Path) -> None:
    """As a left join has it; Spark sends null fields then (DESIGN §8)."""
    field = pyarrow.field("a", pyarrow.int64(), nullable=False)
    mask = pyarrow.array([False, True])
    joined = pyarrow.StructArray.from_arrays([pyarrow.array([1, None])], fields=[field], mask=mask)
    rows = _rows(range(2), account="bad-bank").append_column("joined", joined)
    with _bank() as (_, target):
        options = _options(target, deadLetter=str(tmp_path / "dead"), ignoreColumns="joined")
        plan = _planned(options, rows)
        commit_batch(plan, [_send(plan, rows)])
    (file,) = (tmp_path / "dead").glob("*.parquet")
    dead = pyarrow.parquet.read_table(file)
    assert dead.column("joined").to_pylist() == [{"a": 1}, None]


def test_a_row_above_the_servers_message_limit_was_not_executed() -> None:
    """gRPC refuses it unread, whenever it is sent; a reply that is too long says nothing."""
    rows = _rows(range(1), account="x" * (5 << 20))
    with _bank() as (bank, target):
        with pytest.raises(DeliveryError, match="larger than max") as caught:
            _send(_planned(_options(target), rows), rows)
        assert caught.value.outcome == "not-executed"
        assert bank.effects.total() == 0
    limit = 64 << 20
    for details, unread in (
        ("Received message larger than max (5000000 vs. 4194304)", True),
        (f"Received message larger than max (70000000 vs. {limit})", False),
        ("CLIENT: Received message larger than max (70000000 vs. 4194304)", False),
        ("SERVER: Sent message larger than max (70000000 vs. 4194304)", False),
    ):
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
        assert _refused_unread(BatchResult(None, None, code, details, Outcome.UNKNOWN)) is unread
        assert not _refused_unread(BatchResult(None, None, code, details, Outcome.EXECUTED))


def test_a_full_session_is_told_at_once() -> None:
    """No retry finds more room for keys, and the bound is named (DESIGN §4)."""
    rows = _rows(range(8))
    with _bank(bounds=rifl.Bounds(max_keys=5)) as (bank, target):
        plan = _planned(_options(target, session="daily", timeout="1h"), rows)
        with pytest.raises(DeliveryError, match=r"WINDOW_EXCEEDED: .*max_keys") as caught:
            _send(plan, rows)
        assert caught.value.outcome == "not-executed"
        assert bank.effects.total() == 5
        assert _send(plan, rows.slice(0, 5)).counts.replayed == 5


def test_what_nobody_answered_fails_the_task(tmp_path: Path) -> None:
    """A server that is away is no row's trouble, and not said to be the handler's (§8)."""
    rows = _rows(range(3))
    with _bank() as (_, target):
        options = _options(target, deadLetter=str(tmp_path / "dead"), timeout="1s")
        plan = _planned(options, rows)
        _send(plan, rows.slice(0, 1))
    with pytest.raises(DeliveryError, match=r"TRANSPORT|TIMEOUT"):
        _send(plan, rows)
    assert not list((tmp_path / "dead" / "_rifl").glob("*.parquet"))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"key": ""}, "no key columns"),
        ({"adopt": "true", "session": "daily"}, "adopt is for"),
        ({"key": "nope"}, "'nope' is not a column"),
        ({"key": "Cents,cents", "ignoreColumns": "ACCOUNT"}, "named twice"),
        ({"method": "/bank.v1.Bank/Nope"}, "it has: Balance, Deposit"),
        ({"method": "/no.Service/Nope"}, "no service no.Service"),
        ({"method": "/bank.v1.Bank/Balance", "ignoreColumns": "reference,cents"}, "deduplicate"),
    ],
)
def test_what_cannot_work_is_found_before_any_row(more: dict[str, str], says: str) -> None:
    """Keys, methods and declarations are checked by the driver (DESIGN §8)."""
    with _bank() as (bank, target), pytest.raises(PlanError, match=says):
        _planned(_options(target, **more), _rows(range(2)))
    assert bank.effects.total() == 0


def test_names_of_columns_are_found_in_any_case() -> None:
    """As Spark has them, if it is clear which one is meant; a session may tell them apart."""
    rows = _rows(range(3)).append_column("Note", pyarrow.array(["a", "b", "c"]))
    rows = rows.rename_columns(["Txn", "account", "cents", "Note"])
    named = {"key": "TXN", "fields": "txn=reference", "ignoreColumns": "note"}
    with _bank() as (bank, target):
        options = _options(target, **named)
        plan = _planned(options, rows)
        assert plan.options.key == ("Txn",)
        _send(plan, rows)
        assert bank.effects == {"r0": 1, "r1": 1, "r2": 1}
        with pytest.raises(PlanError, match="not a column"):
            _planned(options, rows, exact=True)
        several = rows.append_column("txn", rows.column("Txn"))
        with pytest.raises(PlanError, match=r"'TXN' may be each of these columns: Txn, txn"):
            _planned(options, several)


def test_columns_fill_fields_in_any_case() -> None:
    """A key column needs no field: in another case it was left out of requests (DESIGN §8)."""
    rows = _rows(range(3)).rename_columns(["Reference", "ACCOUNT", "cents"])
    with _bank() as (bank, target):
        _send(_planned(_options(target), rows), rows)
        assert bank.effects == {"r0": 1, "r1": 1, "r2": 1}
        # Where names of other cases are others, or the field's very name is there, too.
        hint = "'ACCOUNT' has no field .*did you mean 'account'"
        with pytest.raises(PlanError, match=hint):
            _planned(_options(target, key="Reference"), rows, exact=True)
        both = rows.append_column("account", rows.column("ACCOUNT"))
        with pytest.raises(PlanError, match=hint):
            _planned(_options(target), both)
        several = rows.append_column("Account", rows.column("ACCOUNT"))
        with pytest.raises(PlanError, match="'account' is filled by 'ACCOUNT' and 'Account'"):
            _planned(_options(target), several)
        assert bank.effects.total() == 3


def test_a_target_that_is_not_there_or_not_wrapped_is_named() -> None:
    """An unreachable server, and one without rifl, are errors of the plan (DESIGN §8)."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(PlanError, match=f"{target} could not be asked"):
            _planned(_options(target, timeout="500ms"), _rows(range(1)))
    bank = Bank()

    def add(server: Any) -> None:
        bank_pb2_grpc.add_BankServicer_to_server(bank, server)

    with serve("sync", add=add) as served:
        for more, says in (
            ({"module": _MODULE}, "not wrapped.*: it answered .Method not found"),
            ({}, "no reflection"),
        ):
            with pytest.raises(PlanError, match=says):
                _planned(_options(served.address, **more), _rows(range(1)))


def test_metadata_comes_from_where_the_process_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Secrets are read from a variable or file, and are in no plan (DESIGN §8)."""
    monkeypatch.setenv("BANK_TOKEN", "hush-1")
    file = tmp_path / "team"
    file.write_text("hush-2\n")
    with _bank() as (bank, target):
        options = _options(
            target, **{"metadataEnv.authorization": "BANK_TOKEN", "metadataFile.x-team": str(file)}
        )
        plan = _planned(options, _rows(range(1)))
        assert b"hush" not in pickle.dumps(plan)
        assert "hush" not in repr(plan)
        _send(plan, _rows(range(1)))
        seen = bank.seen_metadata[0]
        assert (seen["authorization"], seen["x-team"]) == ("hush-1", "hush-2")
        monkeypatch.delenv("BANK_TOKEN")
        with pytest.raises(PlanError, match="BANK_TOKEN is not set"):
            _planned(options, _rows(range(1)))


def test_portions_keep_both_bounds() -> None:
    """Batches are bounded in rows and bytes; one huge row goes alone (DESIGN §8)."""
    assert [portion_end([1, 1, 1], start, 2, 10) for start in (0, 2)] == [2, 3]
    sizes = [6, 6, 1, 50, 1]
    assert [portion_end(sizes, start, 9, 10) for start in (0, 1, 3, 4)] == [1, 3, 4, 5]


def test_a_batch_that_times_out_is_sent_in_smaller_ones() -> None:
    """A row has the timeout for itself: slow rows are no failure of those beside them, and
    what ran is replayed (DESIGN §8)."""
    rows = _rows(range(64))
    with _bank() as (bank, target):
        bank.pause_s = 0.02
        plan = _planned(_options(target, timeout="400ms", inFlight="1"), rows)
        counts = _send(plan, rows).counts
        assert (counts.rows, counts.sent, counts.failed) == (64, 64, 0)
        assert counts.executed + counts.replayed == 64
        assert bank.effects == {f"r{number}": 1 for number in range(64)}
        # One that takes longer than all the time there is, fails.
        bank.pause_s = 5.0
        with pytest.raises(DeliveryError, match=r"TIMEOUT|IN_PROGRESS"):
            _send(plan, _rows(range(64, 66)))
        bank.never.set()
