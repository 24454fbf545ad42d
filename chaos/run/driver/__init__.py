"""A Spark driver that streams payments, as a process: ``python -m chaos.run.driver``."""
