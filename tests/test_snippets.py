"""The code in README and docs runs as it stands there."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import curp
import rifl
import sharedlog
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from rifl.core import LeaseExpired
from rifl.testing import serve
from tests.helpers import pages
from tests.helpers.ports import free_port

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *pages.PAGES]
DEPOSIT = "/bank.v1.Bank/Deposit"


def blocks(page: Path) -> list[str]:
    """The page's Python, in order."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


BLOCKS = [(page, code) for page in PAGES for code in blocks(page)]


class Bank(bank_pb2_grpc.BankServicer):
    """Counts."""

    def __init__(self) -> None:
        self.deposits: list[str] = []

    def Deposit(  # noqa: N802 - the proto names it
        self, request: bank_pb2.DepositRequest, context: grpc.ServicerContext
    ) -> bank_pb2.Receipt:
        """Pay in; one reference is refused."""
        self.deposits.append(request.reference)
        if request.reference == "refused":
            context.abort(grpc.StatusCode.NOT_FOUND, "no such account")
        return bank_pb2.Receipt(entry=len(self.deposits))


# -- what is written is there --------------------------------------------------------------


def _named(node: ast.expr) -> Any:
    """What a dotted name of ours stands for; None for any other expression."""
    if isinstance(node, ast.Name) and node.id in ("rifl", "curp", "sharedlog"):
        return importlib.import_module(node.id)
    if isinstance(node, ast.Attribute) and (owner := _named(node.value)) is not None:
        if not hasattr(owner, node.attr) and inspect.ismodule(owner):
            return importlib.import_module(f"{owner.__name__}.{node.attr}")
        return getattr(owner, node.attr)
    return None


@pytest.mark.parametrize(("page", "code"), BLOCKS, ids=lambda part: getattr(part, "name", ""))
def test_names_and_arguments_are_those_of_the_code(page: Path, code: str) -> None:
    """Each name of ours in the docs exists, and takes the arguments it is given there."""
    if code.startswith("except"):
        code = f"try:\n    call()\n{code}"
    # Some pages await at the top, as a reader's coroutine does.
    tree = compile(code, page.name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            _named(node)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            ("rifl", "curp", "sharedlog")
        ):
            module = importlib.import_module(str(node.module))
            assert [a.name for a in node.names if not hasattr(module, a.name)] == []
        if isinstance(node, ast.Call) and (called := _named(node.func)) is not None:
            arguments = {keyword.arg: None for keyword in node.keywords if keyword.arg}
            inspect.signature(called).bind_partial(*node.args, **arguments)


# -- the quick start -----------------------------------------------------------------------


