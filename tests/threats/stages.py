"""The servers of the threat model, each with what its store holds, in full."""

from __future__ import annotations

import contextlib
import itertools
import math
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

import curp
import rifl
import sharedlog
from curp._core.witness_table import WitnessTable
from curp._replica.metadata import TRANSFER_KEY
from curp.v1 import curp_pb2
from curp.witness import WitnessHandlers, add_witness_service
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from lease_server._tokens import Secret, make_token
from lease_server.v1 import lease_server_pb2
from sharedlog._service.settings import AccessRule, ServerLimits, ServerSettings
from tests.curp.logs import created
from tests.curp.replica.ledger import CONFLICTS, READ_ONLY, Bank
from tests.helpers.ports import free_port
from tests.helpers.raw import header
from tests.helpers.servers import LoopThread, generic
from tests.helpers.waiting import until
from tests.sharedlog.served import served
from tests.threats.people import GROUP_TOKEN, TOKENS, People, Ports, certificate_name, peer_named

__all__ = ["CallsStage", "GroupStage", "LogStage", "Stage", "WitnessStage", "stages"]

PLAIN, DELIVERED = "/shop.S/Plain", "/shop.S/Delivered"
DEPOSIT = "/bank.v1.Bank/Deposit"
_HEALTH, _REFLECTION = "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"
# What a server has that grants ids; the table's name for what is the user's own.
_CALLS = {"lease_server.v1.LeaseServer", "rifl.v1.Outcomes", "your methods", _HEALTH}
_DEADLINE_S = 60.0
# No lease ends while a machine is busy: nothing changes but by the calls.
_LONG_S = 3600.0
_LEASE_TERM_S = 20.0


class Stage:
    """One server. ``serves``: rifl's services at it, and gRPC's own."""

    def __init__(self, name: str, serves: set[str], ports: Ports) -> None:
        self.name = name
        self.serves = serves
        self.ports = ports
        self._numbers = itertools.count(1)

    def number(self) -> int:
        """One that was not there before."""
        return next(self._numbers)

    def state(self) -> dict[str, Any]:
        """All that it holds, to be compared."""
        raise NotImplementedError


class Granting(Stage):
    """A server that grants ids: its calls are a client's own."""

    # What a call of its method asks for, and where.
    method, request = PLAIN, b"1"

    @property
    def authority(self) -> Any:
        """Whose leases these are."""
        raise NotImplementedError

    def __init__(self, name: str, serves: set[str], ports: Ports) -> None:
        super().__init__(name, serves, ports)
        self._tokens: dict[tuple[str, str], bytes] = {}

    def own_token(self, door: Any, role: str) -> bytes:
        """The token of a client id of one's own."""
        key = role, door.transport
        if key not in self._tokens:
            grant = lease_server_pb2.DESCRIPTOR.services_by_name["LeaseServer"]
            asked = lease_server_pb2.GrantRequest()
            self._tokens[key] = door.ask(role, grant.methods_by_name["Grant"], asked).token
        return self._tokens[key]

    def granted(self) -> dict[str, Any]:
        """Leases and sessions by their ids, and when they end."""
        authority = self.authority
        sessions = authority._book._table
        return {
            "leases": dict(authority._table._expiry),
            "sessions": {
                each: (row, sessions._deadline.get(each)) for each, row in sessions._rows.items()
            },
        }

    def header(self, granted: Any, token: bytes, seq: int) -> bytes:
        """Of a call under a client id."""
        return header(granted.client_id, token, seq, store=granted.store)


