"""Damage to a group's log in etcd: all that its tests know of the keys."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from sharedlog._engines.etcd.address import EtcdAddress
from sharedlog._engines.etcd.calls import (
    LEASE_GRANT,
    TXN,
    delete,
    get,
    put,
    scan,
)
from sharedlog._engines.etcd.client import Client
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb
from sharedlog._engines.owner import LOG

__all__ = ["Damage"]

# In front of each append's entries.
_MARK_BYTES = 16
_COUNTED = {"entries": "log/", "tags": "tag/", "pieces": "key/pieces/"}


class Damage:
    """A group's log in a cluster, damaged without its engines."""

    def __init__(self, server: Any, group: str) -> None:
        self.server = server
        self.group = group
        self._root = f"curp/{quote(group, safe='')}/"

    def url(self, **options: object) -> str:
        """Return the log's URL."""
        url: str = self.server.url(group=self.group, **options)
        return url

    def behind(self, path: Any) -> str:
        """Lead a path to one node; return the log's URL by that path alone."""
        path.lead_to(self.server.nodes[0].port)
        hosts = ",".join(node.host for node in self.server.nodes)
        return self.url(timeout_s=1, try_s=0.5).replace(hosts, path.target)

    # Entries and their listings under tags. An append is one key.

    def drop_entry(self, lsn: int) -> None:
        """Remove an entry's append, and nothing else."""
        self._change(delete(self._append(lsn)[0].key))

    def change_entry(self, lsn: int, how: str = "bit") -> None:
        """Flip a bit of an entry's body, tear its end off, empty it, or change its tags."""
        found, place = self._append(lsn)
        mark, packed = found.value[:_MARK_BYTES], found.value[_MARK_BYTES:]
        record = pb.LogRecord.FromString(packed)
        entry = record.entries[place]
        if how == "bit":
            entry.body = entry.body[:-1] + bytes([entry.body[-1] ^ 1])
        elif how == "tags":
            entry.tags[:] = ["other"]
        else:
            assert how in ("torn", "empty")
        changed = mark + record.SerializeToString()
        self._change(put(found.key, {"torn": changed[:-3], "empty": b""}.get(how, changed)))

    def list_entry(self, lsn: int, tag: str) -> None:
        """List an entry under a tag."""
        self._change(put(self._listing(lsn, tag), b""))

    def unlist_entry(self, lsn: int, tag: str) -> None:
        """Remove an entry's listing under a tag."""
        self._change(delete(self._listing(lsn, tag)))

    # The log's own keys, and the pieces of snapshots among them.

    def key(self, name: str) -> bytes:
        """Return what a key holds."""
        return self._get(f"key/{name}").value

    def set_key(self, name: str, value: bytes | None) -> None:
        """Have a key hold something else, or be gone."""
        self.set_part(f"key/{name}", value)

    def set_part(self, name: str, value: bytes | None) -> None:
        """Have what the log is found by, its ``id`` or ``head``, be something else, or gone."""
        key = self._root.encode() + name.encode()
        self._change(delete(key) if value is None else put(key, value))

    def pieces(self) -> list[str]:
        """Return the keys of all pieces of snapshots, in their order."""
        root = f"{self._root}key/"
        return [each.key.decode().removeprefix(root) for each in self._scan("key/pieces/")]

    # Any bit.

    def stored(self) -> list[Any]:
        """Return all that is kept of the log, but for its metadata: their writers check those."""
        keys = [each for each in self._scan("") if b"/key/metadata/" not in each.key]
        return [(each, where) for each in keys for where in ("key", "value")]

    def flip(self, stored: Any, bit: int) -> bool:
        """Flip one bit; whether that could be done."""
        found, where = stored
        root = self._root.encode()
        kept = found.key.removeprefix(root) if where == "key" else found.value
        if not kept:
            return False
        place = min(bit, len(kept) - 1)
        changed = kept[:place] + bytes([kept[place] ^ 1 << bit]) + kept[place + 1 :]
        if where == "value":
            self._change(put(found.key, changed))
        else:
            self._change(delete(found.key), put(root + changed, found.value))
        return True

    # The whole log.

    def count(self, kind: str) -> int:
        """Return how many entries, listings under tags, or pieces there are."""
        return len(self._scan(_COUNTED[kind]))

    def set_format(self, number: int) -> None:
        """Have it be a log of another release."""
        told = json.loads(self._get("id").value)
        self.set_part("id", json.dumps({**told, "format": number}).encode())

    def drop(self) -> None:
        """Delete all keys."""
        self._change(delete(self._root.encode(), _behind(self._root)))

    def keep(self) -> Callable[[], None]:
        """Copy the log's keys; return what puts the copy into their place.

        A key with a lease of etcd's is not copied: its lease may be over by then.
        """
        older = [each for each in self._scan("") if not each.lease]
        assert older

        def restore() -> None:
            self.drop()
            self._change(*(put(each.key, each.value) for each in older))

        return restore

    # Who waits, and for what.

    def hears(self, engine: Any) -> bool:
        """Whether the engine's watch tells of appends."""
        return bool(_engine_of(engine)._watch.news > 0)

    def told(self, engine: Any) -> int:
        """Return by which revision there was something that the engine's watch told of."""
        return int(_engine_of(engine)._watch.news)

    def asked(self, engine: Any) -> Any:
        """Return the node that the engine asks now."""
        return self.server.nodes[_engine_of(engine)._log.client._at]

    # Leases and users.

    def lease(self) -> str:
        """Return the number of the lease of etcd's that the leader's runs by."""
        return f"{self._get('key/lease').lease:x}"

    def forget_sign_in(self, engine: Any) -> None:
        """Have the engine present a token that no node knows."""
        _engine_of(engine)._log.client._token = "none-of-theirs"  # noqa: S105 - no secret

    def grant_late(self, engine: Any) -> None:
        """Have the lease that the engine is granted next be over by the time it is used."""
        client = _engine_of(engine)._log.client
        call = client.call

        def late(method: Any, request: Any, **options: Any) -> Any:
            if method is not LEASE_GRANT:
                return call(method, request, **options)
            client.call = call
            return pb.LeaseGrantResponse(id=12345)

        client.call = late

    def _append(self, lsn: int) -> tuple[pb.KeyValue, int]:
        """Return the append of an entry, and the entry's place in it."""
        for found in self._scan("log/"):
            # Its last LSN, and how many entries it has.
            last, count = int(found.key[-20:-4], 16), int(found.key[-4:], 16)
            if last - count < lsn <= last:
                return found, lsn - (last - count) - 1
        raise AssertionError(f"there is no entry {lsn}")

    def _listing(self, lsn: int, tag: str) -> bytes:
        name = self._append(lsn)[0].key.rpartition(b"/")[2].decode()
        return f"{self._root}tag/{quote(tag, safe='')}/{name}".encode()

    def _get(self, name: str) -> pb.KeyValue:
        (found,) = self._change(get(f"{self._root}{name}".encode())).responses[0].range.kvs
        return found

    def _scan(self, prefix: str) -> list[pb.KeyValue]:
        first = self._root + prefix
        asked = scan(first.encode(), _behind(first), 0)
        return list(self._change(asked).responses[0].range.kvs)

    def _change(self, *steps: pb.RequestOp) -> pb.TxnResponse:
        with self._client() as client:
            return client.call(TXN, pb.TxnRequest(success=steps), again=True)

    def _client(self) -> contextlib.closing[Client]:
        base = self.server.url().partition("?")[0]
        return contextlib.closing(Client(EtcdAddress.parse(base, {}, LOG, prefix=""), LOG))


def _behind(prefix: str) -> bytes:
    return prefix[:-1].encode() + bytes([ord(prefix[-1]) + 1])


def _engine_of(engine: Any) -> Any:
    return engine._engine
