"""Rows a second from Spark to one service, side by side: ``python -m benchmarks.spark``."""
