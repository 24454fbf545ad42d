"""The service that scenarios call, as a process: ``python -m chaos.run.service``."""
