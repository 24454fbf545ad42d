"""The names in callers' certificates, as calls, served logs and targets judge them (DESIGN §3)."""

from __future__ import annotations

import datetime
import ipaddress
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from rifl._leases.peer import peer_of
from rifl.core._shared.errors import NotYours
from sharedlog._core.errors import InvalidRequest, NotAllowed
from sharedlog._service.access import Access
from sharedlog._service.settings import BadSettings, read_settings
from sharedlog._target.access import PlayerAccess
from tests.helpers.servers import generic, serve

DNS, URI, MAIL = x509.DNSName, x509.UniformResourceIdentifier, x509.RFC822Name
# Of a kind that gRPC does not show.
UNSEEN = x509.DirectoryName(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "seen")]))
OTHER_UNSEEN = x509.RegisteredID(x509.ObjectIdentifier("1.2.3"))


def ip(text: str) -> x509.IPAddress:
    """Return an address as a certificate has it."""
    return x509.IPAddress(ipaddress.ip_address(text))


class Judged(NamedTuple):
    """What the doors say of a caller."""

    # Of calls; None: NOT_YOURS.
    identity: str | None
    # The same, by a property that the server names.
    bound: str | None
    # Of a served log's quotas; None: it is let in by nothing.
    name: str | None
    publishes: list[str]
    delivers: bool


