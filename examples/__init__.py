"""Runnable, self-verifying examples: ``python -m examples.<name>``."""
