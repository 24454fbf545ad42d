"""The tables of outboxes in an application's database, of SQLite or PostgreSQL."""

from __future__ import annotations

from typing import NamedTuple

# `seq` and `chain`: of the newest message.
_CREATE = (
    "CREATE TABLE IF NOT EXISTS sharedlog_outbox (name TEXT PRIMARY KEY, id TEXT NOT NULL, "
    "incarnation TEXT NOT NULL, seq BIGINT NOT NULL, chain {bytes} NOT NULL)",
    "CREATE TABLE IF NOT EXISTS sharedlog_outbox_message (name TEXT NOT NULL, seq BIGINT NOT NULL, "
    "tag TEXT NOT NULL, envelope {bytes} NOT NULL, chain {bytes} NOT NULL, "
    "PRIMARY KEY (name, seq))",
    # A row of its own: a relay waits for no transaction that publishes.
    "CREATE TABLE IF NOT EXISTS sharedlog_outbox_done (name TEXT PRIMARY KEY, "
    "seq BIGINT NOT NULL, chain {bytes} NOT NULL)",
)
INSERT = "INSERT INTO sharedlog_outbox VALUES (?, ?, ?, 0, ?) ON CONFLICT (name) DO NOTHING"
INSERT_DONE = "INSERT INTO sharedlog_outbox_done VALUES (?, 0, ?) ON CONFLICT (name) DO NOTHING"
FIND = "SELECT incarnation FROM sharedlog_outbox WHERE name = ?"

# Of the relay.
BOX = (
    "SELECT o.id, o.incarnation, o.seq, o.chain, d.seq, d.chain FROM sharedlog_outbox o "
    "JOIN sharedlog_outbox_done d ON d.name = o.name WHERE o.name = ?"
)
WAITING = (
    "SELECT seq, tag, envelope, chain FROM sharedlog_outbox_message "
    "WHERE name = ? AND seq > ? ORDER BY seq LIMIT ?"
)
CHAIN_AT = "SELECT chain FROM sharedlog_outbox_message WHERE name = ? AND seq = ?"
DONE = "UPDATE sharedlog_outbox_done SET seq = ?, chain = ? WHERE name = ? AND seq < ?"
REMOVE = "DELETE FROM sharedlog_outbox_message WHERE name = ? AND seq <= ?"
ADOPT = "UPDATE sharedlog_outbox SET incarnation = ? WHERE name = ? AND incarnation = ?"

# Of SQLite, whose one lock is that of the head, too.
NEXT = (
    "UPDATE sharedlog_outbox SET seq = seq + 1 WHERE name = ? AND incarnation = ? "
    "RETURNING seq, chain"
)
CHAIN = "UPDATE sharedlog_outbox SET chain = ? WHERE name = ?"
PUT = "INSERT INTO sharedlog_outbox_message VALUES (?, ?, ?, ?, ?)"


class OutboxDialect(NamedTuple):
    """What two databases write differently."""

    bytes: str
    place: str

    def of(self, statement: str) -> str:
        """Return a statement with this one's places for parameters."""
        return statement.replace("?", self.place)

    @property
    def create(self) -> list[str]:
        """Return the statements that make the tables."""
        return [each.format(bytes=self.bytes) for each in _CREATE]


SQLITE = OutboxDialect("BLOB", "?")
POSTGRES = OutboxDialect("BYTEA", "%s")
# What relays listen to.
CHANNEL = "sharedlog_outbox"
