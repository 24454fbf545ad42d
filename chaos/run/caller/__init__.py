"""A client of the service, as a process: ``python -m chaos.run.caller``."""