def test_the_quick_start_runs(tmp_path: Path) -> None:
    """The README's server and client, and the keyed client of keys.md, as processes (DESIGN §1)."""
    port = free_port()
    names = ["server.py", "client.py", "keyed.py"]
    programs = [*blocks(README), blocks(pages.page("keys.md"))[0]]
    for name, code in zip(names, programs, strict=True):
        assert "127.0.0.1:50051" in code
        here = code.replace(":50051", f":{port}").replace("timeout=5)", "timeout=60)")
        (tmp_path / name).write_text(here.replace("timeout=5,", "timeout=60,"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def run(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
        ).stdout

    with subprocess.Popen(
        [sys.executable, "server.py"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert run("client.py") == "balance 500\n"
            assert run("client.py") == "balance 1000\n"
            assert run("keyed.py") == "balance 1500\n"
            assert run("keyed.py") == "balance 1500\n"
            assert "rents of 2031" in run("-m", "rifl", "inspect", "sqlite:///service.db")
            server.send_signal(signal.SIGTERM)
            printed, _ = server.communicate(timeout=60)
        finally:
            server.kill()
    assert printed.splitlines() == ["deposit rent", "deposit rent", "deposit May"]
    assert server.returncode == 0


# -- the pages -----------------------------------------------------------------------------


class Reader:
    """A directory, a service, and what the page before the block talks of."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self.stack = stack
        self.directory = directory
        self.bank = Bank()
        self.names: dict[str, Any] = {
            "DEPOSIT": DEPOSIT,
            "ThreadPoolExecutor": ThreadPoolExecutor,
            "bank_pb2": bank_pb2,
            "bank_pb2_grpc": bank_pb2_grpc,
            "closing": closing,
            "curp": curp,
            "grpc": grpc,
            "request": bank_pb2.DepositRequest(reference="rent", cents=5),
            "rifl": rifl,
            "sharedlog": sharedlog,
            "sqlite3": sqlite3,
            "url": "sqlite:///service.db",
        }

    def serve(self, bank: bank_pb2_grpc.BankServicer | None = None, **options: Any) -> None:
        """Serve a bank, and name what reaches it."""
        served = bank or self.bank

        def add(server: grpc.Server) -> None:
            bank_pb2_grpc.add_BankServicer_to_server(served, server)

        service = self.stack.enter_context(serve(add, **options))
        self.names |= {"channel": service.channel, "target": service.address}
        self.names["bank"] = bank_pb2_grpc.BankStub(service.channel)

    def run(self, code: str, **named: Any) -> dict[str, Any]:
        """Run a block, and close what it opened."""
        names = {**self.names, **named}
        exec(compile(code, "docs", "exec"), names)  # noqa: S102 - our own docs
        for opened in ("dedup", "channel"):
            if opened in names and names[opened] is not self.names.get(opened):
                self.stack.callback(names[opened].close)
        return names


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """A reader in an empty directory."""
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        yield Reader(stack, tmp_path)


def _client(reader: Reader, connected: str, unknown: str, token: str) -> None:
    reader.run(connected)
    reader.serve()
    reader.run(unknown)
    assert reader.bank.deposits == ["rent"]
    asked: list[None] = []
    with reader.run(token, service_token=lambda: asked.append(None))["channel"] as channel:
        channel.session.open()
        mine = [("authorization", "Bearer mine")]
        request = bank_pb2.DepositRequest(reference="tip", account="alice", cents=5)
        bank_pb2_grpc.BankStub(channel).Deposit(request, timeout=20, metadata=mine)
    assert asked
    assert reader.bank.deposits == ["rent", "tip"]


def _batches(reader: Reader, batch: str) -> None:
    reader.serve()
    texts = ["one", "refused", "one"]
    rows = [(text.encode(), bank_pb2.DepositRequest(reference=text)) for text in texts]
    given = {"rows": rows, "secret": "drawn, and known to the job"}
    names = reader.run(batch, **given)
    assert names["reply"].entry == 1
    assert sorted(reader.bank.deposits) == ["one", "refused"]


def _consumers(reader: Reader, billing: str, calls: str, state: str) -> None:
    names = reader.run(billing)
    assert names["done"] == 1
    with closing(sqlite3.connect("billing.db")) as database:
        assert database.execute("SELECT name, cents FROM account").fetchall() == [("ann", 12)]
    with sharedlog.open("sqlite:///events.log") as log:
        other = sharedlog.Consumer(log, "other", ["orders"], "sqlite:///billing.db")
        assert callable(reader.run(calls, consumer=other, Order=bytes)["bill"])
        for _ in range(2):
            reader.run(state, log=log, json=json)["totals"].once()
            log.publish("orders", json.dumps({"name": "ann", "cents": 30}), key="ann")
        assert sharedlog.StateView(log, "totals", "orders", key="ann").get("ann") == 42


def _errors(reader: Reader, handled: str) -> None:
    def call() -> None:
        raise LeaseExpired("gone")

    code = f"try:\n    call()\n{handled}"
    assert reader.run(code.replace("...", "caught = 1"), call=call)["caught"]


def _log(reader: Reader, *codes: str) -> None:
    names: dict[str, object] = {}
    for code in codes:
        names |= reader.run(code)
    with sharedlog.open("sqlite:///events.log") as log:
        assert log.producer("billing-relay").last() == 2
        # Of 106 it has done three.
        assert len(log.follow("orders", name="billing").poll()) == 103
    assert names["last"] == 0


def _operations(reader: Reader, stopping: str, health: str) -> None:
    dedup = rifl.Deduplicator(reader.names["url"])
    server = grpc.server(ThreadPoolExecutor(2), interceptors=[dedup.interceptor()])
    reader.run(health, server=server, dedup=dedup)
    # The other is of a main thread that ends: names only.
    assert "serve_until_signal" in stopping


def _metrics(reader: Reader, calls: str, log: str, traces: str) -> None:
    reader.serve()
    reader.run(calls)
    with sharedlog.create("sqlite:///events.log") as made:
        made.stream("orders")
    reader.run(log)["log"].close()
    reader.run(traces)


def _stores(reader: Reader, opened: str, own: str, shared: str, sealed: str) -> None:
    reader.run(opened)["dedup"].close()
    hooks = reader.run(sealed, os=os, AESGCM=AESGCM, key=AESGCM.generate_key(256))
    data = hooks["seal"](b"an answer", b"of a call")
    assert hooks["unseal"](data, b"of a call") == b"an answer"
    with pytest.raises(InvalidTag):
        hooks["unseal"](data, b"of another")
    with closing(sqlite3.connect("bank.db")) as connection, connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE account (cents INTEGER)")
        connection.execute("INSERT INTO account VALUES (0)")
    declaration, handler = own.split("\n\n\n")
    reader.run(declaration)["dedup"].close()
    for code in (handler, shared):
        functions = reader.run(code)
        bank = type("AtomicBank", (Bank,), {"Deposit": functions["Deposit"]})()
        reader.serve(bank, url="sqlite:///bank.db", methods={DEPOSIT: "atomic"})
        reader.names["bank"].Deposit(reader.names["request"], timeout=30)
        reader.stack.close()
    with closing(sqlite3.connect("bank.db")) as connection:
        assert connection.execute("SELECT cents FROM account").fetchone() == (10,)


def _testing(reader: Reader, tests: str) -> None:
    class Counting(bank_pb2_grpc.BankServicer):
        deposits = 0

        def Deposit(self, request: Any, context: Any) -> bank_pb2.Receipt:  # noqa: N802
            self.deposits += 1
            return bank_pb2.Receipt()

    names = reader.run(
        tests,
        Bank=Counting,
        BankStub=bank_pb2_grpc.BankStub,
        add_BankServicer_to_server=bank_pb2_grpc.add_BankServicer_to_server,
    )
    names["test_a_deposit_is_made_once"](reader.directory)


def _run_each(reader: Reader, *codes: str) -> None:
    for code in codes:
        reader.run(code)


# Others need a Redis, a PostgreSQL, a Spark or a group, and have tests of their own.
_READ: dict[str, Callable[..., None]] = {
    "batches.md": _batches,
    "client.md": _client,
    "consumers.md": _consumers,
    "errors.md": _errors,
    "guarantees.md": _run_each,
    "log.md": _log,
    "libraries.md": _run_each,
    "metrics.md": _metrics,
    "operations.md": _operations,
    "policies.md": _run_each,
    "stores.md": _stores,
    "testing.md": _testing,
}


@pytest.mark.parametrize("name", _READ)
def test_a_page_runs(name: str, reader: Reader) -> None:
    """The page's Python does what the page says of it."""
    _READ[name](reader, *blocks(pages.page(name)))
