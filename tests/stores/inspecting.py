"""Inspection of a store that replicas share, the same for each such store."""

from __future__ import annotations

import csv
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import rifl
from rifl._cli import ExitCode, main
from rifl._stores import StoreLocked, WrongDatabase
from rifl._stores.opening import open_inspection
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import InProgress
from rifl.core._shared.identity import RpcId
from tests.compat.make_store import ANSWER, NAMESPACE, make
from tests.echo import METHOD, served
from tests.stores.redis.replica import FIRST, IDEMPOTENT, OTHER, Replica, call, keyed

__all__ = ["SharedInspection"]

KEY = RpcId(1025, None, b"order-17")
INVOICE = RpcId(NAMESPACE, None, b"invoice-1")


class SharedInspection:
    """``url`` is the fixture of a store of its own; ``made`` fills it."""

    @pytest.fixture
    def made(self, url: str) -> str:
        """Return the URL of a store with every kind of row."""
        make(url)
        return url

    @pytest.fixture
    def store(self, made: str) -> Iterator[Any]:
        """An inspection of it."""
        with closing(open_inspection(made)) as inspection:
            yield inspection

    def test_a_store_at_a_glance(self, store: Any) -> None:
        """Clients, sessions, intents, records and their sizes are counted (DESIGN §6)."""
        summary = store.summary()
        assert (summary.owner, summary.incarnation, summary.stopped) == (None, None, False)
        assert (summary.clients, summary.open_sessions) == (3, 1)
        assert (summary.intents, summary.records) == (1, 4)
        assert summary.record_bytes == sum(found.record_bytes or 0 for found in store.calls())
        assert summary.oldest_unix_s is not None
        assert summary.size_bytes > summary.record_bytes

    def test_clients_with_their_leases_and_calls(self, store: Any) -> None:
        """A client shows its lease, what it acknowledged and what is kept (DESIGN §5)."""
        rows = {row.client_id: row for row in store.clients()}
        assert list(rows) == [1, NAMESPACE, 1025]
        assert [row.client_id for row in store.clients(1)] == [1]
        client, namespace, session = rows[1], rows[NAMESPACE], rows[1025]
        assert (client.first_incomplete, client.completed) == (4, [(5, 5)])
        assert (client.intents, client.records) == (1, 2)
        assert 0 < client.lease_left_s <= 75
        assert (session.session.name, session.session.state) == ("orders", "open")
        assert session.lease_left_s > 86400
        assert (namespace.lease_left_s, namespace.records) == (None, 1)
        assert [found.rpc_id for found in store.calls(1)] == [RpcId(1, n) for n in (4, 6, 7)]
        assert [found.rpc_id for found in store.calls(only_intents=True)] == [RpcId(1, 4)]
        found = [row.rpc_id for row in store.calls()]
        assert found == [INVOICE, *(RpcId(1, n) for n in (4, 6, 7)), KEY]
        assert store.client(99) is None

    def test_a_call_and_its_record(self, store: Any) -> None:
        """A record reads back as it was, with method and time; an intent has none (§4)."""
        for rpc_id in (KEY, INVOICE, RpcId(1, 6)):
            assert store.record(rpc_id) == ANSWER
            found = store.call(rpc_id)
            assert (found.method, found.owner) == ("/bank.Bank/Deposit", None)
            assert found.changed_at_unix_s is not None
        intent = store.call(RpcId(1, 4))
        assert (intent.record_bytes, intent.method) == (None, "/bank.Bank/Deposit")
        assert store.record(RpcId(1, 4)) is None
        assert store.call(RpcId(1, 5)) is None
        assert store.call(RpcId(77, 1)) is None

    def test_it_works_beside_living_replicas(self, url: str) -> None:
        """A call in progress shows with its replica, is not released, and goes on (§6)."""
        begun, go_on = threading.Event(), threading.Event()

        def slow(request: bytes, context: Any) -> bytes:
            if request == b"slow":
                begun.set()
                go_on.wait(20)
            return request

        with (
            rifl.Deduplicator(url) as dedup,
            served(dedup, slow) as target,
            rifl.connect(target) as channel,
        ):
            method = channel.unary_unary(METHOD)
            future = method.future(b"slow", timeout=20)
            assert begun.wait(20)
            with closing(open_inspection(url)) as store:
                (intent,) = store.calls(only_intents=True)
                owner = dedup._store.owner  # type: ignore[attr-defined]
                assert (intent.method, intent.owner) == (METHOD, owner)
                assert store.summary().owner == f"1 replica: {owner}"
                assert method(b"quick", timeout=20) == b"quick"
                with pytest.raises(StoreLocked, match=owner):
                    store.release(intent.rpc_id)
                go_on.set()
                assert future.result() == b"slow"
                assert not list(store.calls(only_intents=True))

    def test_a_released_record_is_new_on_every_replica(self, replicas: Any, url: str) -> None:
        """By hand a record is forgotten beside living replicas, in one step (DESIGN §4)."""
        one, two = replicas(), replicas()
        client = one.client()
        session = one.authority.open_session("s").client_id
        for known in (call(client, 1), keyed(session, b"k")):
            one.finish(one.begin(known))
            assert two.claim(known).verdict is Verdict.COMPLETED
        with closing(open_inspection(url)) as store:
            for rpc_id in (RpcId(client, 1), RpcId(session, None, b"k")):
                assert store.holder(rpc_id) is None
                assert store.release(rpc_id)
                assert not store.release(rpc_id)
        for known in (call(client, 1), keyed(session, b"k")):
            two.finish(two.begin(known), OTHER)
            assert one.claim(known).record == OTHER

    def test_a_released_attempt_is_fenced(self, replicas: Any, url: str) -> None:
        """An attempt of a replica taken for dead records nothing once it is released (§6)."""
        one, two = replicas(), replicas()
        client = one.client()
        stuck = one.begin(call(client, 1), IDEMPOTENT)
        one.fall_silent()
        with closing(open_inspection(url)) as store:
            assert store.release(RpcId(client, 1))
        anew = two.begin(call(client, 1), IDEMPOTENT)
        with pytest.raises(InProgress):
            one.finish(stuck)
        two.finish(anew, OTHER)
        assert two.claim(call(client, 1)).record == OTHER
        assert FIRST != OTHER

    def test_keys_that_are_released_make_room(self, replicas: Any, url: str) -> None:
        """What counts towards a session's bounds goes with the record (DESIGN §4)."""
        one: Replica = replicas()
        session = one.authority.open_session("s").client_id
        one.finish(one.begin(keyed(session, b"k")))
        one.begin(keyed(session, b"running"))
        one.fall_silent()
        with closing(open_inspection(url)) as store:
            assert store.release(RpcId(session, None, b"k"))
            assert store.release(RpcId(session, None, b"running"))
            assert list(store.calls(session)) == []
        assert self.counted(one, session) == (0, 0)

    def counted(self, replica: Replica, client_id: int) -> tuple[int, int]:
        """Return keys and bytes that the store counts for a client."""
        raise NotImplementedError

    def test_the_command(self, made: str, tmp_path: Path, capsys: Any) -> None:
        """inspect, show, release, export and rotate-secret work as on a file (DESIGN §6)."""
        assert main(["inspect", made]) == ExitCode.DONE
        text = capsys.readouterr().out
        for expected in ("served by", "no process", "orders (open)", "1/4", "/bank.Bank/Deposit"):
            assert expected in text
        assert main(["inspect", made, "--json"]) == ExitCode.DONE
        found = json.loads(capsys.readouterr().out)
        assert found["summary"]["records"] == 4
        assert [entry["rpc_id"] for entry in found["intents"]] == ["1/4"]
        assert main(["show", made, "1"]) == ExitCode.DONE
        assert "below 4, and 5-5 above" in capsys.readouterr().out
        assert main(["show", made, str(INVOICE), "--json", "--response"]) == ExitCode.DONE
        shown = json.loads(capsys.readouterr().out)
        assert shown["record"]["response_hex"] == "0a0568656c6c6f"
        out = tmp_path / "calls.csv"
        assert main(["export", made, "--out", str(out)]) == ExitCode.DONE
        with out.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["session"] for row in rows] == ["", "", "", "", "orders"]
        assert main(["release", made, str(INVOICE), "--yes"]) == ExitCode.DONE
        assert main(["release", made, "1/4", "--yes"]) == ExitCode.DONE
        assert main(["release", made, "1/4", "--yes"]) == ExitCode.NOT_FOUND
        capsys.readouterr()
        assert main(["rotate-secret", made, "--json"]) == ExitCode.DONE
        assert json.loads(capsys.readouterr().out) == {"key_id": 1}

    def test_what_is_no_store_is_left_as_it_is(self, url: str) -> None:
        """Where there is no store none is made, and it is said (DESIGN §6)."""
        for _ in range(2):
            with pytest.raises(WrongDatabase, match="no rifl store"):
                open_inspection(url)
