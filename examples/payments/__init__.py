"""Payments through a log, while everything is killed: ``make demo-payments`` (payments.md).

- ``rules``: what messages say, and what a payment costs.
- ``service``: ``Pay`` and ``Report``, which callers call; ``desk``: what a service remembers.
- ``executor``: decides, for the accounts of its substreams.
- ``views``: statements and full-text search in SQLite, balances in Redis.
- ``naive``: a service as most write it, which writes two databases one after the other.
- ``processes``: all of these, killed and started again; ``callers``: who pays.
- ``audit``: what the databases have in the end, read by code that shares nothing with the rest.
- ``python -m examples.payments`` runs it all.
"""
