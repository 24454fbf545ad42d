"""A sweeper and a trimmer of a log, as a process: ``python -m chaos.run.keeper``."""
