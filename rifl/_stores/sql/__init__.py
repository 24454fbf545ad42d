"""A store in any SQL database: decisions in Python, within transactions that lock.

- ``dialect``: what a database has to say of itself; ``store``: the store over one.
- ``backend``: carries requests out, each a transaction, and watches over calls that run elsewhere:
  ``carrying`` decides, over ``rows``; ``expiry``: retentions that have passed. ``session``:
  connections.
- ``schema``: tables; ``continuity``: is it the database it was? ``opening``: connected and checked.
- ``transaction``: the record in a handler's own; ``lease_storage``: leases; ``inspection``: a look
  from outside.
"""
