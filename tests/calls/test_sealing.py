"""Sealed answers and keyed fingerprints, as callers and a holder of the database see them."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import rifl
from tests.calls.services import Kinds, serving
from tests.helpers.raw import SESSION_SECRET, RawClient
from tests.helpers.sealing import FINGERPRINT_KEYS, SEALED, seal, unseal
from tests.helpers.waiting import deadlines

UNARY, COLLECT = "/t.Kinds/Unary", "/t.Kinds/Collect"
KINDS = ("sync", "aio")


def test_the_options_are_given_together() -> None:
    """One without the others protects less than it seems to."""
    for wrong in (
        *({name: SEALED[name]} for name in SEALED),
        {"seal": seal, "unseal": unseal},
        {"require_sealed": True},
        SEALED | {"fingerprint_keys": [b"short"]},
        SEALED | {"fingerprint_keys": FINGERPRINT_KEYS[0]},
    ):
        with pytest.raises(ValueError, match=r"together|needs|16 bytes"):
            rifl.Deduplicator("memory:", **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_no_request_can_be_guessed_from_the_database(tmp_path: Path, kind: str) -> None:
    """A fingerprint of each kind of call is an HMAC: the digests of requests are not there."""

    def fingerprints(name: str, options: dict[str, Any]) -> set[bytes]:
        url = f"sqlite:///{tmp_path}/{name}.db"
        with serving(kind, Kinds(), url=url, keys_from="anyone", **options) as service:
            session = {"session": "kept", "secret": SESSION_SECRET}
            with rifl.connect(service.address, **session) as channel:
                channel.unary_unary(UNARY)(b"once", metadata=(rifl.key("1"),))
                channel.stream_unary(COLLECT)(iter([b"a", b"b"]), metadata=(rifl.key("2"),))
                items = [rifl.BatchItem(each, each) for each in (b"c", b"d")]
                assert all(item.ok for item in channel.batch(UNARY, items))
            with RawClient(service.address, grant=False) as bare:
                keyed = (("idempotency-key", "k"),)
                assert bare.call(UNARY, b"e", bare=True, metadata=keyed).ok
            with closing(sqlite3.connect(tmp_path / f"{name}.db")) as database:
                return {each for (each,) in database.execute("SELECT fingerprint FROM rifl_call")}

    plain, keyed = fingerprints("plain", {}), fingerprints("sealed", SEALED)
    assert len(plain) == len(keyed) == 5
    assert not plain & keyed
    assert {len(each) for each in plain | keyed} == {16}


def test_a_key_is_replaced_while_callers_retry(tmp_path: Path) -> None:
    """New and old are given at once; without the old one a retry is another payload."""
    kinds = Kinds()
    new, old = FINGERPRINT_KEYS
    url = f"sqlite:///{tmp_path}/s.db"
    with (
        serving("sync", kinds, url=url, **SEALED | {"fingerprint_keys": [old]}) as service,
        RawClient(service.address) as client,
    ):
        assert client.call(UNARY, b"x", 1).response == b"1"
        found = []
        for keys in ([new, old], [new]):
            service._options["fingerprint_keys"] = keys
            service.kill()
            found.append(client.call(UNARY, b"x", 1, attempt=2))
    assert (found[0].response, found[0].outcome) == (b"1", "replayed")
    assert found[1].reason == "PAYLOAD_MISMATCH"
    assert kinds.effects == [b"x"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_outcome_of_a_sealed_call_can_be_asked_for(tmp_path: Path, kind: str) -> None:
    """A client names the method that the answer is bound to; who does not is told unknown."""
    going_on, begun = threading.Event(), set[bytes]()

    class Held(Kinds):
        def unary(self, request: bytes, context: Any) -> bytes:
            begun.add(request)
            assert going_on.wait(60)
            return b"answer to " + request

    async def ask_on_a_loop(address: str) -> Any:
        async with rifl.aio.connect(address) as channel:
            await channel.session.open()
            for timeout_s in deadlines():
                request = b"%g" % timeout_s
                with pytest.raises(rifl.CallError) as caught:
                    await channel.unary_unary(UNARY)(request, timeout=timeout_s)
                if request in begun:
                    break
            going_on.set()
            return request, await channel.session.resolve(caught.value.rpc_id, timeout=20)

    def ask(address: str) -> Any:
        with rifl.connect(address) as channel:
            channel.session.open()
            for timeout_s in deadlines():
                request = b"%g" % timeout_s
                with pytest.raises(rifl.CallError) as caught:
                    channel.unary_unary(UNARY)(request, timeout=timeout_s)
                if request in begun:
                    break
            going_on.set()
            return request, channel.session.resolve(caught.value.rpc_id, timeout=20)

    with serving("sync", Held(), url=f"sqlite:///{tmp_path}/s.db", **SEALED) as service:
        address = service.address
        asked, found = ask(address) if kind == "sync" else asyncio.run(ask_on_a_loop(address))
        assert (found.outcome, found.reply) == (rifl.Outcome.EXECUTED, b"answer to " + asked)
        with RawClient(address) as client:
            client.call(UNARY, b"y", 1)
            answers = [client.resolve(1, method=method) for method in (UNARY, "/t.Kinds/Other")]
            assert [client.call(UNARY, b"y", 1, attempt=2).outcome, client.resolve(1).refusal] == [
                "replayed",
                ("ABORTED", "OUTCOME_UNKNOWN", "unknown"),
            ]
    assert answers[0].record.response == b"answer to y"
    assert answers[1].refusal == ("ABORTED", "OUTCOME_UNKNOWN", "unknown")