class CallsStage(Granting):
    """A server with a Deduplicator over SQLite, which is a player's target, too."""

    def __init__(
        self, kind: str, directory: Path, people: People, stack: contextlib.ExitStack
    ) -> None:
        self.file = directory / f"{kind}.db"
        self.dedup = stack.enter_context(
            rifl.Deduplicator(
                f"sqlite:///{self.file}",
                methods={PLAIN: "plain", DELIVERED: "idempotent"},
                term_s=_LONG_S,
            )
        )
        self.ran: list[bytes] = []
        serve = self._served_aio if kind == "aio" else self._served_sync
        ports = serve(people, stack)
        super().__init__(f"calls, {kind}", {*_CALLS, "sharedlog.v1.Target"}, ports)
        # Beside the server, which keeps the file; it is never written.
        self._rows = stack.enter_context(
            contextlib.closing(sqlite3.connect(f"file:{self.file}?mode=ro", uri=True))
        )

    @property
    def authority(self) -> Any:
        return self.dedup._authority

    def state(self) -> dict[str, Any]:
        return {"rows": self.rows(), "ran": list(self.ran), **self.granted()}

    def rows(self) -> dict[str, list[Any]]:
        """What the store holds, but for how long it lived."""
        names = "SELECT name FROM sqlite_master WHERE type = 'table'"
        tables = [name for (name,) in self._rows.execute(names)]
        return {
            each: self._rows.execute(f"SELECT * FROM {each}").fetchall()  # noqa: S608 - their names
            for each in tables
            if each not in ("rifl_meta", "rifl_file")
        }

    def _add(self, server: Any) -> None:
        self.dedup.add_to_server(server)
        self.dedup.add_health(server)
        sharedlog.add_target_to_server(
            server,
            self.dedup,
            {"orders": DELIVERED},
            token=TOKENS["player"],
            peers=[certificate_name("player")],
        )

    def _served_sync(self, people: People, stack: contextlib.ExitStack) -> Ports:
        server = grpc.server(ThreadPoolExecutor(8), interceptors=[self.dedup.interceptor()])

        def run(request: bytes, context: Any) -> bytes:
            self.ran.append(request)
            return b"done %d" % len(self.ran)

        server.add_generic_rpc_handlers((generic("shop.S", {"Plain": run, "Delivered": run}),))
        self._add(server)
        ports = people.listen(server)
        server.start()
        stack.callback(lambda: server.stop(None).wait())
        return ports

    def _served_aio(self, people: People, stack: contextlib.ExitStack) -> Ports:
        async def run(request: bytes, context: Any) -> bytes:
            self.ran.append(request)
            return b"done %d" % len(self.ran)

        def add(server: Any) -> None:
            server.add_generic_rpc_handlers((generic("shop.S", {"Plain": run, "Delivered": run}),))
            self._add(server)

        return _aio_ports(people, stack, add, [self.dedup.aio_interceptor()])


class GroupStage(Granting):
    """A group of one replica over SQLite, which was upgraded and not finalized."""

    method = DEPOSIT
    request = bank_pb2.DepositRequest(reference="r", account="alice", cents=1).SerializeToString()

    def __init__(
        self, directory: Path, people: People, spare: WitnessStage, stack: contextlib.ExitStack
    ) -> None:
        """``spare``: a witness that can be put into the list."""
        self.spare = spare
        self.url = created(f"sqlite:///{directory}/group.log?group=bank")
        # The first leader's version is the active one.
        with self._replica(people, 0) as first:
            until(lambda: first.role == "leader", "the first leader", _DEADLINE_S)
        self.replica = stack.enter_context(self._replica(people, 1))
        self.lead()
        super().__init__("group", {*_CALLS, "curp.v1.Group", _REFLECTION}, self._ports)

    def lead(self) -> None:
        """Wait until it leads with all its witnesses; at once after a transfer, too."""
        runner: Any = self.replica._group_servicer.runner

        def leads() -> bool:
            # There is no other replica that it would have to let try.
            runner._succession._hold_off_until = -math.inf
            found, leading = self.replica.configuration(), runner.leading
            if leading is None or self.replica.role != "leader":
                return False
            wanted = list(leading.listed.wanted)
            return bool(found.configuration) and list(found.witnesses) == wanted

        until(leads, "it leads", _DEADLINE_S)

    @property
    def authority(self) -> Any:
        return self.replica._authority.current

    @property
    def application_version(self) -> int:
        """The active one."""
        return self.replica._store.state.version

    def state(self) -> dict[str, Any]:
        state = self.replica._store.state
        found = self.replica.configuration()
        listed = found.configuration, list(found.witnesses), found.leader
        logged = (
            state.applied,
            state.version,
            listed,
            self.replica._log_engine.metadata(TRANSFER_KEY),
        )
        ran = dict(self._bank.current.paid)
        return {"logged": logged, "ran": ran, "secrets": state.secrets, **self.granted()}

    @contextlib.contextmanager
    def _replica(self, people: People, version: int) -> Iterator[curp.Replica]:
        replica = curp.Replica(
            self.url,
            name="r1",
            address=f"127.0.0.1:{free_port()}",
            conflict_keys=CONFLICTS,
            read_only=READ_ONLY,
            application_version=version,
            group_token=GROUP_TOKEN,
            tuning=curp.Tuning(lease_term_s=_LEASE_TERM_S, client_term_s=_LONG_S),
        )
        server = grpc.server(ThreadPoolExecutor(32), interceptors=[replica.interceptor()])
        self._bank = replica.servicer(Bank)
        bank_pb2_grpc.add_BankServicer_to_server(self._bank, replica.registrar(server))
        replica.add_to_server(server)
        replica.add_health(server)
        replica.add_reflection(server)
        self._ports = people.listen(server)
        server.start()
        replica.start()
        try:
            yield replica
        finally:
            replica.close()
            server.stop(None).wait()


