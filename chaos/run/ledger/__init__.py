"""Service that a consumer calls, as a process: ``python -m chaos.run.ledger``."""
