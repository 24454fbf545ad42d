"""A client of one witness, by which a group's replicas ask it (DESIGN §7)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import grpc

from curp._core.witness_table import WitnessVerdict
from curp._group_token import GROUP_TOKEN_KEY, why_kept_off
from curp.v1 import curp_pb2
from curp.witness._service import SERVICE_NAME
from rifl._client.grpc_channels import open_sync
from rifl._client.plaintext import refused


class WitnessClient:
    """One witness, asked by a replica. Any thread; blocks.

    Every method takes a timeout in seconds and raises ``grpc.RpcError`` when the witness
    cannot be asked or refuses the caller. What it then did is not known: a
    start is not asked again under the same number by who did not hear its answer,
    since the witness may have restarted meanwhile and would begin empty.
    """

    def __init__(
        self,
        address: str,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        group_token: str | None = None,
        plaintext_secrets: bool = False,
        options: Sequence[tuple[str, Any]] = (),
    ) -> None:
        """Nothing is sent before the first call.

        Without ``credentials`` neither the token nor the secrets of a start go beyond this
        machine, unless ``plaintext_secrets``: such a call raises ``rifl.CallError``.
        """
        self.address = address
        self._kept_off = why_kept_off(address, credentials, allowed=plaintext_secrets)
        self._channel = open_sync(address, credentials, options, None)
        self._metadata = () if group_token is None else ((GROUP_TOKEN_KEY, group_token),)
        self._start = self._method("Start", curp_pb2.StartReply)
        self._collect = self._method("Collect", curp_pb2.CollectReply)
        self._status = self._method("Status", curp_pb2.WitnessStatusReply)
        self._freeze: Any = self._channel.unary_stream(
            f"/{SERVICE_NAME}/Freeze",
            request_serializer=curp_pb2.FreezeRequest.SerializeToString,
            response_deserializer=curp_pb2.FreezeReply.FromString,
        )

    def start(
        self,
        group: str,
        configuration: int,
        secrets: curp_pb2.SecretsPut,
        methods: Iterable[curp_pb2.MethodConflicts],
        *,
        refresh: bool = False,
        timeout_s: float,
    ) -> WitnessVerdict:
        """Have it hold nothing and serve this number; ``refresh``: take the secrets only."""
        request = curp_pb2.StartRequest(
            group=group,
            configuration=configuration,
            secrets=secrets,
            methods=methods,
            refresh=refresh,
        )
        self._check(secret=bool(secrets.secrets))
        return WitnessVerdict(self._ask(self._start, request, timeout_s).verdict)

    def collect(
        self,
        group: str,
        configuration: int,
        synced: Iterable[curp_pb2.Collected],
        *,
        timeout_s: float,
    ) -> tuple[WitnessVerdict, list[curp_pb2.WitnessedCall]]:
        """Have it drop what is synced (invariant 12); return what is stuck."""
        request = curp_pb2.CollectRequest(group=group, configuration=configuration, synced=synced)
        reply = self._ask(self._collect, request, timeout_s)
        return WitnessVerdict(reply.verdict), list(reply.stuck)

    def freeze(
        self, group: str, configuration: int, *, timeout_s: float
    ) -> tuple[WitnessVerdict, list[curp_pb2.WitnessedCall]]:
        """Make it permanently accept nothing more under this number; return what it holds.

        All of it, or ``grpc.RpcError``. May be asked again.
        """
        request = curp_pb2.FreezeRequest(group=group, configuration=configuration)
        self._check()
        calls: list[curp_pb2.WitnessedCall] = []
        verdict = 0
        for reply in self._freeze(request, timeout=timeout_s, metadata=self._metadata):
            verdict = reply.verdict
            calls.extend(reply.calls)
        return WitnessVerdict(verdict), calls

    def status(self, *, timeout_s: float) -> curp_pb2.WitnessStatusReply:
        """Return what it says of itself."""
        reply: curp_pb2.WitnessStatusReply = self._ask(
            self._status, curp_pb2.WitnessStatusRequest(), timeout_s
        )
        return reply

    def close(self) -> None:
        """Cancel the calls in flight."""
        self._channel.close()

    def __enter__(self) -> WitnessClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, *, secret: bool = False) -> None:
        if self._kept_off and (secret or self._metadata):
            raise refused(self._kept_off)

    def _ask(self, method: Any, request: Any, timeout_s: float) -> Any:
        self._check()
        return method(request, timeout=timeout_s, metadata=self._metadata)

    def _method(self, name: str, reply: Any) -> Any:
        return self._channel.unary_unary(
            f"/{SERVICE_NAME}/{name}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=reply.FromString,
        )
