"""Sealed records in PostgreSQL (DESIGN §6)."""

from __future__ import annotations

import pytest
from psycopg.sql import SQL, Identifier

from rifl._stores import RecordCodec
from rifl.core._shared.errors import OutcomeUnknown
from tests.helpers.sealing import seal, unseal
from tests.stores.redis.replica import ATOMIC, FIRST, call


def test_a_sealed_record_is_unreadable_there_and_read_by_other_replicas(replicas, database, schema):
    """Handlers' transactions too; a lost key is a typed unknown."""
    codec = RecordCodec(seal, unseal)
    one, two = replicas(codec=codec), replicas(codec=codec)
    client = one.client()
    one.finish(one.begin(call(client, 1)))
    attempt = one.begin(call(client, 2), ATOMIC)
    one.store.transactions.record(attempt, FIRST, database)
    database.commit()
    assert one.store.committed(attempt).wait() == FIRST
    one.store.adopt(attempt, FIRST)
    for seq in (1, 2):
        assert two.claim(call(client, seq)).record == FIRST
    rows = list(database.execute(SQL("SELECT record FROM {}.calls").format(Identifier(schema))))
    assert len(rows) == 2
    assert not any(b"first" in row[0] for row in rows)
    with pytest.raises(OutcomeUnknown):
        replicas().claim(call(client, 1))
