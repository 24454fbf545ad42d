"""``python -m benchmarks.steps``: what a call's steps in the stores cost, one by one.

In Redis, PostgreSQL, MariaDB, and in PostgreSQL by the backend that is for any SQL database.

Beside what they are compared with: a ``SET``, an empty script with as many arguments, a
handler's own transaction, with what one would write by hand in its last message, too, an empty
statement. One caller; of each step the median time,
and of that the processor's time in this process and in the server. ``--pause-ms``: how
long all sleep before each step, as they do between the calls of one who waits for each:
other things then have the processor's caches. A step waits for the disk, too; with
``TMPDIR`` on a file system in memory it does not.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.by_hand import BY_HAND, inserting
from benchmarks.databases import Databases
from lease_server import open_authority
from rifl._stores import open_store
from rifl.core._serving.bounds import Bounds
from rifl.core._serving.policy import Kind, MethodPolicies, MethodPolicy
from rifl.core._shared.call import Call
from rifl.core._shared.record import CompletionRecord
from rifl.v1 import rifl_pb2

__all__ = ["Costs", "main", "measure"]

# Of a step: time, and processor time here and in the server, in microseconds.
Costs = dict[str, list[tuple[float, float, float]]]
_WARM_UP = 0.2
_ANSWER = CompletionRecord(response=b"x" * 40)
_EMPTY = "return {'ok', '0'}"


class _Clocks:
    """Charges steps. ``pid``: of the server; its children count, too."""

    def __init__(self, pid: int, pause_s: float) -> None:
        self._pid = pid
        self._pause_s = pause_s
        self.costs: Costs = {}

    def charge(self, step: str, run: Callable[[], Any]) -> Any:
        """Run a step and note what it cost."""
        time.sleep(self._pause_s)
        server, here, began = _spent_us(self._pid), time.thread_time(), time.perf_counter()
        result = run()
        took, here = time.perf_counter() - began, time.thread_time() - here
        cost = (took * 1e6, here * 1e6, _spent_us(self._pid) - server)
        self.costs.setdefault(step, []).append(cost)
        return result


def _spent_us(pid: int) -> float:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    threads = [task for each in (pid, *children) for task in Path(f"/proc/{each}/task").iterdir()]
    # One that has ended since is gone.
    spent = [_read(task / "schedstat") for task in threads]
    return sum(int(text.split()[0]) for text in spent if text) / 1e3


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _attempts(store: Any, policy: MethodPolicy, times: int) -> Iterator[Call]:
    """Yield calls of one client; each acknowledges those before."""
    authority = open_authority(store.leases, term_s=60.0)
    store.bind(authority, MethodPolicies({}, "plain"), clock=time.monotonic, bounds=Bounds())
    client_id = authority.grant().client_id
    for seq in range(1, times + 1):
        yield Call(
            client_id, b"", seq, first_incomplete=seq, fingerprint=b"p" * 16, method="/bench/Step"
        )


def _redis(databases: Databases, times: int, pause_s: float) -> Costs:
    import redis

    where, own = databases.urls("redis")
    store: Any = open_store(where)
    client: Any = redis.Redis.from_url(own)
    clocks = _Clocks(int(client.info("server")["process_id"]), pause_s)
    empty, policy = client.script_load(_EMPTY), MethodPolicy()
    arguments = [b"%020d" % at for at in range(22)]
    for call in _attempts(store, policy, times):
        key = b"key-%d" % (call.seq or 0)
        clocks.charge("SET NX", lambda: client.set(key, b"", nx=True, ex=60))  # noqa: B023 - at once
        clocks.charge("SET", lambda: client.set(key, b"x" * 40, ex=60))  # noqa: B023 - at once
        clocks.charge("empty script", lambda: client.evalsha(empty, 2, b"a", b"b", *arguments))
        decision = clocks.charge("claim", store.claim(call, policy).wait)
        clocks.charge("finish", store.finish(decision.attempt, _ANSWER).wait)
    client.close()
    store.close()
    return clocks.costs


def _postgres(databases: Databases, times: int, pause_s: float) -> Costs:
    import psycopg

    where, own = databases.urls("postgres")
    store: Any = open_store(where)
    # Claimed, so that the claim is charged; and as a first attempt is by itself.
    policy, usual = MethodPolicy(kind=Kind.ATOMIC, claim="always"), MethodPolicy(kind=Kind.ATOMIC)
    with psycopg.connect(own) as connection:
        for statement in BY_HAND:
            connection.execute(statement)
        connection.commit()
        row = connection.execute("SELECT pg_read_file('postmaster.pid')").fetchone()
        connection.commit()
        clocks = _Clocks(int(str(row and row[0]).split("\n", 1)[0]), pause_s)

        def insert() -> None:
            connection.execute("INSERT INTO effect VALUES (%s)", (b"x" * 32,))

        def recorded(step: str, attempt: Any) -> None:
            store.transactions.begin(connection)
            insert()
            clocks.charge(step, lambda: store.transactions.commit(attempt, _ANSWER, connection))
            store.adopt(attempt, _ANSWER)

        calls = _attempts(store, policy, 2 * times)
        for call in calls:
            clocks.charge("empty statement", lambda: store._postgres.rows(b"SELECT 1", ()))
            insert()
            clocks.charge("commit", connection.commit)
            insert()
            answer = rifl_pb2.MetadataEntry(value=_ANSWER.response)
            by_hand = inserting(f"key-{call.seq}", answer)
            clocks.charge("lock, insert and commit", lambda: connection.execute(by_hand))  # noqa: B023 - at once
            attempt = clocks.charge("claim", store.claim(call, policy).wait).attempt
            recorded("record of a claimed call and commit", attempt)
            attempt = store.claim(next(calls), usual).attempt
            recorded("record of a first attempt and commit", attempt)
    store.close()
    return clocks.costs


def _mariadb(databases: Databases, times: int, pause_s: float) -> Costs:
    from rifl._stores.mysql.dialect import MySqlDialect
    from rifl._stores.mysql.store_address import MySqlStoreAddress

    where, own = databases.urls("mariadb")
    store: Any = open_store(where)
    connection = MySqlDialect(MySqlStoreAddress.parse(own)).connect()
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE effect (id VARBINARY(64)) ENGINE=InnoDB")
    cursor.execute("SELECT @@pid_file")
    clocks = _Clocks(int(Path(cursor.fetchone()[0]).read_text()), pause_s)
    connection.commit()

    def insert() -> None:
        cursor.execute("INSERT INTO effect VALUES ('a-key-of-no-meaning')")

    policy, atomic = MethodPolicy(), MethodPolicy(kind=Kind.ATOMIC)
    calls = _attempts(store, policy, 2 * times)
    for call in calls:
        insert()
        clocks.charge("commit", connection.commit)
        attempt = clocks.charge("claim", store.claim(call, policy).wait).attempt
        clocks.charge("finish", store.finish(attempt, _ANSWER).wait)
        attempt = store.claim(next(calls), atomic).wait().attempt
        clocks.charge("begin", lambda: store.transactions.begin(connection))
        insert()
        commit = store.transactions.commit
        clocks.charge("record and commit", lambda: commit(attempt, _ANSWER, connection))  # noqa: B023 - at once
        store.adopt(attempt, _ANSWER)
    connection.close()
    store.close()
    return clocks.costs


def _generic(databases: Databases, times: int, pause_s: float) -> Costs:
    import psycopg

    from benchmarks.postgres_dialect import PostgresDialect
    from rifl._stores.sql.store import SqlStore

    _, own = databases.urls("postgres")
    store = SqlStore(PostgresDialect(own, "generic"))
    with psycopg.connect(own) as connection:
        row = connection.execute("SELECT pg_read_file('postmaster.pid')").fetchone()
    clocks, policy = _Clocks(int(str(row and row[0]).split("\n", 1)[0]), pause_s), MethodPolicy()
    for call in _attempts(store, policy, times):
        claimed: Any = store.claim(call, policy)
        attempt = clocks.charge("claim", claimed.wait).attempt
        clocks.charge("finish", store.finish(attempt, _ANSWER).wait)
    store.close()
    return clocks.costs


def measure(times: int, pause_s: float) -> dict[str, Costs]:
    """Return what each step cost, by store, without those of the warm-up."""
    with Databases() as databases:
        costs = {
            "Redis": _redis(databases, times, pause_s),
            "PostgreSQL": _postgres(databases, times, pause_s),
            "MariaDB": _mariadb(databases, times, pause_s),
            "PostgreSQL, generic": _generic(databases, times, pause_s),
        }
    first = int(times * _WARM_UP)
    return {name: {step: some[first:] for step, some in of.items()} for name, of in costs.items()}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="benchmarks.steps", description=__doc__)
    parser.add_argument("--times", type=int, default=500)
    parser.add_argument("--pause-ms", type=float, default=0.0)
    options = parser.parse_args()
    table = Table(title="a step's median time, in microseconds")
    for column in ("store", "step", "time", "of it here", "of it in the server"):
        table.add_column(column, justify="left" if column in ("store", "step") else "right")
    for name, costs in measure(options.times, options.pause_ms / 1e3).items():
        for step, some in costs.items():
            medians = [f"{statistics.median(part):.0f}" for part in zip(*some, strict=True)]
            table.add_row(name, step, *medians)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
