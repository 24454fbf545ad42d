"""The demo of payments, short: what it counts, and that it can find what is wrong."""

import dataclasses
import json
import os
import shutil
import sqlite3
import subprocess
import sys

import pytest

from chaos.redis_server import RedisServer
from examples.payments import naive, views
from examples.payments.audit import audit
from examples.payments.callers import Callers
from examples.payments.executor import SCHEMA
from examples.payments.rules import BANK, Account, Payment, fee_of

pytestmark = pytest.mark.faults

# Enough for a kill of each kind to be waited for.
PAYMENTS_OF_A_LONG_RUN = 1_200
WRONG = ("overdrawn", "decided_twice", "views_wrong", "ledger_wrong", "told_wrong", "reports_stale")


def run_demo(directory, payments, *flags, timeout_s=240):
    """What the demo counted, of so many payments between 12 accounts; nothing is left behind."""
    flags = ["--payments", str(payments), "--accounts", "12", *flags]
    done = subprocess.run(
        [sys.executable, "-m", "examples.payments", *flags],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, "TMPDIR": str(directory)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(directory.iterdir()) == []
    counted = json.loads(done.stdout.splitlines()[-1])
    assert counted["requests"] == counted["decided"] == payments
    assert counted["approved"] + counted["declined"] == payments
    assert counted["money_after"] == counted["money_before"] == 120_000
    assert {name: counted[name] for name in WRONG} == dict.fromkeys(WRONG, 0)
    assert counted["kills"] == sum(counted["killed"].values()) > 0
    # Whose money does not add up has wrong balances.
    assert counted["naive_wrong_accounts"] or counted["naive_money_after"] == 120_000
    return counted


@pytest.mark.slow
def test_no_money_is_lost_or_made_while_executors_views_and_services_are_killed(tmp_path):
    """Whoever dies by SIGKILL, and nothing is left behind (DESIGN-LOG §17)."""
    run_demo(tmp_path, 120, "--callers", "8")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("log", "executors"),
    [
        ("redis", "sqlite"),
        ("redis", "postgresql"),
        ("postgresql", "postgresql"),
        ("etcd", "sqlite"),
    ],
)
def test_one_of_each_kind_is_killed_over_each_database(tmp_path, log, executors):
    """Executors, views, services, the naive one and the log's server (DESIGN-LOG §17)."""
    flags = ("--log", log, "--executors", executors)
    counted = run_demo(tmp_path, PAYMENTS_OF_A_LONG_RUN, *flags, timeout_s=800)
    assert {*counted["killed"]} == {"executor", "view", "service", "naive", "engine"}


PAYMENTS = [
    Payment("p 1", "account 0", "account 1", 1000, "tea lamp"),
    Payment("p 2", "account 1", "account 0", 400, "tea"),
    Payment("p 3", "account 1", "account 0", 90_000, "rent"),
]


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory):
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """What the demo leaves behind, by hand: two payments approved, one declined."""
    directory = tmp_path_factory.mktemp("written")
    opened = [Account("account 0", 5000, 0, 0), Account("account 1", 100, 500, 0)]
    opened.append(Account(BANK, 0, 0, 0))
    naive.create(directory, opened)
    balance = {each.name: each.opening for each in opened}
    for name in ("statements", "search"):
        views.create(name, directory / f"{name}.db")
    views.create("statements", directory / "anew.db")
    with (
        sqlite3.connect(directory / "bank.db") as bank,
        sqlite3.connect(directory / "statements.db") as statements,
        sqlite3.connect(directory / "anew.db") as anew,
        sqlite3.connect(directory / "search.db") as search,
        sqlite3.connect(directory / "naive-0.db") as even,
        sqlite3.connect(directory / "naive-1.db") as odd,
    ):
        for statement in SCHEMA:
            bank.execute(statement.format(number="number INTEGER PRIMARY KEY"))

        def move(account, request, kind, cents):
            balance[account] += cents
            if kind != "opening":
                entry = "INSERT INTO entry (account, request, kind, cents) VALUES (?, ?, ?, ?)"
                bank.execute(entry, (account, request, kind, cents))
            line = "INSERT INTO line (account, request, kind, cents) VALUES (?, ?, ?, ?)"
            for view in (statements, anew):
                view.execute(line, (account, request, kind, cents))

        for each in opened:
            balance[each.name] = 0
            move(each.name, "", "opening", each.opening)
        callers = Callers(PAYMENTS)
        for number, each in enumerate(PAYMENTS, 1):
            approved, fee = int(number != 3), fee_of(each.cents) if number != 3 else 0
            decided = "INSERT INTO decision VALUES (?, ?, ?, '', 0)"
            bank.execute(decided, (number, each.request, approved))
            callers.told.append((each.request, approved, fee, number * 10**9))
            callers.naive_told.append((each.request, approved, fee, number))
            if approved:
                move(each.source, each.request, "outgoing", -each.cents)
                move(each.source, each.request, "charge", -fee)
                move(each.destination, each.request, "incoming", each.cents)
                move(BANK, each.request, "fee", fee)
                indexed = (each.request, each.source, each.destination, each.memo)
                search.execute("INSERT INTO payment VALUES (?, ?, ?, ?)", indexed)
        for each in opened:
            row = (each.name, each.opening, each.overdraft, each.cap, balance[each.name])
            bank.execute("INSERT INTO account VALUES (?, ?, ?, ?, ?, 0, 0)", row)
        paid = "UPDATE account SET balance = ? WHERE name = ?"
        even.execute(paid, (balance["account 0"], "account 0"))
        even.execute(paid, (balance[BANK], BANK))
        odd.execute(paid, (balance["account 1"], "account 1"))
    # Else the collector does, which removes a -wal while somebody copies it.
    for each in (bank, statements, anew, search, even, odd):
        each.close()
    callers.write(directory / "callers.db")
    return directory, balance


