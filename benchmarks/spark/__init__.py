"""Rows a second from Spark to one service, side by side: ``python -m benchmarks.spark``.

``slow`` is a service whose handler waits.
"""
