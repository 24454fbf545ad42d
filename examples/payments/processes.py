"""The processes: each is killed by SIGKILL, and started again behind an address that stays."""

from __future__ import annotations

import contextlib
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random

import sharedlog
from chaos.faulty_path import FaultyPath
from chaos.redis_server import RedisServer
from examples.payments import desk, naive, rules, views
from examples.payments.executor import NAME, PATIENCE, SCHEMA
from examples.server_process import ServerProcess
from examples.shared_log.engines import running

__all__ = ["NAIVE", "SERVICES", "Processes", "kind_of"]

SERVICES = ("north", "south")
NAIVE = "naive"
_EXECUTORS = ("executor 1", "executor 2")
_ENGINE = "engine"
_AT_ONCE = 3
_NUMBER = {
    "sqlite": "number INTEGER PRIMARY KEY",
    "postgresql": "number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
}


def kind_of(name: str) -> str:
    """Return what a process is one of."""
    if name in _EXECUTORS:
        return "executor"
    if name in SERVICES:
        return "service"
    return "view" if name in views.VIEWS else name


class Processes:
    """Executors, views, services, the naive service, and the log's engine, which all run."""

    def __init__(
        self, stack: ExitStack, directory: Path, engine: str, executors: str, accounts: int
    ) -> None:
        """``engine``: of the log; ``executors``: which database they have, as ``engine``'s names.

        The log is made, and its accounts are opened.
        """
        self.directory = directory
        (directory / "engine").mkdir()
        (directory / "balances").mkdir()
        self._engine = stack.enter_context(running(engine, directory / "engine"))
        self._balances = RedisServer(directory / "balances")
        stack.callback(self._balances.stop)
        self.bank = f"sqlite:///{directory / 'bank.db'}"
        if executors == "postgresql":
            from chaos.postgres_server import PostgresServer

            server = PostgresServer()
            stack.callback(server.stop)
            self.bank = server.url()
        self.log = stack.enter_context(sharedlog.create(self._engine.url, timeout=PATIENCE))
        self._create(executors, accounts)
        self._paths = {name: stack.enter_context(FaultyPath()) for name in (*SERVICES, NAIVE)}
        here, url = "examples.payments", self._engine.url
        commands: dict[str, tuple[str, ...]] = dict.fromkeys(
            _EXECUTORS, (f"{here}.executor", url, self.bank)
        )
        for view in views.VIEWS:
            store = self.redis if view == "balances" else f"sqlite:///{directory / f'{view}.db'}"
            commands[view] = (f"{here}.views", view, url, store)
        for name in SERVICES:
            commands[name] = (f"{here}.service", name, url, str(directory))
        commands[NAIVE] = (f"{here}.naive", str(directory))
        self._processes = {
            name: stack.enter_context(ServerProcess(*command)) for name, command in commands.items()
        }
        # Much of it is importing.
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(self._start, self._processes))

    @property
    def redis(self) -> str:
        """Where the balances are."""
        return self._balances.url()

    def address(self, name: str) -> str:
        """Return that of a service."""
        return self._paths[name].target

    def victims(self, dice: Random) -> list[str]:
        """Return whom to kill, each once, from the last on: some order, one of each kind first."""
        names = [*self._processes, *([_ENGINE] if self._engine.restart else [])]
        shuffled = dice.sample(names, len(names))
        first = {kind_of(each): each for each in shuffled}.values()
        return [*(each for each in shuffled if each not in first), *first]

    def kill(self, name: str) -> None:
        """Kill one, and start it again; raises ``RuntimeError`` if it had ended by itself."""
        if name == _ENGINE:
            if self._engine.restart is not None:
                self._engine.restart()
            return
        code = self._processes[name].ended
        if code is not None:
            raise RuntimeError(f"{name} ended by itself, with {code}")
        self._processes[name].kill()
        self._start(name)

    def _start(self, name: str) -> None:
        port = self._processes[name].start()
        if name in self._paths:
            self._paths[name].lead_to(port)

    def _create(self, executors: str, accounts: int) -> None:
        opened = rules.create(self.log, accounts, list(SERVICES))
        naive.create(self.directory, opened)
        for view in ("statements", "search"):
            views.create(view, self.directory / f"{view}.db")
        for service in SERVICES:
            desk.create(self.directory / f"service-{service}.db")
        statements = [each.format(number=_NUMBER[executors]) for each in SCHEMA]
        if executors == "postgresql":
            import psycopg

            with psycopg.connect(self.bank) as database:
                for each in statements:
                    database.execute(each.encode())
            return
        file = self.directory / "bank.db"
        with contextlib.closing(sqlite3.connect(file)) as connection, connection:
            connection.execute("PRAGMA journal_mode = WAL")
            for each in statements:
                connection.execute(each)

    def settled(self) -> bool:
        """Wait until executors and views have all that is in the log; False: they do not get it.

        To be called once all payments are decided: what follows from them is in the log by then.
        """
        marks = [
            self.log.publish(rules.ACCOUNTS, rules.publishing("report"))
            for _ in range(rules.SUBSTREAMS)
        ]
        return all(
            sharedlog.await_consumer(self.log, name, rules.ACCOUNTS, mark, PATIENCE)
            for name in (NAME, *views.VIEWS)
            for mark in marks
        )
