"""``mysql://``: MariaDB and MySQL, shared by any number of server replicas (``rifl-grpc[mysql]``).

- ``store``, over the generic ``rifl._stores.sql``; ``dialect``: what that does not know of them.
- ``settings``: servers that are refused, and what weakens commits; ``failures``: errors.
- ``transactions``: handlers' own, with the record in them, and their connections in a block.
- ``store_address``: URLs; ``inspection``: a look from outside; ``doctor``: one before a start.
"""

from rifl._stores.mysql.store import MySqlStore, open_lease_storage
from rifl._stores.mysql.store_address import MySqlStoreAddress

__all__ = ["MySqlStore", "MySqlStoreAddress", "open_lease_storage"]
