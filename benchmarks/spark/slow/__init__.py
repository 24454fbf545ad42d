"""A service whose handler waits, as one does that asks another.

``python -m benchmarks.spark.slow``
"""
