"""Process of a consumer of a log: ``python -m chaos.run.consumer``."""
