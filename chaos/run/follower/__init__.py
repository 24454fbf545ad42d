"""A follower of a log, as a process: ``python -m chaos.run.follower``."""
