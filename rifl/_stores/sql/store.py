"""A store in any SQL database, by its dialect: many server replicas share it (DESIGN §6)."""

from __future__ import annotations

from rifl._stores.codec import RecordCodec
from rifl._stores.shared.replicas import BEAT_S, DEAD_AFTER_S
from rifl._stores.shared.store import SharedStore
from rifl._stores.sql.dialect import Dialect
from rifl._stores.sql.lease_storage import SqlLeaseStorage
from rifl._stores.sql.opening import open_backend


class SqlStore(SharedStore):
    """Completion records in an SQL database; a subclass says what its driver's transactions are.

    Every call is decided about in Python, in a transaction that locks its client's row: calls of
    one client go one after another through the database.
    """

    leases: SqlLeaseStorage

    def __init__(
        self,
        dialect: Dialect,
        *,
        codec: RecordCodec | None = None,
        beat_s: float = BEAT_S,
        dead_after_s: float = DEAD_AFTER_S,
    ) -> None:
        self._sql = open_backend(dialect)
        super().__init__(
            self._sql,
            SqlLeaseStorage(self._sql),
            beat_s=beat_s,
            dead_after_s=dead_after_s,
            codec=(codec or RecordCodec()).bounded(dialect.max_record_bytes),
            late_after_s=self._sql.longest_s,
            unresolved=self._sql.unresolved,
        )
