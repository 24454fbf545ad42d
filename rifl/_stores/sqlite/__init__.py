"""``sqlite:///file``: the embedded default; durable, with group commit.

- ``store``: decisions in memory, records on disk; ``attempt``: a call.
- ``recovery``: what earlier incarnations left.
- ``key_lookup``: keys that are looked up in the files; ``known_keys``: which are not.
- ``databases``: the store's file and those that methods name; ``database``: one of these;
  ``schema``, ``statements``: its tables and what is written.
- ``journal``: group commit of ``journal_entries``, and whose turn it is; ``journal_writer``: one
  commit of them; ``write_queue``: who writes to the file next.
- ``transactions``: handlers' own; ``record_row``: what is written in them.
- ``shared_transactions``: many calls in one commit; ``blocks``: a handler's part in one;
  ``connection_proxy``: what it does its statements on.
- ``file_guard``, ``note_file``, ``ownership``, ``medium``: the files, and whose they are.
- ``lease_storage``, ``inspection``, ``restored``, ``address``: as their names say; ``doctor``: a
  look before a start.
"""

from rifl._stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
