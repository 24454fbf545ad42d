"""Target of a player, as a process: ``python -m chaos.run.target``."""
