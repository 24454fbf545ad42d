"""Processes of a consumer that are killed, or stopped and come back (DESIGN-LOG §14)."""

import json
import os
import signal
import sqlite3
from contextlib import ExitStack, closing

import pytest

import sharedlog
from tests.helpers.ports import free_port
from tests.helpers.processes import Process, started
from tests.helpers.waiting import until

MODULE = "tests.sharedlog.consumer.worker"
CALLING = "tests.sharedlog.consumer.calling_worker"


class Shop:
    def __init__(self, directory):
        self.url = f"sqlite:///{directory / 'log.db'}"
        self.file = directory / "bills.db"
        self.store = f"sqlite:///{self.file}"
        self.errors = directory / "errors"
        self.log = sharedlog.create(self.url)
        self.log.stream("orders", substreams=4)
        self.log.stream("invoices", substreams=1)
        self.published = 0
        with closing(sqlite3.connect(self.file)) as connection, connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE bill (id INTEGER, number INTEGER)")

    def order(self, count):
        for _ in range(count):
            self.log.publish("orders", json.dumps(self.published), key=str(self.published))
            self.published += 1

    def billed(self):
        with closing(sqlite3.connect(self.file)) as connection:
            return [number for (number,) in connection.execute("SELECT number FROM bill")]

    def invoiced(self):
        return [int(each.text) for each in self.log.read("invoices", 0, limit=10_000)]

    def await_all(self):
        until(
            lambda: len(self.billed()) >= self.published and len(self.invoiced()) >= self.published,
            "all orders are billed",
        )
        self.check()

    def check(self):
        assert sorted(self.billed()) == list(range(self.published))
        assert sorted(self.invoiced()) == list(range(self.published))


@pytest.fixture
def shop(tmp_path):
    made = Shop(tmp_path)
    yield made
    made.log.close()


@pytest.mark.long
def test_a_process_that_is_stopped_and_comes_back_changes_nothing(shop):
    """Between its store's commit and its append, while another one takes over (T1, T2)."""
    with started(MODULE, shop.url, shop.store, "log: append", log=shop.errors) as zombie:
        assert zombie.line() == "begins"
        shop.order(20)
        assert zombie.line() == "here"
        assert len(shop.invoiced()) < len(shop.billed())
        with started(MODULE, shop.url, shop.store, log=shop.errors) as other:
            assert other.line() == "begins"
            shop.await_all()
            os.kill(zombie.pid, signal.SIGCONT)
            shop.order(20)
            shop.await_all()
            assert other.terminate() == 0
            shop.order(20)
            shop.await_all()
            assert zombie.terminate() == 0
    shop.check()


@pytest.mark.long
def test_processes_that_are_killed_in_turns_do_everything_once(shop):
    """Two of them, each killed in the middle of its work again and again (T1, T2, T5)."""
    with ExitStack() as stack:

        def start():
            process = Process(MODULE, shop.url, shop.store, log=shop.errors)
            stack.callback(process.close)
            assert process.line() == "begins"
            return process

        running = [start(), start()]
        for turn in range(12):
            before = len(shop.billed())
            shop.order(30)
            until(lambda before=before: len(shop.billed()) > before, "something is billed")
            running[turn % 2].kill()
            running[turn % 2] = start()
        shop.await_all()
        for each in running:
            assert each.terminate() == 0
    shop.check()


@pytest.mark.long
def test_calls_happen_once_though_consumer_and_service_are_killed(shop, tmp_path):
    """In turns, in the middle of their work: each bill has the first answer (T6)."""
    secret = {"RIFL_SESSION_SECRET": "known to the tests"}
    file, port = tmp_path / "service.db", free_port()
    with ExitStack() as stack:

        def start(*given):
            process = Process(CALLING, *map(str, given), log=shop.errors, env=secret)
            stack.callback(process.close)
            assert process.line() == "begins"
            return process

        def serve():
            return start("service", file, port)

        def consume():
            return start("consumer", shop.url, shop.store, f"127.0.0.1:{port}")

        service, running = serve(), [consume(), consume()]
        for turn in range(8):
            before = len(shop.billed())
            shop.order(20)
            until(lambda before=before: len(shop.billed()) > before, "something is billed")
            if turn % 2:
                service.kill()
                service = serve()
            else:
                at = turn // 2 % 2
                running[at].kill()
                running[at] = consume()
        shop.await_all()
        for each in (*running, service):
            assert each.terminate() == 0
    with closing(sqlite3.connect(file)) as connection:
        called = connection.execute("SELECT id, what FROM ran").fetchall()
    with closing(sqlite3.connect(shop.file)) as connection:
        billed = connection.execute("SELECT id, number FROM bill").fetchall()
    assert sorted(billed) == sorted((number, int(what)) for number, what in called)
