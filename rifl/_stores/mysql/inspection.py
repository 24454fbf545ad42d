"""Inspection of a store in MariaDB or MySQL, beside its servers."""

from __future__ import annotations

import dataclasses

from _rifl_ground.servers import Durability
from rifl._stores.mysql.dialect import MySqlDialect
from rifl._stores.mysql.store_address import MySqlStoreAddress
from rifl._stores.sql.inspection import SqlInspection


class MySqlInspection(SqlInspection):
    """See ``SqlInspection``."""

    def __init__(self, url: str) -> None:
        address = MySqlStoreAddress.parse(url)
        super().__init__(
            MySqlDialect(dataclasses.replace(address, durability=Durability.WARN)),
            beat_s=address.beat_s,
            dead_after_s=address.dead_after_s,
        )