class WitnessStage(Stage):
    """A witness of no running group: who leads it is the test."""

    secret = Secret(1, b"s" * 32)
    group = "bank@00000000000000aa"
    log = 0xAA

    def __init__(self, people: People, stack: contextlib.ExitStack) -> None:
        self.table = WitnessTable()
        self.handlers = WitnessHandlers(self.table)

        def add(server: Any) -> None:
            add_witness_service(server, self.handlers, group_token=GROUP_TOKEN)

        super().__init__("witness", {"curp.v1.Witness"}, _aio_ports(people, stack, add))

    def begin(self) -> None:
        """Serve the next number, empty, as a leader has it do."""
        self.handlers.start(self.start_request().SerializeToString())

    def start_request(self) -> Any:
        """What starts it under the next number."""
        secrets = [curp_pb2.SecretsPut.Secret(key_id=self.secret.key_id, secret=self.secret.value)]
        return curp_pb2.StartRequest(
            configuration=self.table.configuration + 1,
            group=self.group,
            secrets=curp_pb2.SecretsPut(secrets=secrets),
        )

    def token(self, client_id: int, transport: str) -> bytes:
        """The caller's, as a leader grants it: over mutual TLS bound to its certificate."""
        peer = peer_named("caller") if transport == "mutual TLS" else b""
        return make_token(self.secret, client_id, peer)

    def state(self) -> dict[str, Any]:
        table = self.table
        held = sorted(table._calls)
        return {"number": table.configuration, "mode": table.mode, "held": held}


class LogStage(Stage):
    """A served log over SQLite, one server for each transport."""

    player = "mailer"

    def __init__(self, directory: Path, people: People, stack: contextlib.ExitStack) -> None:
        self.file = directory / "events.db"
        self.log = stack.enter_context(sharedlog.create(f"sqlite:///{self.file}"))
        for stream in ("orders", "letters"):
            self.log.stream(stream, 1, timedelta(0))
        settings = ServerSettings(
            ServerLimits(caller_steps_per_s=0),
            tuple(
                AccessRule(**{kind: who}, **rights)
                for role, rights in _RIGHTS.items()
                for kind, who in (("token", role), ("peer", certificate_name(role)))
            ),
        )
        credentials = (None, *(people.server_credentials(asks=asks) for asks in (False, True)))
        ports = [
            stack.enter_context(
                served(
                    self.log,
                    settings=settings,
                    tokens=TOKENS,
                    credentials=each,
                    reflection=True,
                )
            ).address
            for each in credentials
        ]
        serves = {"sharedlog.v1.Log", "sharedlog.v1.Steps", _HEALTH, _REFLECTION}
        super().__init__("log", serves, Ports(*ports))

    def state(self) -> dict[str, Any]:
        engine = self.log._engine
        return {"keys": engine.scan(""), "first": engine.first(), "tail": engine.tail()}


_RIGHTS: dict[str, dict[str, Any]] = {
    # Each lacks one of the two rights that a call asks for.
    "publisher": {"publish": ("orders",), "names": ("shop-*",)},
    "follower": {"follow": ("orders",), "names": ("shop-*",)},
    "player": {"play": (LogStage.player,), "publish": ("letters",)},
    # What all three may, with names of its own.
    "colleague": {
        "publish": ("orders", "letters"),
        "follow": ("orders",),
        "names": ("post-*",),
        "play": ("poster",),
    },
    "operator": {"admin": True},
}


def _aio_ports(
    people: People, stack: contextlib.ExitStack, add: Any, interceptors: Any = ()
) -> Ports:
    """Serve on a loop of its own."""
    loop = LoopThread()
    stack.callback(loop.close)

    async def start() -> tuple[Any, Ports]:
        server = grpc.aio.server(ThreadPoolExecutor(8), interceptors=list(interceptors))
        add(server)
        ports = people.listen(server)
        await server.start()
        return server, ports

    server, ports = loop.run(start())
    stack.callback(lambda: loop.run(server.stop(None)))
    return ports


def stages(directory: Path, people: People, stack: contextlib.ExitStack) -> dict[str, Stage]:
    """Start all of them; by their names."""
    witness = WitnessStage(people, stack)
    made = [
        CallsStage("sync", directory, people, stack),
        CallsStage("aio", directory, people, stack),
        GroupStage(directory, people, WitnessStage(people, stack), stack),
        witness,
        LogStage(directory, people, stack),
    ]
    return {each.name: each for each in made}