@pytest.fixture
def books(tmp_path, written, redis_server):
    """A copy of that."""
    made, balance = written
    directory = shutil.copytree(made, tmp_path / "books")
    with redis_server.client() as client:
        client.delete("balances")
        client.hset("balances", mapping=balance)
    return directory, redis_server


@pytest.mark.parametrize(
    ("file", "change", "counts"),
    [
        ("bank.db", "", {}),
        ("bank.db", "INSERT INTO decision VALUES (9, 'p 1', 1, '', 0)", {"decided_twice": 1}),
        (
            "bank.db",
            "DELETE FROM decision WHERE request = 'p 3'",
            {"told_wrong": 1, "decided": 2, "declined": 0},
        ),
        (
            "bank.db",
            "UPDATE decision SET approved = 1 WHERE request = 'p 3'",
            {"told_wrong": 1, "ledger_wrong": 1, "views_wrong": 1, "approved": 3, "declined": 0},
        ),
        (
            "bank.db",
            "UPDATE account SET balance = balance - 1 WHERE name = 'bank'",
            {"money_after": 5099, "ledger_wrong": 1},
        ),
        ("bank.db", "UPDATE account SET held = 1 WHERE name = 'account 0'", {"ledger_wrong": 1}),
        ("bank.db", "UPDATE account SET overdraft = -800 WHERE name = 'account 1'",
         {"overdrawn": 1}),
        (
            "bank.db",
            "DELETE FROM entry WHERE kind = 'fee' AND request = 'p 1'",
            {"ledger_wrong": 2, "views_wrong": 3},
        ),
        ("statements.db", "UPDATE line SET cents = 7 WHERE kind = 'fee'", {"views_wrong": 1}),
        ("anew.db", "DELETE FROM line WHERE account = 'account 1'", {"views_wrong": 1}),
        ("search.db", "DELETE FROM payment WHERE request = 'p 1'", {"views_wrong": 2}),
        ("callers.db", "INSERT INTO report VALUES ('account 0', 'p 1', 0)",
         {"reports": 1, "reports_stale": 1}),
        ("callers.db", "DELETE FROM told WHERE request = 'p 1'", {"told_wrong": 1}),
        (
            "naive-1.db",
            "UPDATE account SET balance = balance - 3 WHERE name = 'account 1'",
            {"naive_wrong_accounts": 1, "naive_money_after": 5097},
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)  # fmt: skip
def test_the_audit_finds_what_is_wrong(books, file, change, counts):
    """A demo that counts nothing wrong has looked (DESIGN §8)."""
    directory, server = books
    right = {
        "requests": 3,
        "decided": 3,
        "approved": 2,
        "declined": 1,
        "money_before": 5100,
        "money_after": 5100,
        "reports": 0,
        "naive_money_after": 5100,
        "naive_wrong_accounts": 0,
        "longest_pause_s": 1.0,
        **dict.fromkeys(WRONG, 0),
    }
    with sqlite3.connect(directory / file) as database:
        database.execute(change)
    database.close()
    found = dataclasses.asdict(audit(directory, f"sqlite:///{directory}/bank.db", server.url()))
    # Of callers of whom one was forgotten it is longer.
    assert found.pop("longest_pause_s") >= right.pop("longest_pause_s")
    assert found == right | counts


def test_the_audit_finds_another_balance_in_redis(books):
    """The view outside is compared, too (DESIGN-LOG §17)."""
    directory, server = books
    with server.client() as client:
        client.hincrby("balances", "account 1", 1)
    found = audit(directory, f"sqlite:///{directory}/bank.db", server.url())
    assert found.views_wrong == 1
