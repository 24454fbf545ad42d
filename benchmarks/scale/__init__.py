"""The scale of one server: how much it holds, and the cost; ``python -m benchmarks.scale``."""
