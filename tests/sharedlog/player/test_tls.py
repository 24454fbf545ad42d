"""Targets over TLS: by certificates, by names in them, by a token (DESIGN-LOG §15)."""

from contextlib import ExitStack

import grpc
import pytest
import trustme

import rifl
import sharedlog
from tests.helpers.servers import generic, serve
from tests.sharedlog.player.conftest import declared
from tests.sharedlog.player.target_process import (
    METHOD,
    database,
    effects,
    prepare,
    reserve,
    reserve_async,
)

NAME, SHOWN = "player.shop.internal", "a secret of the player's"


@pytest.fixture(scope="module")
def authority():
    """Who issues the certificates of this house."""
    return trustme.CA()


@pytest.fixture
def files(authority, tmp_path):
    """Its certificate, and pairs of certificate and key by name, as players are given them."""
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")

    def pair(name, issuer=authority):
        mine = issuer.issue_cert(name)
        mine.cert_chain_pems[0].write_to_path(tmp_path / "mine.pem")
        mine.private_key_pem.write_to_path(tmp_path / "mine.key")
        return {
            "authorities": str(tmp_path / "ca.pem"),
            "certificate": str(tmp_path / "mine.pem"),
            "key": str(tmp_path / "mine.key"),
        }

    return pair


class Secure:
    """A target over TLS, at two addresses: one asks for certificates."""

    def __init__(self, ports):
        self.asking, self.address = (f"127.0.0.1:{each}" for each in ports)

    def asks(self):
        """Where it asks for them."""
        self.address = self.asking
        return self


@pytest.fixture(params=["sync", "aio"])
def secure(request, authority, tmp_path):
    """A target that lets in who has a certificate with a name, or a token."""
    prepare(tmp_path)
    issued = authority.issue_cert("127.0.0.1")
    pairs = [(issued.private_key_pem.bytes(), issued.cert_chain_pems[0].bytes())]
    kind, ports = request.param, []

    def add(server):
        for asks in (True, False):
            credentials = grpc.ssl_server_credentials(
                pairs, authority.cert_pem.bytes() if asks else None, require_client_auth=asks
            )
            ports.append(server.add_secure_port("127.0.0.1:0", credentials))
        options = {"token": SHOWN, "peers": [f"dns:{NAME}"]}
        sharedlog.add_target_to_server(server, dedup, {"orders": [METHOD]}, **options)

    with ExitStack() as stack:
        url = f"sqlite:///{database(tmp_path)}"
        dedup = stack.enter_context(rifl.Deduplicator(url, methods={METHOD: "atomic"}))
        handler = reserve_async if kind == "aio" else reserve
        handlers = [generic("shop.v1.Inventory", {"Reserve": handler})]
        stack.enter_context(serve(kind, handlers, dedup=dedup, add=add))
        yield Secure(ports)


def test_who_has_a_certificate_with_a_name_is_let_in(house, log, secure, files, tmp_path):
    """A token is not needed then (§15)."""
    log.publish_call("orders", METHOD, b"1")
    house.player(declared(secure.asks(), **files(NAME)))
    house.wait_for(lambda: len(effects(tmp_path)) == 1)


def test_who_has_another_or_none_is_told_and_let_in_once_it_has(
    house, log, secure, files, tmp_path
):
    """Nothing is delivered; the files are read again with each try (P4)."""
    log.publish_call("orders", METHOD, b"1")
    secure.asks()
    others = files("somebody.else")
    mine = {"authorities": others["authorities"]}
    player = house.player(
        declared(secure, "other", number=1, **others), declared(secure, "none", number=2, **mine)
    )
    house.told_that(player, lambda told: "let this player in" in told.error, "other")
    # Without any there is no connection.
    house.told_that(player, lambda told: told.error, "none")
    assert effects(tmp_path) == []
    # In the place of the other one.
    files(NAME)
    house.wait_for(lambda: len(effects(tmp_path)) == 1)
    house.wait_for_state(player, "N", "other")
    assert player.targets()["none"].indexes == {}


def test_a_token_does_without_a_certificate(house, log, secure, files, tmp_path):
    """Over TLS, by the house's authority alone (§15)."""
    log.publish_call("orders", METHOD, b"1")
    house.player(declared(secure, token=SHOWN, authorities=files(NAME)["authorities"]))
    house.wait_for(lambda: len(effects(tmp_path)) == 1)


def test_a_target_of_another_house_is_told_nothing(house, log, secure, files, tmp_path):
    """A player that does not know who issued its certificate does not say what it knows."""
    log.publish_call("orders", METHOD, b"1")
    found = files(NAME)
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    player = house.player(declared(secure, token=SHOWN, **found))
    house.told_that(player, lambda told: "failed to connect" in told.error)
    plain = house.player(declared(secure, token=SHOWN), name="plain")
    house.told_that(plain, lambda told: told.error)
    assert effects(tmp_path) == []
