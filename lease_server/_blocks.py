"""Id blocks: the table's ids come from the storage, many at a time (DESIGN §5)."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lease_server._errors import StorageUnavailable
from lease_server._storage import LeaseStorage
from lease_server._table import BlockExhausted, LeaseTable


class IdBlocks:
    """Takes ids from a table and reserves the next block when one is used up.

    Any thread. The lock that guards the table is not held while the storage works,
    so a slow disk stalls only those who need a new id.
    """

    def __init__(
        self, table: LeaseTable, storage: LeaseStorage, lock: threading.Lock, block_size: int
    ) -> None:
        """``lock`` guards ``table``; ids for ``block_size`` grants are reserved at a time."""
        self._table = table
        self._storage = storage
        self._lock = lock
        self._block_size = block_size << storage.random_bits
        # Lets one thread at a time reserve a block.
        self._reserving = threading.Lock()

    def take(self, take: Callable[[], int]) -> int:
        """``take()`` under the lock, again after each BlockExhausted it raises.

        Raises StorageUnavailable if a block cannot be reserved, or if the storage
        gave one out twice.
        """
        while True:
            with self._lock:
                try:
                    return take()
                except BlockExhausted:
                    pass
            with self._reserving:
                with self._lock:
                    if self._table.ids_left:
                        continue
                first, last = self._storage.reserve_ids(self._block_size)
                with self._lock:
                    try:
                        self._table.use_block(first, last)
                    except ValueError as error:
                        raise StorageUnavailable("the storage gave out ids twice") from error
