"""Make the store fixtures of this release: ``python -m tests.compat.make_store``.

Until a release is tagged, remake a store whenever its format changes: delete the file and run
this. Files that are there are left alone. They are text, so that a review shows what is in them.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from chaos.mariadb_server import MariaDbServer
from lease_server import LeaseAuthority, SharedLeaseStorage, open_authority
from lease_server._sessions import SessionPolicy, SessionRow, SessionState
from rifl._stores import open_store
from rifl._stores.postgres import schema as postgres_schema
from rifl._wire.header import fingerprint
from rifl.core._serving.bounds import Bounds
from rifl.core._serving.client_table import Attempt
from rifl.core._serving.later import Later
from rifl.core._serving.namespace import namespace_id
from rifl.core._serving.policy import Kind, MethodPolicies, MethodPolicy
from rifl.core._shared.call import Call
from rifl.core._shared.record import CompletionRecord
from tests.compat.dumping import dump_mariadb, dump_postgres, dump_redis
from tests.echo import METHOD
from tests.stores.postgres.servers import PostgresServer
from tests.stores.redis.servers import RedisServer

__all__ = ["ANSWER", "CURRENT", "NAMESPACE", "REQUEST", "make"]

# The calls of the fixtures were sent with this.
REQUEST = b"x"
# Of callers without a client id, whom nobody authenticated.
NAMESPACE = namespace_id(b"")
ANSWER = CompletionRecord(
    code=0,
    response=b"\x0a\x05hello",
    initial_metadata=(("x-first", "1"),),
    trailing_metadata=(("x-last-bin", b"\x00\xff"),),
)
REFUSAL = CompletionRecord(code=9, details="not enough money")


def make(url: str) -> None:
    """Fill a new store: client 1 has every kind of row, 1025 is a session.

    Client 1: seqs 1-3 and 5 acknowledged, 4 an intent whose server died, 6 the
    answer, 7 an error of the handler's. Session 1025: the key ``order-17``. Where
    replicas share the store, a peer's namespace has the key ``invoice-1``, too.
    """
    store = open_store(url)
    policies = MethodPolicies({}, Kind.PLAIN)
    # Ids that can be written down.
    store.leases.random_bits = 0
    authority = open_authority(store.leases, term_s=60.0)
    store.bind(authority, policies, clock=time.monotonic, bounds=Bounds())
    client_id = authority.grant(source="10.0.0.7").client_id
    session = store.leases.reserve_ids(1)[0]
    row = SessionRow(session, "orders", b"", SessionState.OPEN, 86400.0 * 36500, 1_700_000_000.0)
    shared = isinstance(store.leases, SharedLeaseStorage)
    if isinstance(store.leases, SharedLeaseStorage):
        store.leases.open_session(row, SessionPolicy())
    else:
        store.leases.put_session(row)
    if isinstance(authority, LeaseAuthority):
        authority.recover()
    plain, idempotent = MethodPolicy(), MethodPolicy(kind=Kind.IDEMPOTENT)

    def begin(policy: MethodPolicy, call: Call) -> Attempt:
        call.fingerprint = fingerprint(METHOD, REQUEST)
        call.method = "/bank.Bank/Deposit"
        claimed: Any = store.claim(call, policy)
        attempt = (claimed.wait() if isinstance(claimed, Later) else claimed).attempt
        if attempt is None:
            raise SystemExit("the call is not new")
        if (pending := store.start(attempt)) is not None:
            pending.wait()
        return attempt  # type: ignore[no-any-return]

    def finish(attempt: Attempt, record: CompletionRecord) -> None:
        if (pending := store.finish(attempt, record)) is not None:
            pending.wait()

    for seq in (1, 2, 3, 5):
        finish(begin(plain, Call(client_id, b"", seq)), ANSWER)
    begin(plain, Call(client_id, b"", 4))
    finish(begin(plain, Call(client_id, b"", 6, None, 4, [(5, 5)])), ANSWER)
    finish(begin(idempotent, Call(client_id, b"", 7, None, 4, [(5, 5)])), REFUSAL)
    finish(begin(plain, Call(session, b"", None, b"order-17")), ANSWER)
    if shared:
        kept_long = MethodPolicy(retention_s=86400.0 * 36500)
        finish(begin(kept_long, Call(NAMESPACE, b"", None, b"invoice-1")), ANSWER)
    store.close()


def _sqlite() -> str:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "store.db"
        make(f"sqlite:///{path}")
        with closing(sqlite3.connect(path)) as connection:
            return "\n".join(connection.iterdump()) + "\n"


def _redis() -> str:
    with tempfile.TemporaryDirectory() as directory:
        server = RedisServer(Path(directory))
        try:
            make(server.url())
            with server.client() as client:
                return dump_redis(client)
        finally:
            server.stop()


def _postgres() -> str:
    server = PostgresServer()
    try:
        make(server.url())
        return dump_postgres(server.url(), postgres_schema.script("rifl"))
    finally:
        server.stop()


def _mariadb() -> str:
    server = MariaDbServer()
    try:
        make(server.url())
        with server.connect() as connection:
            return dump_mariadb(connection)
    finally:
        server.stop()


# What the fixtures of this release are called, and what makes them.
CURRENT: dict[str, Callable[[], str]] = {
    "sqlite.sql": _sqlite,
    "redis.json": _redis,
    "postgres.sql": _postgres,
    "mariadb.sql": _mariadb,
}


def main() -> None:
    """Write beside this file what is not there yet."""
    for name, make_text in CURRENT.items():
        target = Path(__file__).with_name(name)
        if not target.exists():
            target.write_text(make_text())
            sys.stdout.write(f"{target}\n")


if __name__ == "__main__":
    main()
