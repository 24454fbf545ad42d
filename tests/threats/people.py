"""The people of the threat model, and what each of them shows over each transport."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import grpc
import trustme
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

__all__ = [
    "GROUP_TOKEN",
    "ROLES",
    "TOKENS",
    "TRANSPORTS",
    "People",
    "Ports",
    "Transport",
    "certificate_name",
    "peer_named",
]

ROLES = (
    *("stranger", "thief", "caller"),
    *("publisher", "follower", "player", "colleague", "operator"),
)
# Of a served log; the player's is the target's, too.
TOKENS = {role: f"the token of the {role}".replace(" ", "-").encode() for role in ROLES[1:]}
GROUP_TOKEN = "the token of the group's members"  # noqa: S105 - of these tests
Transport = str
TRANSPORTS: tuple[Transport, ...] = ("plaintext", "TLS", "mutual TLS")
_TIMEOUT_S = 60.0


class Ports(NamedTuple):
    """One server's addresses: by plaintext, by TLS, and by TLS that asks for certificates."""

    plaintext: str
    tls: str
    mutual: str

    def over(self, transport: Transport) -> str:
        return self[TRANSPORTS.index(transport)]


def certificate_name(role: str) -> str:
    """The name in the certificate that a role has."""
    return f"dns:{role}"


def peer_named(role: str) -> bytes:
    """What tokens are bound to over mutual TLS."""
    parts = b"name", certificate_name(role).encode()
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


class People:
    """One of each role, with channels that stay open."""

    def __init__(self) -> None:
        self.authority = trustme.CA()
        served = self.authority.issue_cert("127.0.0.1")
        self._pair = served.private_key_pem.bytes(), served.cert_chain_pems[0].bytes()
        self._trusted = self.authority.cert_pem.bytes()
        self._mine = {role: self._pair_of(self.authority, role) for role in ROLES[1:]}
        self._channels: dict[tuple[str, str, Transport], grpc.Channel] = {}

    def server_credentials(self, *, asks: bool) -> grpc.ServerCredentials:
        """What a server listens with; ``asks``: for certificates."""
        return grpc.ssl_server_credentials(
            [self._pair], self._trusted if asks else None, require_client_auth=asks
        )

    def listen(self, server: Any) -> Ports:
        """Have a server listen by each transport."""
        ports = [server.add_insecure_port("127.0.0.1:0")]
        for asks in (False, True):
            credentials = self.server_credentials(asks=asks)
            ports.append(server.add_secure_port("127.0.0.1:0", credentials))
        return Ports(*(f"127.0.0.1:{port}" for port in ports))

    def unknown(self, address: str, by: str) -> grpc.Channel:
        """Who comes by plaintext, or with a certificate that another authority gave it."""
        if by == "plaintext":
            return grpc.insecure_channel(address, options=_OPTIONS)
        return self._open(address, self._pair_of(trustme.CA(), "operator"))

    def channel(self, role: str, address: str, transport: Transport) -> grpc.Channel:
        """Who it is that calls; over mutual TLS all but a stranger have a certificate."""
        key = role, address, transport
        if key not in self._channels:
            if transport == "plaintext":
                self._channels[key] = grpc.insecure_channel(address, options=_OPTIONS)
            else:
                pair = self._mine.get(role) if transport == "mutual TLS" else None
                self._channels[key] = self._open(address, pair)
        return self._channels[key]

    def ask(
        self,
        role: str,
        address: str,
        transport: Transport,
        method: MethodDescriptor | str,
        request: Any,
        *metadata: tuple[str, str | bytes],
        silent: bool = False,
    ) -> Any:
        """Call a method as one of them; return its answer, of a stream the first.

        ``method``: by its descriptor, or the path of one that takes bytes. ``silent``: a stream
        that is open and says nothing is answered. Raises ``RpcError``.
        """
        channel = self.channel(role, address, transport)
        shown = (*_shown(role, transport), *metadata)
        if isinstance(method, str):
            return channel.unary_unary(method)(request, timeout=_TIMEOUT_S, metadata=shown)
        path = f"/{method.containing_service.full_name}/{method.name}"
        read = GetMessageClass(method.output_type).FromString
        kinds = {True: "stream", False: "unary"}
        kind = f"{kinds[method.client_streaming]}_{kinds[method.server_streaming]}"
        make = getattr(channel, kind)
        call = make(path, lambda message: message.SerializeToString(), read)
        sent: Any = iter([request]) if method.client_streaming else request
        answer = call(sent, timeout=_TIMEOUT_S, metadata=shown)
        return _first(answer, silent=silent) if method.server_streaming else answer

    def close(self) -> None:
        """Close the channels."""
        for channel in self._channels.values():
            channel.close()

    def _open(self, address: str, pair: tuple[bytes, bytes] | None) -> grpc.Channel:
        credentials = grpc.ssl_channel_credentials(self._trusted, *(pair or (None, None)))
        return grpc.secure_channel(address, credentials, options=_OPTIONS)

    @staticmethod
    def _pair_of(authority: trustme.CA, role: str) -> tuple[bytes, bytes]:
        issued = authority.issue_cert(role)
        return issued.private_key_pem.bytes(), issued.cert_chain_pems[0].bytes()


# What is refused must not be tried again by gRPC itself, nor over a connection of another's.
_OPTIONS = (("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1))


def _shown(role: str, transport: Transport) -> Sequence[tuple[str, str]]:
    """The tokens that a role sends with every call, wherever it goes."""
    if role == "stranger":
        return ()
    group = GROUP_TOKEN if role == "operator" else "a guess"
    shown = [("curp-group-token", group)]
    if transport != "mutual TLS":
        # There the certificate says it.
        shown.append(("authorization", f"Bearer {TOKENS[role].decode()}"))
    return shown


def _first(stream: Any, *, silent: bool) -> Any:
    """The first message; None of a stream that is open and says nothing."""
    try:
        stream.initial_metadata()
        return None if silent and stream.is_active() else next(stream)
    finally:
        stream.cancel()
