"""Outboxes: messages that commit in an application's database, and are relayed to a log elsewhere.

- ``outbox``: what a transaction publishes by; ``entry``: what is written then, ``writing``: how, in
  SQLite, and ``postgres`` there; ``tables``: where.
- ``relay``: appends what waits, with ``box_database``: its own way to the application's database;
  ``adopting``: an outbox goes on with a log that was restored.
"""
