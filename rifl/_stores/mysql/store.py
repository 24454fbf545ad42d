"""``mysql://`` and ``mariadb://``: one database, many server replicas (DESIGN §6)."""

from __future__ import annotations

from rifl._stores.codec import RecordCodec
from rifl._stores.mysql.dialect import MySqlDialect
from rifl._stores.mysql.failures import by_mysql
from rifl._stores.mysql.store_address import SCHEMES, MySqlStoreAddress
from rifl._stores.mysql.transactions import MySqlTransactions
from rifl._stores.sql.lease_storage import SqlLeaseStorage
from rifl._stores.sql.opening import open_backend, store_id_at
from rifl._stores.sql.store import SqlStore


class MySqlStore(SqlStore):
    """Completion records in MariaDB 10.6 or MySQL 8, or newer; see ``MySqlStoreAddress``.

    What is acknowledged survives what the server's settings make it survive: they are checked
    when the store is opened. That raises ``StoreNotDurable``, ``StoreUnreachable``,
    ``StoreSchemaTooNew``, ``StoreCorrupt`` or ``UnsupportedStore``. A failover to an
    asynchronous replica may lose acknowledged commits whatever the settings: replicas notice a
    database that is behind their own beats, or on another server, and stop.
    """

    def __init__(self, url: str, *, codec: RecordCodec | None = None) -> None:
        address = MySqlStoreAddress.parse(url)
        super().__init__(
            MySqlDialect(address),
            codec=codec,
            beat_s=address.beat_s,
            dead_after_s=address.dead_after_s,
        )
        self.transactions = MySqlTransactions(self._sql, self._settlement.finish_of)
        self.rows = self._rows(self._sql.store_id, by_mysql)

    def _is_own(self, url: str) -> bool:
        """Whether a URL leads to the store's own tables: its id is asked for there."""
        if not url.startswith(tuple(f"{scheme}://" for scheme in SCHEMES)):
            return False
        return store_id_at(MySqlDialect(MySqlStoreAddress.parse(url))) == self._sql.store_id


def open_lease_storage(url: str) -> SqlLeaseStorage:
    """Open what a lease server without a store needs; raises a ``StoreError``."""
    return SqlLeaseStorage(open_backend(MySqlDialect(MySqlStoreAddress.parse(url))))
