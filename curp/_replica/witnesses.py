"""A replica's way to the group's witnesses; a wire's errors become answers."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from typing import Any

import grpc

from _rifl_ground.log import get_logger
from curp._core.garbage_collection import Collectable
from curp._core.start_refusal import start_refusal
from curp._core.witness_asking import (
    AskFreeze,
    AskStart,
    Frozen,
    Serves,
    Started,
    WitnessUnanswered,
    freeze_witness,
    start_witness,
)
from curp._core.witness_table import WitnessMode, WitnessVerdict, group_of_log
from curp._core.witnessed_call import WitnessedCall
from curp._replica.fan_out import ask_all
from curp._replica.services import Services
from curp._wire.witnessed_calls import collected_to_message, witnessed_call
from curp.v1 import curp_pb2 as pb
from curp.witness._client import WitnessClient
from rifl._client.errors import CallError

_log = get_logger("curp.replica")
# Once a witness was started, the others have so long to be started with it.
_GRACE_S = 0.5
_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # A middle box may take all, and pass nothing on. Witnesses permit pings each ten seconds.
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Of gRPC's other pings, which one of these waits for.
    ("grpc.http2.ping_timeout_ms", 5_000),
)


class Witnesses:
    """The witnesses by address, each with a channel of its own. Any thread; blocks."""

    def __init__(
        self,
        group: str,
        services: Services,
        *,
        timeout_s: float,
        credentials: grpc.ChannelCredentials | None = None,
        group_token: str | None = None,
        plaintext_secrets: bool = False,
    ) -> None:
        self._name = self._group = group
        self._services = services
        self._timeout_s = timeout_s
        self._credentials = credentials
        self._group_token = group_token
        self._plaintext_secrets = plaintext_secrets
        self._lock = threading.Lock()
        self._clients: dict[str, WitnessClient] = {}
        self._noted: set[tuple[str, str]] = set()
        # Why a witness was not started when that was tried last, by its address.
        self._not_started: dict[str, str] = {}
        # The highest number of this log that a witness was found under when it refused, or
        # was not started, since it serves that number, or a higher one.
        self.ahead = ("", 0)

    def of_log(self, store_id: int) -> None:
        """Take the id of the group's log, which every message carries from now on."""
        self._group = group_of_log(self._name, store_id)

    def freeze(
        self, addresses: Sequence[str], configuration: int
    ) -> tuple[str, list[WitnessedCall]] | None:
        """Freeze witnesses; the first that can tell what it holds, None if none can (5)."""
        found = ask_all(
            addresses,
            lambda address: self._freeze(address, configuration),
            enough=lambda held: held is not None,
            timeout_s=self._timeout_s,
        )
        return next(((at, held) for at, held in found.items() if held is not None), None)

    def _freeze(self, address: str, configuration: int) -> list[WitnessedCall] | None:
        try:
            frozen: Frozen = self._drive(freeze_witness(configuration), address)
        except WitnessUnanswered as error:
            self._note("witness_not_frozen", address, error)
            return None
        if frozen.held is None:
            _log.warning("witness_not_frozen", witness=address, verdict=frozen.verdict.name)
            self._saw(address, frozen.serves)
            return None
        return self.read(frozen.held)

    def _drive(
        self, rule: Generator[Any, Any, Any], address: str, secrets: pb.SecretsPut | None = None
    ) -> Any:
        """Carry out a rule of asking one witness, blocking."""
        client, reply, error = self._client(address), None, None
        while True:
            try:
                step = rule.send(reply) if error is None else rule.throw(error)
            except StopIteration as stop:
                return stop.value
            reply = error = None
            try:
                reply = self._ask(client, step, secrets)
            except grpc.RpcError as refused:
                error = WitnessUnanswered()
                error.__cause__ = refused

    def _ask(self, client: WitnessClient, step: Any, secrets: pb.SecretsPut | None) -> Any:
        if isinstance(step, AskFreeze):
            return client.freeze(self._group, step.configuration, timeout_s=self._timeout_s)
        if isinstance(step, AskStart):
            return client.start(
                self._group,
                step.configuration,
                secrets or pb.SecretsPut(),
                self._services.conflicts(),
                refresh=step.refresh,
                timeout_s=self._timeout_s,
            )
        return read_status(client.status(timeout_s=self._timeout_s))

    def start(
        self, addresses: Sequence[str], configuration: int, secrets: pb.SecretsPut
    ) -> list[str]:
        """Start witnesses, empty, under a number; those that said yes. Each is asked once.

        A slow one is not waited for much longer than another that was quick: it is listed
        when it answers.
        """
        found = ask_all(
            addresses,
            lambda address: self._start(address, configuration, secrets, refresh=False),
            grace_s=_GRACE_S,
            timeout_s=self._timeout_s,
        )
        for address in addresses:
            if address not in found:
                self._note_start(address, f"it did not answer within {self._timeout_s:g} s")
        return [address for address, started in found.items() if started]

    def refresh(self, addresses: Sequence[str], configuration: int, secrets: pb.SecretsPut) -> None:
        """Tell witnesses the secrets that are valid now."""
        ask_all(
            addresses,
            lambda address: self._start(address, configuration, secrets, refresh=True),
            timeout_s=self._timeout_s,
        )

    def collect(
        self, address: str, configuration: int, synced: Sequence[Collectable]
    ) -> tuple[WitnessVerdict, list[WitnessedCall]] | None:
        """Have it drop what is synced; its verdict and what is stuck. None: not asked."""
        message = [collected_to_message(each) for each in synced]
        try:
            verdict, stuck = self._client(address).collect(
                self._group, configuration, message, timeout_s=self._timeout_s
            )
        except grpc.RpcError as error:
            self._note("witness_not_told", address, error)
            return None
        self._reached("witness_not_told", address)
        if verdict is not WitnessVerdict.ACCEPTED:
            _log.warning("witness_forgot", witness=address, verdict=verdict.name)
        return verdict, self.read(stuck)

    def serving(
        self, addresses: Sequence[str], configuration: int, timeout_s: float
    ) -> dict[str, WitnessVerdict]:
        """Return of those that say how they are whether they serve that number."""
        said = self.statuses(addresses, timeout_s)
        return {
            address: read_status(status).judge(self._group, configuration)
            for address, status in said.items()
            if status is not None
        }

    def statuses(
        self, addresses: Sequence[str], timeout_s: float
    ) -> dict[str, pb.WitnessStatusReply | None]:
        """Return what witnesses say of themselves; of those that say nothing, nothing."""
        return ask_all(
            addresses, lambda address: self._status(address, timeout_s), timeout_s=timeout_s
        )

    def _status(self, address: str, timeout_s: float) -> pb.WitnessStatusReply | None:
        try:
            return self._client(address).status(timeout_s=timeout_s)
        except grpc.RpcError:
            return None

    def start_refusal(self, address: str) -> str:
        """Say why a witness was not started when that was tried last; empty if it was."""
        return self._not_started.get(address, "")

    def _saw(self, address: str, serves: Serves | None) -> None:
        if serves is not None and serves.group == self._group:
            with self._lock:
                self.ahead = max(
                    self.ahead, (address, serves.configuration), key=lambda seen: seen[1]
                )

    def read(self, messages: Sequence[pb.WitnessedCall]) -> list[WitnessedCall]:
        """Read requests that a witness held; see ``read_held``."""
        return read_held(messages, self._services)

    def close(self) -> None:
        """Let all channels go."""
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def _start(
        self, address: str, configuration: int, secrets: pb.SecretsPut, *, refresh: bool
    ) -> bool:
        try:
            started: Started = self._drive(
                start_witness(self._group, configuration, refresh=refresh), address, secrets
            )
        except WitnessUnanswered as error:
            self._note_start(address, _why_not_asked(error.__cause__))
            return False
        verdict, serves = started
        if verdict is WitnessVerdict.ACCEPTED:
            self._note_start(address, "")
            return True
        if verdict is WitnessVerdict.OTHER_CONFIGURATION:
            self._saw(address, serves)
        self._note_start(address, start_refusal(verdict, serves and serves[:2]))
        return False

    def _note_start(self, address: str, why: str) -> None:
        """Note how a start went; told once for each reason."""
        if why and self._not_started.get(address) != why:
            _log.warning("witness_not_started", witness=address, why=why)
        self._not_started[address] = why

    def _client(self, address: str) -> WitnessClient:
        with self._lock:
            client = self._clients.get(address)
            if client is None:
                client = self._clients[address] = WitnessClient(
                    address,
                    credentials=self._credentials,
                    group_token=self._group_token,
                    plaintext_secrets=self._plaintext_secrets,
                    options=_OPTIONS,
                )
            return client

    def _note(self, event: str, address: str, error: BaseException) -> None:
        cause = error.__cause__ if isinstance(error, WitnessUnanswered) else error
        code = cause.code() if isinstance(cause, grpc.Call) else None
        # Once for each time that it cannot be reached.
        if (event, address) not in self._noted:
            self._noted.add((event, address))
            _log.warning(event, witness=address, code=None if code is None else code.name)

    def _reached(self, event: str, address: str) -> None:
        if (event, address) in self._noted:
            self._noted.discard((event, address))
            _log.info("witness_back", witness=address)


def _why_not_asked(error: BaseException | None) -> str:
    code = error.code() if isinstance(error, grpc.Call) else None
    if isinstance(error, CallError):
        return error.details()
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return "refused: it has another group token"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return "refused: no witness is served there"
    return f"it does not answer ({'' if code is None else code.name})"


def read_status(message: pb.WitnessStatusReply) -> Serves:
    """Read what a witness says of itself."""
    mode = next((mode for mode in WitnessMode if mode.value == message.mode), None)
    return Serves(message.group, message.configuration, mode)


def read_held(messages: Sequence[pb.WitnessedCall], services: Services) -> list[WitnessedCall]:
    """Read requests that a witness held; under the keys that the leader finds."""
    found = []
    for message in messages:
        witnessed = witnessed_call(message)
        if witnessed is not None:
            keys = services.keys(message.method, message.request)
            covered = services.covers(witnessed.call, keys)
            found.append(witnessed._replace(keys=keys, covered=covered))
    return found
