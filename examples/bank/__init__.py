"""A small bank on SQLite, written as anyone would write it: ``python -m examples.bank``.

- ``ledger``: its books; ``service``: its gRPC service, which knows nothing of rifl.
- ``exact_service``: the same with one more line a payment.
"""