class Authority:
    """It issues certificates with any names."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = self._subject("authority")
        self.pem = self._signed(self._name, self._key, None, is_authority=True)

    def issue(self, common_name: str = "", *names: x509.GeneralName) -> tuple[bytes, bytes]:
        """Return a key and a certificate with these alternative names."""
        key = ec.generate_private_key(ec.SECP256R1())
        pem = self._signed(self._subject(common_name), key, names)
        plain = serialization.NoEncryption()
        pkcs8 = serialization.PrivateFormat.PKCS8
        return key.private_bytes(serialization.Encoding.PEM, pkcs8, plain), pem

    def _subject(self, common_name: str) -> x509.Name:
        parts = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else []
        return x509.Name(parts)

    def _signed(
        self, subject: x509.Name, key: Any, names: Any, *, is_authority: bool = False
    ) -> bytes:
        now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
        made = x509.CertificateBuilder(
            self._name,
            subject,
            key.public_key(),
            x509.random_serial_number(),
            now - day,
            now + day,
        ).add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        if names:
            made = made.add_extension(x509.SubjectAlternativeName(names), critical=not subject)
        return made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


RULES = {
    "dns:Shop.internal": "dns",
    "uri:spiffe://shop/a": "uri",
    "email:shop.internal": "email",
    "ip:0:0::1": "ip",
    "cn:shop.internal": "cn",
}
RIGHTS = read_settings(
    "".join(f"[[allow]]\npeer = {name!r}\npublish = [{to!r}]\n" for name, to in RULES.items())
)


PROPERTY = "x509_subject_alternative_name"


def identity_of(context: Any, bound: str | None) -> str | None:
    """Return the identity of calls; None: NOT_YOURS."""
    try:
        return peer_of(context, bound).hex()
    except NotYours:
        return None


def judged(context: Any) -> Judged:
    """Return what the doors say."""
    identity, bound = (identity_of(context, each) for each in (None, PROPERTY))
    try:
        caller = Access(RIGHTS, {"t": b"0123456789abcdef"}).caller(context)
        name = caller.name
        publishes = [each for each in RULES.values() if caller.may_publish(each)]
    except NotAllowed:
        name, publishes = None, []
    try:
        PlayerAccess(None, ["dns:shop.INTERNAL", "email:a@b"]).check(context)
        delivers = True
    except NotAllowed:
        delivers = False
    return Judged(identity, bound, name, publishes, delivers)


class Doors:
    """A server that says what its doors say of who calls."""

    def __init__(self, authority: Authority, address: str) -> None:
        self._authority = authority
        self._address = address

    def __call__(self, common_name: str = "", *names: x509.GeneralName) -> Judged:
        """Show a certificate with these names."""
        mine = grpc.ssl_channel_credentials(
            self._authority.pem, *self._authority.issue(common_name, *names)
        )
        with grpc.secure_channel(self._address, mine) as channel:
            judge: Any = channel.unary_unary("/doors/Judge")
            return Judged(*json.loads(judge(b"", timeout=20)))


@pytest.fixture(params=["sync", "aio"], scope="module")
def doors(request: pytest.FixtureRequest) -> Iterator[Doors]:
    """It asks for certificates."""
    authority, ports = Authority(), []
    pair = authority.issue("", ip("127.0.0.1"))

    def answer(_: bytes, context: Any) -> bytes:
        return json.dumps(judged(context)).encode()

    async def answer_async(_: bytes, context: Any) -> bytes:
        return answer(_, context)

    def add(server: Any) -> None:
        mine = grpc.ssl_server_credentials([pair], authority.pem, require_client_auth=True)
        ports.append(server.add_secure_port("127.0.0.1:0", mine))

    handler = answer if request.param == "sync" else answer_async
    with serve(request.param, [generic("doors", {"Judge": handler})], add=add):
        yield Doors(authority, f"127.0.0.1:{ports[0]}")


def test_names_of_other_kinds_are_other_names(doors: Doors) -> None:
    """One text is a DNS name, a URI, an e-mail address or a common name: four callers."""
    text = "shop.internal"
    found = [doors("", DNS(text)), doors("", URI(text)), doors("", MAIL(text)), doors(text)]
    assert [each.publishes for each in found] == [["dns"], [], ["email"], ["cn"]]
    assert [each.delivers for each in found] == [True, False, False, False]
    assert len({each.identity for each in found}) == 4
    assert [each.name for each in found] == [f"{it}:{text}" for it in ("dns", "uri", "email", "cn")]


def test_a_common_name_counts_without_other_names_alone(doors: Doors) -> None:
    """Beside another name it says nothing, as in every browser."""
    found = doors("shop.internal", DNS("mallory"))
    assert (found.name, found.publishes, found.delivers) == ("dns:mallory", [], False)
    assert found == doors("another", DNS("mallory"))


def test_names_are_compared_by_the_rules_of_their_kinds(doors: Doors) -> None:
    """DNS without regard to case; addresses in any notation; a wildcard is itself."""
    upper, lower = doors("", DNS("SHOP.Internal")), doors("", DNS("shop.internal"))
    assert upper == lower._replace(bound=upper.bound)
    assert upper.publishes == ["dns"]
    wild = doors("", DNS("*.internal"))
    assert (wild.publishes, wild.delivers) == ([], False)
    assert doors("", ip("::1")).publishes == ["ip"]
    assert doors("", URI("spiffe://shop/a")).publishes == ["uri"]
    assert doors("", URI("spiffe://shop/A")).publishes == []


def test_a_caller_is_all_its_names(doors: Doors) -> None:
    """So one certificate uses no other's quota; their order says nothing."""
    both = doors("", DNS("shop.internal"), DNS("a"))
    assert both == doors("", DNS("a"), DNS("shop.internal"))
    assert both.publishes == ["dns"]
    names = [both.name, doors("", DNS("a")).name, doors("", DNS("a"), MAIL("b@c")).name]
    assert names == ["dns:a dns:shop.internal", "dns:a", "dns:a email:b@c"]
    # A name with a space in it is not two.
    assert doors("a dns:shop.internal").name == "'cn:a dns:shop.internal'"


@pytest.mark.parametrize("common_name", ["", "shop.internal"])
def test_a_certificate_without_a_name_that_is_shown_is_refused(
    doors: Doors, common_name: str
) -> None:
    """Two of them would be one caller; one with another name is that."""
    unnamed = Judged(None, None, None, [], False)
    assert doors(common_name, UNSEEN) == unnamed
    assert doors(common_name, OTHER_UNSEEN) == unnamed
    assert doors() == unnamed
    assert doors(common_name, UNSEEN, DNS("shop.internal")) == doors("", DNS("shop.internal"))
    assert doors("", DNS("shop.internal")).bound == doors("", URI("shop.internal")).bound


@pytest.mark.parametrize("name", ["shop.internal", "dns:", "", "DNS:a", "name:a", "ip:shop", ":a"])
def test_who_writes_a_name_without_a_kind_is_told(name: str) -> None:
    """Instead of a rule that fits no caller."""
    with pytest.raises(InvalidRequest, match="such as dns:"):
        PlayerAccess(None, [name])
    if name:
        with pytest.raises(BadSettings, match="such as dns:"):
            read_settings(f"[[allow]]\npeer = {name!r}\nadmin = true")
