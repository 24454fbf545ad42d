"""SQLite, once for all who keep something in it: stores, logs, consumers' databases, outboxes.

- ``file_names``: are the names still of the files that are open; ``wal_file``: was the ``-wal``
  cut off.
- ``write_lock``: who has the lock to write.
"""
